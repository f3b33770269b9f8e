"""prune.py as its user meets it: a comparison, the second call, a model of a model, and what it refuses."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from headgates.commands import prune
from headgates.gates import Subnet, find_sites
from headgates.lightning_modules import stage as training
from headgates.models.translator import Translator
from headgates.pruning import base, grid, trimming
from headgates.pruning.closing import Calibration
from headgates.records.folder import RunFolder, base_of
from headgates.records.source import Source
from headgates.tasks.translation import Translation
from tests.worlds.made_runs import BASE, opened
from tests.worlds.runs import assert_one_line, well

FEW = ["--threads", "1"]


@pytest.fixture
def prune_here(called):
    """prune_here(words...) -> (exit code, stdout, stderr)."""
    return called(prune)


def test_several_values_make_a_comparison_which_a_second_call_only_shows(tiny, prune_here, monkeypatch):
    words = [tiny / BASE, "--by", "importance,random", "--heads", "9,4", *FEW]
    first = well(prune_here(*words))
    assert len([*tiny.glob("toy-en-de-*-s1")]) == 5
    (folder,) = tiny.glob("compare-*")
    assert (folder / "compare.csv").is_file()
    monkeypatch.setattr(training, "run_stage", None)
    monkeypatch.setattr(Translator, "translate", None)
    second = well(prune_here(*words))
    assert "4 recipes, 0 of them to make" in second
    assert first[first.index("──") :] == second[second.index("──") :]


def test_without_a_number_shares_of_the_heads_are_tried(tiny, prune_here):
    well(prune_here(tiny / BASE, "--by", "random", *FEW))
    runs = [RunFolder(path) for path in tiny.glob("*-random-*")]
    assert sorted(run.row_of("pruned").heads_open for run in runs) == [2, 4, 8, 12]


def test_a_smaller_model_is_made_smaller_again(tiny, prune_here):
    well(prune_here(tiny / BASE, "--by", "random", "--heads", "9", *FEW))
    (nine,) = tiny.glob("*-random-9-s1")
    well(prune_here(nine, "--by", "random", "--heads", "4", "--name", "again", *FEW))
    run = RunFolder(tiny / "again")
    assert sum(site.heads for site in find_sites(opened(run).model)) == 4
    assert run.row_of("base").heads_open == 9
    assert run.outputs("base") == RunFolder(nine).outputs("pruned")
    subnet = Subnet.from_json(run.row_of("pruned").subnet)
    assert {site.name: site.heads for site in subnet.units} == {
        site.name: site.heads for site in Subnet.of(opened(RunFolder(nine)).model).units
    }


def test_a_smaller_model_is_the_base_of_what_is_made_of_it_on_other_lines_and_pages_too(
    tiny, prune_here, tmp_path
):
    well(prune_here(tiny / BASE, "--by", "random", "--heads", "9", *FEW))
    (nine,) = tiny.glob("*-random-9-s1")
    smaller = opened(RunFolder(nine))
    for side, lines in zip(("en", "de"), smaller.lines("valid", 13), strict=True):
        (tmp_path / f"other.{side}").write_text("".join(line + "\n" for line in lines))
    also = f"{tmp_path}/other.en:{tmp_path}/other.de"
    out = well(prune_here(nine, "--by", "random", "--heads", "4", "--name", "again", "--also", also, *FEW))
    (kept,) = nine.glob("evaluations/*/hypotheses/*.txt")
    lines = smaller.lines("valid", 13)[0]
    assert kept.read_text().splitlines() == smaller.task.outputs(smaller.predictor, lines)
    assert f"report: {tiny / 'again/report.html'}" in out
    found = re.search(r'id="data"[^>]*>(.*?)</script>', (tiny / "again/report.html").read_text(), re.DOTALL)
    data = json.loads(found[1])
    assert [state["run"] for state in data["states"]] == ["again"]
    assert ("again", "pruned") in [(each["run"], each["system"]) for each in data["lines"]["systems"]]


@pytest.mark.parametrize("place", [".", "link"])
def test_runs_lie_beside_a_base_however_it_is_named(tiny, prune_here, monkeypatch, place, tmp_path):
    (tmp_path / "link").symlink_to(tiny / BASE)
    monkeypatch.chdir(tiny / BASE if place == "." else tmp_path)
    well(prune_here(place, "--by", "random", "--heads", "9", *FEW))
    (run,) = tiny.glob("*-random-9-s1")
    assert base_of(RunFolder(run)).path == tiny / BASE


def test_a_base_of_another_folder_is_found_where_one_of_its_name_lies_beside_the_run(
    tiny, prune_here, tmp_path
):
    other = Path(shutil.copytree(tiny / BASE, tmp_path / "other" / BASE))
    settings = yaml.safe_load((other / "config.yaml").read_text())
    (other / "config.yaml").write_text(yaml.safe_dump({**settings, "run_hash": "0123456789ab"}))
    well(prune_here(tiny / BASE, "--runs", other.parent, "--by", "random", "--heads", "9", *FEW))
    (run,) = other.parent.glob("*-random-9-s1")
    assert base_of(RunFolder(run)).path == tiny / BASE


def test_a_teacher_of_whom_nothing_is_learned_is_refused(tiny, prune_here):
    code, _, error = prune_here(tiny / BASE, "--heads", "9", "--distill.teacher", tiny / BASE, *FEW)
    assert code == 1
    assert_one_line(error, "nothing is learned from it", "--distill.weight")


def test_another_test_set_has_a_table_of_its_own(tiny, prune_here, tmp_path):
    source = opened(RunFolder(tiny / BASE))
    for side, lines in zip(("en", "de"), source.lines("valid", 13), strict=True):
        (tmp_path / f"other.{side}").write_text("".join(line + "\n" for line in lines))
    also = f"{tmp_path}/other.en:{tmp_path}/other.de"
    out = well(prune_here(tiny / BASE, "--by", "random", "--heads", "9", "--also", also, *FEW))
    assert "2 systems on" in out
    assert "-other: test set" in " ".join(out.split())


def test_pieces_that_greedy_search_writes_stay_beside_those_of_the_run_s_search(
    tiny, prune_here, tmp_path, monkeypatch
):
    (tmp_path / "in.txt").write_text("the dog sleeps .\n")
    kept = []

    def trim_model(whole, folder, sources, targets, written):
        kept.extend(written)
        raise ValueError("seen")

    def translated_ids(translator, lines, search):
        return [[10 + search.beam] for _ in lines]

    monkeypatch.setattr(trimming, "trim_model", trim_model)
    monkeypatch.setattr(trimming, "translated_ids", translated_ids)
    prune_here(tiny / BASE, "--trim-vocabulary", tmp_path / "in.txt", "--search.beam", "4", *FEW)
    assert kept == [[14], [11]]


def test_a_trimmed_vocabulary_translates_its_text_as_before(tiny, prune_here, tmp_path):
    whole = opened(RunFolder(tiny / BASE))
    lines = whole.lines("test", 7)[0]
    lines[3] = ""
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    well(prune_here(tiny / BASE, "--trim-vocabulary", tmp_path / "in.txt", *FEW))
    (run,) = map(RunFolder, tiny.glob("*-trimmed-s1"))
    less = opened(run)
    assert less.translator.translate(lines, beam=1) == whole.translator.translate(lines, beam=1)
    about = run.read_json("result.json")["trimmed"]
    sizes = [sum(each.numel() for each in one.model.parameters()) for one in (whole, less)]
    assert (about["parameters"], sizes[1] < sizes[0]) == (sizes, True)
    assert run.row_of("pruned").heads_open == 16
    well(prune_here(run.path, "--by", "random", "--heads", "4", "--name", "fewer", *FEW))
    assert RunFolder(tiny / "fewer").row_of("pruned").heads_open == 4


def test_a_shortlist_leaves_the_translations_whose_pieces_it_lists_and_goes_with_the_model(
    tiny, prune_here, tmp_path
):
    whole = opened(RunFolder(tiny / BASE))
    for side, lines in zip(("en", "de"), whole.lines("valid", 13), strict=True):
        (tmp_path / f"other.{side}").write_text("".join(line + "\n" for line in lines))
    also = f"{tmp_path}/other.en:{tmp_path}/other.de"
    out = well(prune_here(tiny / BASE, "--shortlist", "60", "--also", also, *FEW))
    assert "-other: test set" in " ".join(out.split())
    assert re.search(r"writes for \S*-other are listed; \d+ of its 13 lines", out)
    (run,) = map(RunFolder, tiny.glob("*-shortlist-60-s1"))
    short, lines = opened(run).translator, whole.lines("test", 7)[0]
    about = run.read_json("result.json")["shortlisted"]
    assert about["pieces"] == whole.model.target_vocab > about["candidates"]["1"]
    assert f"{about['listed']:.2%} of the pieces" in out
    listed = 0
    for line in lines:
        (source,) = short.encode([line])
        best = whole.translator.translate_n_best([line], beam=1)[0][0]
        if {*whole.translator.target_vocab.encode([best.text])[0]} <= {*short.candidates([source]).tolist()}:
            assert short.translate([line], beam=1) == [best.text]
            listed += 1
    assert listed
    well(prune_here(run.path, "--by", "random", "--heads", "4", "--name", "fewer", *FEW))
    assert opened(RunFolder(tiny / "fewer")).translator.shortlist.ids.tolist() == short.shortlist.ids.tolist()


OF_THE_BASE = {  # none of them the default
    "text": {"train_sentences": 311, "max_tokens": 611},
    "finetune": {"lr": 0.0017, "warmup_steps": 7},
    "distill": {"weight": 0.3, "sequences": 0.5},
    "search": {"beam": 2, "length_penalty": 0.7, "batch_tokens": 900},
    "sentences": 101,
    "calibration_sentences": 53,
    "test_sentences": 7,
}


def test_scores_refits_distilled_text_training_and_search_are_the_bases(tiny, prune_here, monkeypatch):
    change_config(tiny / BASE, **OF_THE_BASE)
    seen = {"searches": set(), "read": [], "stages": []}
    outputs, train_batches, calibrated = Translation.outputs, Source.train_batches, Calibration.text.func

    def watched_outputs(task, predictor, lines, **how):
        if not how.get("quick"):
            seen["searches"].add(predictor.search)
        return outputs(task, predictor, lines, **how)

    def watched_stage(name, module, data, *rest, **how):
        distilled = sum(map(str.__ne__, data.corpus.train.targets, toy.targets))
        settings = module.distilling.config.weight, data.max_tokens, len(data.train_pairs), distilled > 100
        seen["stages"].append((name, module.stage.lr, module.stage.warmup_steps, *settings))
        return run_stage(name, module, data, *rest, **how)

    def watched_pairs(source, sentences=0, seed=1):
        seen["read"].append(sentences)
        return train_batches(source, sentences, seed)

    toy, run_stage = opened(RunFolder(tiny / BASE)).corpus.train, training.run_stage
    texts = []
    monkeypatch.setattr(Translation, "outputs", watched_outputs)
    monkeypatch.setattr(Source, "train_batches", watched_pairs)
    monkeypatch.setattr(
        Calibration, "text", property(lambda self: texts.append(calibrated(self)) or texts[-1])
    )
    monkeypatch.setattr(training, "run_stage", watched_stage)
    well(prune_here(tiny / BASE, "--by", "obs", "--heads", "9", "--refit", "out", "--epochs", "1", *FEW))
    assert {(each.beam, each.length_penalty, each.batch_tokens) for each in seen["searches"]} == {
        (2, 0.7, 900)
    }
    own = (0.0017, 7, 0.3, 611, 311, True)
    assert seen["stages"] == [("base-continued", *own), ("training", *own)]
    assert ({*seen["read"]}, {len(text) for text in texts}) == ({101}, {53})
    assert {*texts[0].sources} <= {*toy.sources[:311]}
    (run,) = tiny.glob("*-obs-9-*")
    assert len(RunFolder(run).outputs("pruned")) == 7


# ---------------------------------------------------------------- bad input


def change_config(run: Path, **changes: object) -> None:
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


BROKEN = {
    "no run": (lambda base: base.rename(base.with_name("toy-en-de-none-s7")), ["no run at", "none-s7"]),
    "unfinished": (lambda base: (base / "result.json").unlink(), ["is not finished", "--resume"]),
    "text gone": (lambda base: change_config(base, data="toyy"), ["no corpus named 'toyy'", "toy"]),
    "weights changed": (lambda base: shutil.copy(base / "vocab.model", base / "best.pt"), ["best.pt"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_run_that_cannot_be_pruned_is_one_line_that_says_why(tiny, prune_here, case):
    damage, parts = BROKEN[case]
    damage(tiny / BASE)
    code, _, error = prune_here(tiny / BASE, "--by", "random", "--heads", "4")
    assert code == 1
    assert_one_line(error, *parts)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ("--runtime int8", 2, "give --speedup too"),
        ("--by importanc --heads 4", 2, "did you mean 'importance'"),
        ("--heads 4 --runs /dev/null/runs", 1, "cannot write in /dev/null/runs"),
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_opened(
    tiny_runs, prune_here, monkeypatch, flags, code, said
):
    monkeypatch.setattr(base, "open_base", None)
    found, _, error = prune_here(tiny_runs / BASE, *flags.split())
    assert found == code
    assert_one_line(error.splitlines()[0], said)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--heads 4,99 --by random", "--heads: cannot keep 99 of 16 heads"),
        ("--heads cross=5,enc-self=1,dec-self=1", "--heads: cannot keep 5 of 4 heads of cross"),
        ("--neurons 96,99999 --kinds ffn", "--neurons: cannot keep 99999 of"),
    ],
)
def test_more_than_the_model_has_is_one_line_before_anything_is_scored(
    tiny_runs, prune_here, monkeypatch, flags, said
):
    monkeypatch.setattr(grid, "make", None)
    code, _, error = prune_here(tiny_runs / BASE, *flags.split())
    assert code == 1
    assert_one_line(error.splitlines()[-1], said)


def test_a_setting_that_is_the_bases_alone_is_refused(tiny_runs, prune_here):
    code, _, error = prune_here(tiny_runs / BASE, "--train.lr", "0.1", "--heads", "4")
    assert code == 1
    assert_one_line(error, "contradicts")
