"""Runs and their relations: found again, refused, resumed, sharing a base; and that what a run holds is
consistent."""

import json
import shutil

import pytest
import torch

from headgates.configs.cli import config_hash, read
from headgates.configs.schema import FitConfig
from headgates.configs.systems import file_name
from headgates.gates import HeadMap, find_sites
from headgates.lab.evaluation import Evaluation
from headgates.lab.lab import Lab
from headgates.lightning_modules.module import StageModule
from headgates.models.checkpoint import load_file
from headgates.pruning.protocol import make_runs
from headgates.records.fingerprint import base_fingerprint
from headgates.records.folder import RunFolder
from headgates.records.source import open_source

SYSTEMS = ["base", "base-continued", "l0-soft", "l0", "l0-removed", "importance", "importance:trained"]
RUN, BASE, CONTINUED = "{}-xx-yy-l0-0.1-s1", "{}-xx-yy-none-s1", "{}-xx-yy-continued-s1"


def name(pattern, text_folder):
    return pattern.format(text_folder.name)


def rows_of(run):
    return {row["system"]: row for row in run.read_json("result.json")["rows"]}


def translated(run, system, corpus):
    """What it translates now, as the file of the run's translations."""
    lines = open_source(run.path, system).translator.translate(corpus.test.sources)
    return "".join(line + "\n" for line in lines)


# ---------------------------------------------------------------- what a finished run holds


def test_a_run_has_a_row_for_every_system_and_all_its_files(finished, text_folder):
    assert finished.path.name == name(RUN, text_folder)
    result = finished.read_json("result.json")
    rows = {row["system"]: row for row in result["rows"]}
    assert list(rows) == SYSTEMS
    files = {
        path.relative_to(finished.path).as_posix() for path in finished.path.rglob("*") if path.is_file()
    }
    wanted = {f"hypotheses/{file_name(system)}.txt" for system in SYSTEMS} | {"scores/importance.json"}
    assert wanted | {"command.txt", "best.pt", "last.pt", "metrics.csv", "gates_history.npz"} <= files
    assert not [file for file in files if "part" in file]
    assert str(text_folder.parent) not in json.dumps(result["command"])
    assert result["data"]["train"]["pairs"] == 113
    trained = ("l0", "base-continued", "importance:trained")
    assert len({rows[system]["stage"]["steps"] for system in trained}) == 1


def test_gates_json_and_the_rows_agree_on_the_heads(finished):
    sites = finished.read_json("gates.json")["sites"]
    rows = rows_of(finished)
    for row in rows.values():
        assert (row["heads_total"], sum(row["heads_by_kind"].values())) == (21, row["heads_open"])
        assert sum(map(len, row["heads_by_site"].values())) == row["heads_open"], "bases too"
    exact = {site: [i for i, head in enumerate(heads) if head["open"]] for site, heads in sites.items()}
    assert rows["l0"]["heads_by_site"] == exact
    assert (
        0 < rows["l0"]["heads_open"] == sum(map(len, exact.values())) < 21
    )  # a run where something was pruned
    assert (
        rows["l0-soft"]["heads_open"] >= rows["l0"]["heads_open"]
    )  # gates between 0 and 1 let something through
    expected = sum(head["open_prob"] for heads in sites.values() for head in heads)
    assert rows["l0-soft"]["expected_open_heads"] == pytest.approx(expected)
    assert all(head["open"] == (head["log_alpha"] > 0) for heads in sites.values() for head in heads)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["base", "base-continued", "gates", "importance:trained"]),
        (["--gate", "none"], ["base"]),
        (["--systems", "base,l0,importance,random:trained,random"], ["base", "gates", "random:trained"]),
        (
            ["--max-drop", "1", "--systems", "base"],
            ["base", *(f"{n} heads" for n in (16, 13, 10, 8, 5, 4, 3, 1))],
        ),
        (["--base", "..."], ["base-continued", "gates", "importance:trained"]),
    ],
)
def test_a_run_knows_its_stages_beforehand(finished, tiny_flags, words, expected):
    words = [
        str(finished.path.parent / finished.config()["base"]) if word == "..." else word for word in words
    ]
    assert list(Lab(read(FitConfig, [*tiny_flags, *words])).stages) == expected


