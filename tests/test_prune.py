"""prune.py as its user meets it: every command on a tiny toy run, what it refuses and how, an interrupt, and
the second call."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from headgates.commands import prune
from headgates.gates import HeadMap
from headgates.records.folder import RunFolder
from headgates.records.row import ResultRow
from headgates.records.table import read_table
from tests.worlds.runs import assert_one_line, well

FEW = ["--set", "valid_sentences=19", "--test-sentences", "17"]
pytestmark = pytest.mark.usefixtures("as_if_learned")
SUFFIX = "-v19-t17"
HEADS = 6


@pytest.fixture
def prune_here(called):
    """prune_here(words...) -> (exit code, stdout, stderr)."""
    return called(prune)


# ---------------------------------------------------------------- curves


def test_of_a_model_that_learned_nothing_no_curve_says_what_closes(base, prune_here, monkeypatch):
    monkeypatch.setattr(ResultRow, "unlearned", "base has not learned its task")
    code, out, error = prune_here(base.path, *FEW, "--step", "1")
    assert (code, out.count("base has not learned its task.")) == (0, 1), error
    assert "without a significant loss" not in out
    assert "(+0.00)" not in out


def test_the_plain_command_leaves_scores_order_curve_and_figure(base, prune_here):
    out = well(prune_here(base.path, *FEW))
    name = f"importance{SUFFIX}"
    rows = read_table(base, f"curves/{name}.csv")
    assert [row["heads_closed"] for row in rows] == list(range(HEADS + 1))
    assert rows[-1]["heads_open"] == 0  # all heads closed: the model still runs
    assert 0 <= rows[-1]["test_bleu"] <= 100
    about = base.read_json(f"curves/{name}.json")
    assert about["finished"]
    assert {
        "command",
        "commit",
        "device",
        "versions",
        "chosen",
        "bleu_signature",
        "chrf_signature",
    } <= about.keys()
    order = HeadMap.load(base / f"curves/{name}-order.json")
    scores = HeadMap.load(base / "scores/importance.json").l2_per_layer()
    assert order.flat().tolist() == scores.flat().argsort(stable=True).argsort().double().tolist()
    for suffix in ("png", "svg"):
        assert (base / f"curves/{name}.{suffix}").stat().st_size > 1000
    assert f"{base.path}: the model without gates; results are written there" in out
    assert "without a significant loss on validation" in out
    assert f"{rows[0]['test_bleu']:.2f}" in out


def test_several_orders_make_several_curves_and_one_figure(base, prune_here):
    words = [
        "--by",
        "importance,ablation,random,weight-norm,reverse",
        "--set",
        "random_seeds=2",
        "--step",
        "0.5",
    ]
    well(prune_here(base.path, *words, *FEW))
    suffix = f"-step0.5{SUFFIX}"
    names = [
        f"importance{suffix}",
        f"ablation{suffix}",
        f"random-2seeds{suffix}",
        f"weight-norm{suffix}",
        f"reverse{suffix}",
    ]
    for name in names:
        rows = read_table(base, f"curves/{name}.csv")
        assert [row["heads_closed"] for row in rows] == [0, 3, 6] * (2 if "random" in name else 1)
    assert (base / f"curves/{'+'.join(names)}.png").is_file()
    assert {path.name for path in (base / "scores").glob("*.json")} >= {
        "importance.json",
        "ablation-v19.json",
        "random-seed1.json",
    }
    first, last = (HeadMap.load(base / f"curves/{name}-order.json").flat() for name in (names[0], names[-1]))
    assert (first + last == HEADS - 1).all()  # reverse


def test_each_kind_has_a_curve_of_its_own(base, prune_here):
    well(prune_here(base.path, "--by", "weight-norm", "--each-kind", "--step", "0.5", *FEW))
    for kind in ("enc-self", "dec-self", "cross"):
        rows = read_table(base, f"curves/weight-norm-step0.5{SUFFIX}-{kind}.csv")
        assert [row[kind] for row in rows] == [2, 1, 0]
        assert {
            row[other] for row in rows for other in ("enc-self", "dec-self", "cross") if other != kind
        } == {2}
    assert (base / f"curves/weight-norm-step0.5{SUFFIX}-by-kind.svg").is_file()


def test_the_gated_run_is_a_point_beside_the_curve_where_it_was_measured_alike(runs, base):
    from headgates.configs.prune import PruneConfig
    from headgates.pruning.unpruned_model import UnprunedModel

    (row,) = [
        row
        for row in RunFolder(runs / "toy-en-de-l0-0.01-s1").read_json("result.json")["rows"]
        if row["system"] == "l0"
    ]
    (point,) = UnprunedModel.open(PruneConfig(str(base.path), beam=2, test_sentences=23)).learned()
    assert (point["label"], point["heads_open"], point["bleu"]) == (
        "l0, λ 0.01",
        row["heads_open"],
        row["bleu"],
    )
    assert UnprunedModel.open(PruneConfig(str(base.path), beam=1, test_sentences=23)).learned() == []
    assert UnprunedModel.open(PruneConfig(str(base.path), beam=2, test_sentences=17)).learned() == []


def test_the_second_call_shows_the_curve_and_translates_nothing(base, prune_here, monkeypatch):
    words = [base.path, "--by", "weight-norm,random", "--set", "random_seeds=1", "--step", "0.5", *FEW]
    first = well(prune_here(*words))
    monkeypatch.setattr("headgates.models.translator.Translator.translate", None)
    second = well(prune_here(*words))
    assert "finished, same settings; --fresh repeats it" in second
    assert first[first.index("──") :] == second[second.index("──") :]


# ---------------------------------------------------------------- ablations


def test_every_head_removed_alone_is_a_table_and_a_figure(base, prune_here):
    out = well(prune_here(base.path, "--ablate", "one", *FEW))
    rows = read_table(base, "ablation/one.csv")
    assert len(rows) == HEADS
    assert {"bleu_difference", "p_value", "p_value_holm", "changed_share"} <= rows[0].keys()
    assert (base / "ablation/one.png").is_file()
    assert (base / "ablation/one.svg").is_file()
    assert "p (Holm)" in out
    assert not (base / "curves").exists()  # no order was asked for


@pytest.fixture
def other_text(tmp_path) -> Path:
    """Thirteen lines of the toy's own words as aligned files, and the three splits of a folder."""
    from headgates.data import load_corpus

    test = load_corpus("toy", src="en", tgt="de").valid
    folder = tmp_path / "other"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").write_text("".join(line + "\n" for line in test.sources[:13]))
        (folder / f"{split}.de").write_text("".join(line + "\n" for line in test.targets[:13]))
    return folder


