"""What a command ends with that made rows: tables, files, pages, and what to type next."""

import re
import shlex
from dataclasses import replace

import pytest
import yaml

from headgates.commands.prune import PruneOptions, typed_words
from headgates.configs.cli import read_command, read_given
from headgates.configs.closing import RESAMPLE
from headgates.configs.recipe import Lambda, MaxDrop, Recipe, Speed, Units
from headgates.configs.settings import Settings
from headgates.lab.lab import Lab
from headgates.pruning.grid import Failed
from headgates.pruning.make import Row, row_of
from headgates.records.folder import RunFolder
from headgates.report.compared import bases_of, show_compared, trained_command
from tests.report.made_runs import made_run, toy_base

LEARNED, SCORED = Recipe("l0", Lambda(0.015), epochs=1), Recipe("importance", Units(42))


@pytest.fixture
def lab(tmp_path):
    lab = Lab(Settings(runs=str(tmp_path), threads=1, test_sentences=400))
    yield lab
    lab.close()


def finished(lab: Lab, base: RunFolder, recipe: Recipe, closed: int, **facts) -> Row:
    """The row of a made run, whose outputs are the base's with some lines cut."""
    outputs = [line[: None if i % 9 else 5] for i, line in enumerate(base.outputs("base"))]
    run = made_run(base, recipe, closed, 90.0, outputs=outputs, **facts)
    if "continued" in facts:
        run.write_outputs("base-continued", base.outputs("base"))
    return row_of(run, lab)


def test_a_base_is_there_once_and_the_base_trained_as_long_once_for_each_length_and_seed(tmp_path, lab):
    base = toy_base(tmp_path)
    again = replace(SCORED, epochs=1)
    rows = [
        finished(lab, base, recipe, 1, continued=94.0) for recipe in (LEARNED, again, replace(again, seed=2))
    ]
    found = bases_of(lab, base, [finished(lab, base, SCORED, 1), *rows])
    assert [(row.result.system, row.recipe and row.recipe.seed) for row in found] == [
        ("base", None),
        ("base-continued", 1),
        ("base-continued", 2),
    ]