def test_importance_has_exactly_the_number_of_heads_of_l0_and_they_are_the_most_important(finished):
    rows = rows_of(finished)
    assert (
        rows["importance"]["heads_open"]
        == rows["importance:trained"]["heads_open"]
        == rows["l0"]["heads_open"]
    )
    scores = HeadMap.load(finished / "scores/importance.json").l2_per_layer().flat()
    xi = HeadMap.from_json(finished.systems()["importance"]["xi"]).flat()
    assert set(xi.tolist()) == {0.0, 1.0}
    assert scores[xi == 0].max() <= scores[xi == 1].min()


def test_every_system_loads_from_plain_tensors_and_translates_as_the_run_did(finished, corpus):
    for checkpoint in finished.path.glob("*.pt"):
        assert isinstance(torch.load(checkpoint, weights_only=True), dict)
    for system in SYSTEMS:
        hypotheses = (finished / f"hypotheses/{file_name(system)}.txt").read_text()
        assert translated(finished, system, corpus) == hypotheses, system


def test_l0_removed_is_l0_without_the_weights_of_its_closed_heads(finished):
    rows = rows_of(finished)
    masked, removed = rows["l0"], rows["l0-removed"]
    assert all(
        removed[key] == masked[key]
        for key in ("heads_open", "heads_total", "heads_by_kind", "heads_by_site", "bleu")
    )
    model = open_source(finished.path, "l0-removed").translator.model
    width = model.config.d_model // model.config.heads
    a_head = (
        4 * model.config.d_model * width + 3 * width
    )  # columns and rows of four weights, entries of three biases
    smaller = rows["base"]["parameters"] - (21 - masked["heads_open"]) * a_head
    assert masked["parameters"] == removed["parameters"] == smaller
    assert (masked.get("seconds"), removed["seconds"] > 0) == (None, True)
    assert sum(p.numel() for p in model.parameters()) == removed["parameters"]
    assert removed["lines_unlike_masked"] == 0
    assert all(site.heads == len(removed["heads_by_site"][site.name]) for site in find_sites(model))


def test_the_reference_is_the_better_of_the_two_bases_on_validation(finished):
    reference, rows = finished.read_json("result.json")["reference"], rows_of(finished)
    best = {name: min(row["stage"]["losses"]) for name, row in rows.items() if name.startswith("base")}
    assert reference == min(best, key=best.get)
    for row in rows.values():
        assert row["reference"] == reference
        assert row["bleu_difference"] == pytest.approx(row["bleu"] - rows[reference]["bleu"])


def test_a_gate_run_names_its_base_and_does_not_copy_it(finished, text_folder, corpus):
    config = finished.config()
    base = finished.path.parent / name(BASE, text_folder)
    assert config["base"] == str(base)
    settings = read(FitConfig, ["--config", str(base / "config.yaml")])
    assert (
        config["base_hash"]
        == config_hash(base_fingerprint(settings, corpus, "32"))
        == RunFolder(base).run_hash()
    )


# ---------------------------------------------------------------- finding, refusing, sharing


def test_a_finished_run_is_shown_and_not_repeated(runs, configure, stages, capsys, text_folder):
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    assert make_runs(configure()).path.name == name(RUN, text_folder)
    assert stages == []
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()} == before
    assert "finished, same configuration" in capsys.readouterr().out


def test_a_name_taken_by_another_configuration_is_refused(runs, configure, stages, text_folder):
    with pytest.raises(
        ValueError, match=r"holds a run with another configuration; give this one a --name of its own"
    ):
        make_runs(configure("--name", name(RUN, text_folder), "--gates.lr", "0.4"))
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        make_runs(configure("--name", name(BASE, text_folder), "--gate", "none", "--seed", "2"))
    assert stages == []