def test_an_ablation_is_repeated_on_other_test_sets_and_correlated(base, prune_here, other_text):
    words = [
        "--ablate",
        "one",
        "--also",
        other_text,
        f"{other_text}/valid.en:{other_text}/valid.de",
        *FEW,
    ]
    out = well(prune_here(base.path, *words))
    for name in ("other", "other-valid"):
        assert len(read_table(base, f"ablation/transfer-{name}.csv")) == HEADS
        assert f"on {name}" in " ".join(out.split())
    assert "Pearson" in out


# ---------------------------------------------------------------- bad input


def change_config(run: Path, **changes: object) -> None:
    path = run / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def change_text(base: Path) -> None:
    result = json.loads((base / "result.json").read_text())
    assert len(result["data"]["text_digest"]) == 12
    result["data"]["text_digest"] = "0123456789ab"
    (base / "result.json").write_text(json.dumps(result))


BASE, GATED = "toy-en-de-none-s1", "toy-en-de-l0-0.01-s1"
BROKEN = {
    "no run": (
        BASE,
        lambda base, gated: base.rename(base.with_name("toy-en-de-none-s7")),
        ["no run at", "did you mean", "none-s7"],
    ),
    "base gone": (
        GATED,
        lambda base, gated: shutil.rmtree(base),
        ["the base of", "is not beside it", BASE, "--gate none"],
    ),
    "no base": (GATED, lambda base, gated: change_config(gated, base=None), ["names no base"]),
    "base made anew": (
        GATED,
        lambda base, gated: change_config(base, run_hash="01"),
        ["is not the base", "run_hash differs"],
    ),
    "unfinished": (
        BASE,
        lambda base, gated: (base / "result.json").unlink(),
        ["is not finished", "--resume"],
    ),
    "text changed": (
        BASE,
        lambda base, gated: change_text(base),
        ["is not what", "was trained on", "0123456789ab"],
    ),
    "text gone": (
        BASE,
        lambda base, gated: change_config(base, data="toyy"),
        ["no corpus named 'toyy'", "toy"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_run_that_cannot_be_pruned_is_one_line_that_says_why(runs, prune_here, case):
    name, damage, parts = BROKEN[case]
    change_config(runs / GATED, base=str(runs / BASE))
    damage(runs / BASE, runs / GATED)
    code, _, error = prune_here(runs / name)
    assert code == 1
    assert_one_line(error, *parts)


def test_a_corpus_that_the_vocabulary_cannot_encode_is_refused_before_anything_is_translated(
    base, prune_here, tmp_path, monkeypatch
):
    monkeypatch.setattr("headgates.models.translator.Translator.translate", None)
    monkeypatch.setattr("headgates.models.search.greedy_search", None)
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("Старая собака видит кошку.\nКошка спит.\n")
        (tmp_path / f"{split}.de").write_text("Der Hund schläft.\nDie Katze schläft.\n")
    code, _, error = prune_here(base.path, "--ablate", "one", "--also", tmp_path, *FEW)
    assert code == 1
    assert_one_line(error, "cannot encode", tmp_path.name, "source pieces are unknown", "from en to de")
    code, _, error = prune_here(
        base.path, "--ablate", "one", "--also", f"{tmp_path}/test.de:{tmp_path}/test.en", *FEW
    )
    assert code == 1
    assert_one_line(error, "cannot encode", "reference pieces are unknown")
