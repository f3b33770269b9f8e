"""prune.py --reconstruct, --heads, --save: exact numbers of heads, five ways to close them, and a run of
what is left for the other scripts."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from headgates.commands import export, fit, prune, translate
from headgates.gates import HeadMap, find_sites
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.runs import well

FEW = ["--set", "valid_sentences=19", "--test-sentences", "17", "--set", "calibration_sentences=50"]
HEADS = 6
EXAMPLE = Path(__file__).parents[1] / "examples/toy_run/toy-en-de-none-s1"  # of two layers a stack


@pytest.fixture
def prune_here(called):
    return called(prune)


def saved(runs, prune_here, *words: str, name: str = "smaller", heads: int = 4) -> RunFolder:
    well(prune_here(runs / "toy-en-de-none-s1", *words, *FEW, "--heads", heads, "--save", name))
    return RunFolder.open(runs / name)


def test_a_refitted_model_is_a_run_that_translates_and_exports(runs, base, prune_here, called, tmp_path):
    run = saved(runs, prune_here, "--reconstruct", "out+ffn+v", heads=3)
    (row,) = run.rows()
    assert (row.system, row.heads_open, row.heads_total, sum(row.heads_by_kind.values())) == (
        "base",
        3,
        HEADS,
        3,
    )
    source = open_source(run.path, finished=True)
    assert sum(site.heads for site in find_sites(source.model)) == 3
    assert (
        row.parameters
        == sum(parameter.numel() for parameter in source.model.parameters())
        < base.rows()[0].parameters
    )
    lines = source.lines("test", 17)[0]
    outputs = (run / "hypotheses/base.txt").read_text(encoding="utf-8").splitlines()
    assert source.translator.translate(lines, beam=1) == outputs
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    files = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
    assert called(translate)(run.path, *files, "--beam", "1")[0] == 0
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == outputs
    out = well(called(export)(run.path, "--to", "ct2", "--fresh", "--sentences", "7"))
    assert "7 of 7" in out
    assert all((each / "report.html").is_file() for each in (run, base))


def test_what_it_was_made_of_is_recorded_beside_what_was_lost(runs, base, prune_here):
    run = saved(runs, prune_here, "--ablation", "mean", "--by", "weight-norm")
    pruned = run.read_json("result.json")["pruned"]
    expected = {
        "source": base.path.name,
        "source_hash": base.run_hash(),
        "order": "weight-norm",
        "closing": "mean",
    }
    assert {name: pruned[name] for name in expected} == expected
    assert pruned["calibration"] == {"sentences": 50, "targets": "reference"}
    scores = HeadMap.load(base / "scores/weight-norm.json")
    assert HeadMap.from_json(pruned["closed"]).map(lambda row: row.bool()) == scores.lowest(2)
    ours, whole = pruned["this_model"], pruned["unpruned_model"]
    for metric in ("bleu", "chrf"):
        assert ours[f"{metric}_difference"] == pytest.approx(ours[metric] - whole[metric])
        assert 0 < ours[f"{metric}_p_value"] <= 1
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert (config["gate"], config["name"], config["base"]) == ("none", "smaller", None)
    assert config["run_hash"] != base.run_hash()
    assert "prune.py" in (run / "command.txt").read_text(encoding="utf-8")


def test_it_is_pruned_again_and_trained_on_with_gates(runs, prune_here, called):
    run = saved(runs, prune_here, "--reconstruct", "out")
    well(prune_here(run.path, "--reconstruct", "rescale", *FEW, "--heads", "2", "--save", "smallest"))
    (row,) = RunFolder.open(runs / "smallest").rows()
    assert (row.heads_open, row.heads_total) == (2, HEADS)
    words = [
        "--base",
        run.path,
        "--runs",
        runs,
        "--finetune.epochs",
        "1",
        "--systems",
        "base,l0",
        "--test-sentences",
        "17",
        "--precision",
        "32",
        "--set",
        "look_sentences=0",
    ]
    well(called(fit)(*words, "--gate", "l0", "--name", "gated-again"))
    rows = {row.system: row for row in RunFolder.open(runs / "gated-again").rows()}
    assert rows["base"].heads_open == 4
    assert rows["l0"].heads_open <= 4
    assert RunFolder.open(runs / "gated-again").config()["base_hash"] == run.run_hash()


def test_all_heads_may_go_and_all_may_stay(runs, base, prune_here):
    none = saved(runs, prune_here, "--reconstruct", "out", name="none", heads=0)
    assert none.rows()[0].heads_open == 0
    assert len(open_source(none.path).translator.translate(["The dog sleeps."], beam=1)) == 1
    whole = saved(runs, prune_here, "--reconstruct", "out", name="whole", heads=HEADS)
    assert whole.rows()[0].heads_open == HEADS
    pruned = whole.read_json("result.json")["pruned"]
    assert pruned["this_model"]["bleu_difference"] == 0
    assert open_source(whole.path).weights == open_source(base.path).weights


def test_neurons_close_to_a_multiple_of_16_a_layer_and_the_rest_is_a_run(runs, base, prune_here, called):
    words = ["--kinds", "ffn", "--by", "obs", "--reconstruct", "out", *FEW, "--save", "narrow"]
    out = well(prune_here(base.path, *words, "--neurons", "48"))
    run = RunFolder.open(runs / "narrow")
    (row,) = run.rows()
    assert (row.heads_open, row.neurons_open, row.neurons_total) == (HEADS, 48, 128)
    assert sum(row.neurons_by_site.values()) == 48
    assert not any(left % 16 for left in row.neurons_by_site.values())
    assert "6 of 6 heads and 48 of 128 feed-forward neurons" in out
    assert re.search(r"^base .* 128/128 .*^obs:out .* 48/128 ", out, re.MULTILINE | re.DOTALL)
    source = open_source(run.path, finished=True)
    assert row.parameters == base.rows()[0].parameters - 80 * (2 * source.model.config.d_model + 1)
    lines = source.lines("test", 17)[0]
    assert source.translator.translate(lines, beam=1) == run.outputs("base")
    out = well(called(export)(run.path, "--to", "ct2", "--fresh", "--sentences", "7"))
    assert "7 of 7" in out
    out = well(called(export)(run.path, "--to", "fairseq", "--sentences", "7"))
    assert "7 of 7" in out


def test_heads_and_neurons_have_a_number_each_and_a_table_of_both(base, prune_here):
    words = ["--kinds", "all", "--by", "importance", "--reconstruct", "out+ffn", *FEW]
    out = well(prune_here(base.path, *words, "--heads", "4", "--neurons", "39,16"))
    table = out[out.index("without training") :]
    assert re.findall(r"^importance:out\+ffn\s+(\d)\s+(\S+)", table, re.MULTILINE) == [
        ("4", "48/128"),
        ("4", "16/128"),
    ]


def test_several_numbers_are_a_table_and_leave_no_run(runs, base, prune_here):
    before = {path.name for path in runs.iterdir()}
    out = well(
        prune_here(
            base.path, "--by", "importance,weight-norm", "--ablation", "resample", *FEW, "--heads", "2,5"
        )
    )
    table = out[out.index("without training") :]
    for method in ("importance:resample", "weight-norm:resample"):
        assert re.findall(rf"^{method}\s+(\d)\s", table, re.MULTILINE) == ["5", "2"], "that of compare.py"
    assert {"BLEU", "chrF", "loss"} <= set(table.split())
    assert {path.name for path in runs.iterdir()} == before


def test_a_run_without_a_layer_says_which_are_left_and_is_pruned_as_any_other(tmp_path, prune_here):
    base = shutil.copytree(EXAMPLE, tmp_path / EXAMPLE.name)
    words = ["--drop-layers", "encoder.1", "--reconstruct", "out+ffn", *FEW]
    out = well(prune_here(base, *words))
    assert "With 40 of 48 heads and 1 of 2 encoder layers the model has" in out
    assert re.search(r"^layers:out\+ffn +40 +1\+2/2\+2 ", out, re.MULTILINE)
    well(prune_here(base, *words, "--heads", "32", "--save", "shallow"))
    run = RunFolder.open(tmp_path / "shallow")
    (row,), result = run.rows(), run.read_json("result.json")
    left = {"encoder": [True, False], "decoder": [True, True]}
    assert row.layers_left == result["pruned"]["layers_left"] == left
    assert (row.heads_open, row.heads_total) == (32, 40), "of the layers that it has"
    closed = HeadMap.from_json(result["pruned"]["closed"]).map(lambda row: row.bool())
    assert (closed.count(), closed["encoder.1.enc-self"].all()) == (16, True), "of the model that it was"
    assert (run.config()["model"]["encoder_layers"], run.config()["model"]["decoder_layers"]) == (1, 2)
    source = open_source(run.path, finished=True)
    assert sum(parameter.numel() for parameter in source.model.parameters()) == row.parameters
    assert source.translator.translate(source.lines("test", 17)[0], beam=1) == run.outputs("base")
    words = ["--drop-layers", "decoder.0", "--by", "obs-swap", "--sentences", "50", "--heads", "9"]
    out = well(prune_here(run.path, *words, *FEW[:4]))
    assert "With 9 of 40 heads, 1 of 2 encoder layers and 1 of 2 decoder layers" in out


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--reconstruct", "outt"], ["--reconstruct", "outt", "out"]),
        (["--save", "x", "--heads", "2", "--by", "importance,random"], ["--save keeps one model", "--by"]),
        (["--save", "x", "--heads", "2", "--ablation", "resample"], ["resample", "no model to --save"]),
        (["--save", "a/b", "--heads", "2"], ["--save: expected a plain name"]),
        (["--heads", "-1"], ["--heads: expected a number at least 0, got -1"]),
        (["--heads", "2", "--step", "0.2"], ["--step is for curves"]),
        (["--neurons", "16"], ["add --kinds ffn, or all for heads too"]),
        (["--kinds", "ffn", "--heads", "2"], ["give --neurons, or --kinds all"]),
        (["--kinds", "enc-ffn", "--ablate", "one"], ["curves and ablations are of heads"]),
        (["--kinds", "all", "--neurons", "16", "--by", "lrp"], ["--by lrp scores no feed-forward neurons"]),
        (["--kinds", "fnn", "--neurons", "16"], ["--kinds", "fnn", "did you mean 'ffn'"]),
        (["--drop-layers", "decoder.x"], ["--drop-layers decoder.x: expected layers such as encoder.2"]),
        (["--drop-layers", "decoder.0", "--by", "obs"], ["--by obs with --drop-layers: give --heads"]),
        (["--drop-layers", "decoder.0", "--ablate", "one"], ["--ablate is for", "with --drop-layers"]),
        (["--ablate", "one", "--ablation", "mean"], ["--ablate closes heads with zero"]),
        (
            ["--set", "calibration_sentences=9"],
            ["calibration_sentences is for mean, optimal, resample", "needs no text"],
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(prune_here, words, parts):
    code, _, error = prune_here("runs/a", *words)
    assert code == 2
    assert [part for part in parts if part not in error] == [], error


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--heads", "7"], ["--heads 7", "has 6 heads", "expected 0 to 6"]),
        (["--heads", "1", "--kinds", "cross"], ["--kinds cross", "keep 4 open", "expected 4 to 6"]),
        (["--drop-layers", "decoder.3"], ["the decoder has no layer 3: it has 1"]),
        (["--drop-layers", "decoder.0"], ["the decoder would have no layer left"]),
        (["--neurons", "129", "--kinds", "ffn"], ["--neurons 129", "128 feed-forward neurons", "0 to 128"]),
    ],
)
def test_numbers_of_heads_that_cannot_be_are_refused_before_anything_is_translated(
    base, prune_here, monkeypatch, words, parts
):
    monkeypatch.setattr(
        "headgates.models.translator.Translator.translate", lambda *_, **__: pytest.fail("translated")
    )
    code, _, error = prune_here(base.path, *words)
    assert code == 1
    assert [part for part in parts if part not in error] == [], error


def test_a_name_that_is_taken_is_refused_and_nothing_is_overwritten(runs, base, prune_here):
    taken = runs / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine", encoding="utf-8")
    code, _, error = prune_here(base.path, "--heads", "2", "--save", "taken")
    assert code == 1
    assert "is there already, and nothing is overwritten; give --save another name" in error
    assert [path.name for path in taken.iterdir()] == ["mine.txt"]