def test_siblings_share_one_base_and_one_continued_base(runs, configure, stages, text_folder):
    sibling = make_runs(configure("--lambda", "0.05", "--systems", "base,base-continued,l0"))
    assert stages == ["gates"]
    there = {*(name(each, text_folder) for each in (RUN, BASE, CONTINUED)), sibling.path.name}
    assert {path.name for path in runs.iterdir()} - {"tiny-curve"} == there  # of test_head_curve
    first = json.loads((runs / name(RUN, text_folder) / "result.json").read_text())["rows"]
    second = sibling.read_json("result.json")["rows"]
    assert [row["bleu"] for row in first[:2]] == [row["bleu"] for row in second[:2]]


def test_fresh_repeats_a_run_bit_by_bit_and_leaves_its_base(runs, finished, configure, stages):
    again = make_runs(configure("--fresh"))
    assert stages == ["gates", "importance:trained"]
    assert_same_translations(again, finished)
    assert again.read_json("gates.json") == finished.read_json("gates.json")


def assert_same_translations(run: RunFolder, other: RunFolder) -> None:
    for system in SYSTEMS:
        name = f"hypotheses/{file_name(system)}.txt"
        assert (run / name).read_bytes() == (other / name).read_bytes()


def test_a_base_that_is_none_is_refused(runs, configure, text_folder):
    with pytest.raises(ValueError, match="is a run with gates; --base needs a base run"):
        make_runs(configure("--base", str(runs / name(RUN, text_folder))))
    (runs / name(BASE, text_folder) / "result.json").unlink()
    with pytest.raises(ValueError, match="is not finished"):
        make_runs(configure("--base", str(runs / name(BASE, text_folder))))
    with pytest.raises(ValueError, match=f"no run at .*did you mean .*{name(BASE, text_folder)}"):
        make_runs(configure("--base", str(runs / name(BASE, text_folder)[:-1])))


def test_another_test_set_of_the_same_size_is_not_taken_for_the_first(runs, configure, text_folder, tmp_path):
    other = tmp_path / text_folder.name
    shutil.copytree(text_folder, other)
    for language in ("xx", "yy"):
        lines = (other / f"test.{language}").read_text().splitlines()
        (other / f"test.{language}").write_text("".join(line + "\n" for line in reversed(lines)))
    before = (runs / name(RUN, text_folder) / "hypotheses/base.txt").read_text().splitlines()
    assert before != before[::-1]
    run = make_runs(configure("--data", str(other), "--gate", "none", "--systems", "base"))
    assert (run / "hypotheses/base.txt").read_text().splitlines() == before[::-1]


def test_on_a_base_from_elsewhere_only_the_kinds_asked_for_carry_gates_and_are_pruned(
    runs, configure, tmp_path, stages, text_folder
):
    elsewhere, base = tmp_path / "elsewhere", runs / name(BASE, text_folder)
    place = ("--base", str(base), "--runs", str(elsewhere))
    run = make_runs(configure("--kinds", "enc-self", "--systems", "base,l0,importance", *place))
    assert stages == ["gates"]
    assert [path.name for path in elsewhere.iterdir()] == [run.path.name]
    assert run.config()["base"] == str(base)
    assert run.path.name.endswith("-l0-0.1-enc-self-s1")
    assert set(run.read_json("gates.json")["sites"]) == {"encoder.0.enc-self"}
    rows = rows_of(run)
    for system in ("l0", "importance"):
        assert rows[system]["heads_by_kind"]["dec-self"] == rows[system]["heads_by_kind"]["cross"] == 7
        assert rows[system]["heads_open"] == rows["l0"]["heads_open"]
        assert set(run.systems()[system]["xi"]) == {"encoder.0.enc-self"}