def test_one_row_is_a_table_and_a_shape_and_leaves_no_folder(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    row = finished(lab, base, SCORED, 1)
    show_compared(lab, base, [row], [])
    said = capsys.readouterr().out
    assert said.count("importance  42 heads") == 1
    assert "shape: in each layer heads of self-attention" in said
    assert f"report: {row.run / 'report.html'}" in said
    assert f"headgates translate {row.run.path} --input FILE" in said.replace("python -m ", "")
    assert not (tmp_path / f"compare-{base.path.name}").exists()


def test_several_rows_are_written_under_the_name_of_the_base_and_failures_are_told(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    rows = [
        finished(lab, base, recipe, n) for n, recipe in ((1, SCORED), (2, replace(SCORED, budget=Units(36))))
    ]
    show_compared(lab, base, rows, [Failed(LEARNED, "no room")])
    folder = tmp_path / f"compare-{base.path.name}"
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".md", ".json", ".png", ".svg"}
    assert f"failed: {LEARNED.title}: no room" in capsys.readouterr().out
    assert "no run: learned gates" in (folder / "compare.md").read_text()
    pages = [path.parent.name for path in tmp_path.glob("*/report.html")]
    assert sorted(pages) == sorted([base.path.name, *(row.run.path.name for row in rows)])
    with pytest.raises(ValueError, match="no recipe could be made; the first: learned gates"):
        show_compared(lab, base, [], [Failed(LEARNED, "no room")])


def test_more_training_keeps_the_refit_and_the_seed_of_what_missed_its_speed(tmp_path):
    recipe = Recipe("plan", Speed(2.0), refit="out+ffn+v", seed=2)
    said = trained_command(toy_base(tmp_path), recipe, [])
    assert "--speedup=2.0 " in said
    assert "--refit=out+ffn+v --epochs=3 --seed=2" in said
    assert said.endswith(" trains a new one for 3 epochs")
    said = trained_command(toy_base(tmp_path / "again"), replace(recipe, epochs=1), [])
    assert said.endswith(" trains a new one for 4 epochs")


def test_a_trained_model_that_misses_its_speed_is_not_offered_more_training(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    speed = {"budget": "speedup", "predicted": 4.0, "unit": "seconds", "tokens": 11.0, "timed": "int8"}
    speed |= {"measured": {"median": 3.209, "ci95": [3.1, 3.3]}, "runtimes": {}}
    for epochs, endless, said, command in (
        (1, 0.0, "missed (3.21 of 4 times the speed); ask for --speedup 3.2 or less", False),
        (1, 0.75, "75% of its outputs run to the length limit); train it for longer, or ask for less", True),
        (0, 0.0, "missed (3.21 of 4 times the speed); it lacks training: give --epochs", True),
    ):
        recipe = Recipe("plan", Speed(4.0), epochs=epochs)
        row = finished(lab, base, recipe, 1, speed=speed, endless=endless)
        show_compared(lab, base, [row], [])
        out = capsys.readouterr().out
        assert said in out
        assert (f"trains a new one for {epochs + 3} epochs" in out) == command


@pytest.mark.parametrize(
    ("recipe", "bleu", "warned"),
    [
        (SCORED, 0.9, True),
        (SCORED, 60.0, False),  # of 95.07
        (replace(SCORED, epochs=1), 0.9, False),
        (replace(SCORED, closed_output=RESAMPLE), 0.9, False),  # which no command trains
    ],
)
def test_a_model_that_is_broken_without_training_leads_to_its_training(
    tmp_path, lab, capsys, recipe, bleu, warned
):
    base = toy_base(tmp_path)
    row = finished(lab, base, recipe, 1)
    result = row.result
    measures = {**result.measures, "bleu": replace(result.measures["bleu"], value=bleu)}
    show_compared(lab, base, [replace(row, result=replace(result, measures=measures))], [])
    before, _, after = capsys.readouterr().out.partition("next:\n")
    warning = f"more than half of the base's BLEU is lost, and nothing was trained: {recipe.title}; give"
    assert (warning in before) == warned
    assert (" trains a new one for 3 epochs" in after.splitlines()[0]) == warned


def test_of_several_broken_models_none_leads_to_its_training(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    rows = [finished(lab, base, replace(SCORED, budget=Units(n)), 1) for n in (42, 36)]
    for row in rows:
        row.result.measures["bleu"] = replace(row.result.measures["bleu"], value=0.9)
    show_compared(lab, base, rows, [])
    before, _, after = capsys.readouterr().out.partition("next:\n")
    assert f"{rows[0].recipe.title}; {rows[1].recipe.title}; give --epochs" in before
    assert "trains a new one" not in after


def test_every_next_prune_repeats_the_settings_that_were_typed(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    typed = "--runs 'other runs' --threads 1 --search.beam 3 --set calibration_sentences=7 --data-dir null"
    given = read_given(PruneOptions, ["RUN", *shlex.split(typed)])[1]
    del given["source"]
    rows = [
        finished(lab, base, SCORED, 1, endless=0.75),
        finished(lab, base, LEARNED, 1, continued=94.0),
    ]
    show_compared(lab, base, rows, [], typed=typed_words({**given, "seed": 2, "train.epochs": 9}))
    after = capsys.readouterr().out.partition("next:")[2].splitlines()
    said = "(.*) (?:trains|says what lower|looks for)"
    found = [each[1] for line in after if (each := re.search(rf"prune(?:\.py)? {said}", line))]
    assert len(found) == 3
    for words in found:
        repeated = read_given(PruneOptions, shlex.split(words))[1]
        assert {name: repeated[name] for name in given} == given
        assert repeated.get("seed", 1) == 1
        assert "train.epochs" not in repeated


def test_a_speed_is_suggested_for_a_base_and_not_for_a_run_that_is_pruned_already(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    row = finished(lab, base, SCORED, 1)
    show_compared(lab, base, [row], [])
    assert "twice as fast" in capsys.readouterr().out
    config = {**base.config(), "recipe": LEARNED.to_json(), "base": str(base.path)}
    base.write_text("config.yaml", yaml.safe_dump(config))
    show_compared(lab, base, [row], [])
    assert "twice as fast" not in capsys.readouterr().out


def test_the_path_of_prices_is_lost_and_the_next_prices_are_not_named(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    walk = Recipe("l0", MaxDrop(1.0, prices=(0.01, 0.03)), epochs=3)
    tried = {"score": 94.0, "lost": 0.25, "bound": 0.75, "loss": 1.5, "accepted": True}
    path = [{"asked": "λ 0.01", "heads": 40, **tried}, {"asked": "λ 0.03", "heads": 28, **tried}]
    row = finished(lab, base, walk, 1, continued=94.0, path=path)
    show_compared(lab, base, [row], [])
    assert re.search(r"λ 0.03 +28 +94.00 +0.25 +0.75 +1.5000 +yes", capsys.readouterr().out)
    assert '"path":[{"asked":"λ 0.01","heads":40,' in (base / "report.html").read_text(encoding="utf-8")
    show_compared(lab, base, [finished(lab, base, LEARNED, 1, continued=94.0)], [])
    (words,) = re.findall(r"prune (.*) says what lower and higher prices", capsys.readouterr().out)
    options = read_command(PruneOptions, words.split())
    (recipe,) = options.recipes(options.by, options.seed)
    assert recipe == replace(LEARNED, budget=MaxDrop(0.5, prices=(0.005, 0.015, 0.045)))


def test_the_next_prices_are_of_the_same_kinds_and_none_is_nothing(tmp_path, lab, capsys):
    base = toy_base(tmp_path)
    for recipe in (replace(LEARNED, kinds=("cross",)), replace(LEARNED, budget=Lambda(0.0), seed=2)):
        show_compared(lab, base, [finished(lab, base, recipe, 1, continued=94.0)], [])
    (words,) = re.findall(r"prune (.*) says what lower and higher prices", capsys.readouterr().out)
    options = read_command(PruneOptions, words.split())
    assert options.recipes(options.by, options.seed)[0].kinds == ("cross",)


def test_a_base_alone_is_a_table_with_its_result(tmp_path, lab, capsys, monkeypatch):
    base = toy_base(tmp_path)
    monkeypatch.setattr(Lab, "own_row", lambda _, run: (run, run.row_of("base")))
    show_compared(lab, base, [], [])
    said = capsys.readouterr().out
    assert "with 48 of 48 heads the model has 95.07 BLEU" in said
    assert "still fell by 8.5% over the last 4 epochs" in said
    assert f"prune {base.path} closes heads" in said