@pytest.mark.parametrize(
    ("embeddings", "joint", "trained"),
    [("separate", "false", {"encoder", "source_embedding"}), ("tied", "true", {"encoder"})],
)
def test_freeze_decoder_trains_the_encoder_its_own_embeddings_and_gates_only(
    configure, tmp_path, embeddings, joint, trained
):
    systems = ("--systems", "base,l0,importance:trained", "--train.epochs", "1", "--finetune.epochs", "1")
    run = make_runs(
        configure("--freeze-decoder", "--model.embeddings", embeddings, "--text.joint", joint, *systems)
    )
    base = load_file(next((tmp_path / "runs").glob("*-none-s1")) / "best.pt")["model"]
    for checkpoint in ("best.pt", "importance-trained-best.pt"):
        tuned = load_file(run / checkpoint)["model"]
        moved = {key.split(".")[0] for key, tensor in tuned.items() if not torch.equal(tensor, base[key])}
        assert moved == trained


# ---------------------------------------------------------------- interrupted runs


class PowerCut(Exception):
    pass


def cut_power(patched, owner, method, when):
    """`owner.method` raises PowerCut instead of running where when(self, arguments...) is true."""
    original = getattr(owner, method)

    def run(self, *rest, **options):
        if when(self, *rest):
            raise PowerCut
        return original(self, *rest, **options)

    patched.setattr(owner, method, run)


def test_an_interrupted_base_asks_for_resume_and_then_ends_as_an_uninterrupted_one(
    finished, configure, monkeypatch, tmp_path, text_folder
):
    with monkeypatch.context() as patched:
        cut_power(
            patched,
            StageModule,
            "training_step",
            lambda self, batch, index: (self.current_epoch, index) == (1, 3),
        )
        with pytest.raises(PowerCut):
            make_runs(configure("--gate", "none"))
    with pytest.raises(
        ValueError,
        match=r"is unfinished: --resume continues it from its last checkpoint, --fresh begins again",
    ):
        make_runs(configure("--gate", "none"))
    with pytest.raises(ValueError, match="is unfinished: --resume"):
        make_runs(configure())
    resumed = make_runs(configure("--gate", "none", "--resume"))
    whole = finished.path.parent / name(BASE, text_folder)
    left, right = load_file(whole / "best.pt")["model"], load_file(resumed / "best.pt")["model"]
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert (resumed / "hypotheses/base.txt").read_text() == (whole / "hypotheses/base.txt").read_text()


def test_gate_none_stops_at_the_base_and_one_cut_before_its_first_epoch_ended_simply_begins_again(
    configure, monkeypatch, tmp_path, stages, text_folder
):
    config = configure("--gate", "none", "--train.epochs", "1")
    with monkeypatch.context() as patched:
        cut_power(patched, StageModule, "training_step", lambda self, batch, index: index == 3)
        with pytest.raises(PowerCut):
            make_runs(config)
    folder = make_runs(config)
    assert folder.path.name == name(BASE, text_folder)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [folder.path.name]
    assert stages == ["base", "base"]
    (row,) = folder.read_json("result.json")["rows"]
    assert (row["system"], row["heads_open"]) == ("base", 21)
    assert folder.finished()


def test_a_run_cut_in_its_evaluation_resumes_without_training_again(
    finished, runs, configure, monkeypatch, stages, text_folder
):
    shutil.rmtree(runs / name(RUN, text_folder))
    shutil.rmtree(runs / name(BASE, text_folder) / "scores")
    with monkeypatch.context() as patched:
        cut_power(patched, Evaluation, "add", lambda self, system, *_: system == "l0-soft")
        with pytest.raises(PowerCut):
            make_runs(configure())
    assert stages == ["gates"]
    with pytest.raises(ValueError, match="is unfinished: --resume"):
        make_runs(configure())
    run = make_runs(configure("--resume"))
    assert stages == ["gates", "importance:trained"]
    assert_same_translations(run, finished)
