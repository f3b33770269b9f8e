"""The tables of ablations against a loop that closes heads by hand: of translations and of labels, in a model
in which one head matters, interrupted and repeated."""

import json
from dataclasses import replace

import pytest

from headgates.analysis.significance import Scored, compare, holm, resample_counts, score
from headgates.explain.ablation import ablate, least_resamples, significance_counts
from headgates.gates import HeadMap
from headgates.pruning import ablation
from headgates.records.source import Source
from headgates.records.table import TableRow, read_table
from tests.worlds.unpruned_model import head_masks, outputs

R = 211  # resamples


def table(source: Source, name: str = "one", **options) -> list[TableRow]:
    texts = {split: source.lines(split) for split in (("valid", "test") if name != "one" else ("test",))}
    options = {"kinds": None, "facts": {"seed": 5}, "resamples": R} | options
    return ablate(name, source, texts, **options)


@pytest.fixture(params=["beam 3", "labels"])
def dense(make_dense, labeller, request) -> Source:
    """The untrained model, that translates or gives labels."""
    return labeller() if request.param == "labels" else make_dense(beam=3)


def scored(dense: Source, closed: HeadMap, split: str = "test") -> Scored:
    """The slow way."""
    lines, references = dense.lines(split)
    return score(outputs(dense, closed, lines), references, dense.task.metrics)


def base_of(dense: Source, split: str = "test") -> Scored:
    return scored(dense, HeadMap({}), split)


def test_each_head_removed_alone_scores_as_in_a_loop_over_heads(dense):
    rows = table(dense)
    base, p_values = base_of(dense), []
    name, counts = base.main_name, resample_counts(len(dense.lines("test")[0]), R)
    for row, closed in zip(rows, head_masks(dense), strict=True):
        ((site, mask),) = closed.items()
        theirs = scored(dense, closed)
        compared = compare(theirs, base, counts)
        p_values.append(compared[f"{name}_p_value"])
        assert (row["site"], row["kind"], row["layer"], row["head"]) == (
            site.name,
            site.kind,
            site.layer,
            int(mask.int().argmax()),
        )
        for metric in base.metrics:
            ours = row[metric.name], row[f"{metric.name}_difference"]
            assert ours == pytest.approx((theirs[metric.name], theirs[metric.name] - base[metric.name]))
        assert [row["difference_low"], row["difference_high"]] == compared[f"{name}_difference_ci95"]
    assert [row["p_value"] for row in rows] == p_values
    assert [row["p_value_holm"] for row in rows] == holm(p_values)
    assert len({row[name] for row in rows}) > 2  # the heads do differ
    (made,) = (path.stem for path in (dense.folder / "ablation").glob("*.csv"))
    about = dense.folder.read_json(f"ablation/{made}.json")
    assert (about["base"], about["signatures"]) == (pytest.approx(base.values), base.signatures)
    assert read_table(dense.folder, f"ablation/{made}.csv") == rows
    assert (about["cache_key"]["resamples"], about["seed"]) == (R, 5)
    (dense.folder / f"ablation/{made}.json").unlink()  # as if interrupted: the statistics say the same
    assert table(dense) == rows


def test_in_a_model_in_which_one_head_matters_the_table_finds_that_head_alone(make_dense):
    dense = make_dense(planted=("decoder.1.cross", 2), share=0.0)
    rows = table(dense, resamples=None)  # with the resamples that Holm needs
    planted = [row for row in rows if row["p_value_holm"] < 0.01]
    assert [(row["site"], row["head"]) for row in planted] == [("decoder.1.cross", 2)]
    assert planted[0]["bleu_difference"] < -50
    for row in rows:
        if row is not planted[0]:
            assert (row["bleu_difference"], row["p_value"], row["changed_share"]) == (0, 1, 0)
    found = json.loads((dense.folder / "ablation/one.json").read_text())
    assert found["significant"]["holm"]["all"] == {"tested": 15, "significant": 1, "improve": 0}
    assert found["significant"]["raw"]["cross"] == {"tested": 6, "significant": 1, "improve": 0}
    assert found["significant"]["holm"]["enc-self"] == {"tested": 3, "significant": 0, "improve": 0}


class Interrupter:
    """Translates until so many calls were made, then is interrupted."""

    def __init__(self, monkeypatch, allowed: int | None):
        self.calls, self.allowed, self.translations = 0, allowed, ablation.ablated_translations
        monkeypatch.setattr(ablation, "ablated_translations", self)

    def __call__(self, *args, **kwargs):
        if self.calls == self.allowed:
            raise KeyboardInterrupt
        self.calls += 1
        return self.translations(*args, **kwargs)


def test_an_interrupted_table_goes_on_after_its_last_part_and_ends_the_same(make_dense, monkeypatch):
    dense, name = make_dense(beam=3), "one-beam3"
    whole = table(dense)
    for suffix in (".csv", ".json", "-outputs.json"):
        (dense.folder / f"ablation/{name}{suffix}").unlink()
    with monkeypatch.context() as patch:
        Interrupter(patch, allowed=2)
        with pytest.raises(KeyboardInterrupt):
            table(dense)
    assert not (dense.folder / f"ablation/{name}.json").exists()
    counter = Interrupter(monkeypatch, allowed=None)
    assert table(dense) == whole
    assert counter.calls == 3  # of five sites
    assert table(dense) == whole
    assert counter.calls == 3  # read from its file


def test_a_table_of_another_model_or_text_is_refused_unless_fresh(make_dense):
    dense = make_dense()
    table(dense)
    dense.corpus = replace(dense.corpus, test=dense.corpus.test.first(22))
    other = (
        r"ablation/one\.json was made with other text and sentences than this command; --fresh makes it anew"
    )
    with pytest.raises(ValueError, match=other):
        table(dense)
    table(dense, fresh=True)
    (dense.folder / "ablation/one.json").unlink()  # as if interrupted before the end
    with pytest.raises(
        ValueError, match=r"one-outputs\.json was made with other weights and text than this command"
    ):
        table(make_dense(seed=2))


def test_broken_outputs_are_named(make_dense):
    dense = make_dense()
    table(dense, kinds=["cross"])
    (dense.folder / "ablation/one-cross.json").unlink()
    path = dense.folder / "ablation/one-cross-outputs.json"
    for content in (b"", path.read_bytes()[:500]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"one-cross-outputs\.json.*--fresh"):
            table(dense, kinds=["cross"])


def test_each_layer_is_reduced_to_the_head_that_is_best_on_validation_and_reported_on_test(make_dense):
    dense = make_dense(beam=3)
    rows = table(dense, "all-but-one")
    base = {split: base_of(dense, split) for split in ("valid", "test")}
    name = base["test"].main_name
    found = {split: {} for split in base}
    for closed in head_masks(dense, others=True):
        ((site, mask),) = closed.items()
        for split, heads in found.items():
            heads.setdefault(site.name, {})[int(mask.int().argmin())] = scored(dense, closed, split).main
    assert [row["site"] for row in rows] == list(found["test"])
    for row in rows:
        valid, test = (heads[row["site"]] for heads in found.values())
        head, flattered = (max(heads, key=heads.get) for heads in (valid, test))
        assert (row["head"], row["on_test_head"]) == (head, flattered)
        assert row[f"valid_{name}"] == pytest.approx(valid[head])
        assert row[f"valid_{name}_difference"] == pytest.approx(valid[head] - base["valid"].main)
        assert (row[name], row[f"on_test_{name}"]) == pytest.approx((test[head], test[flattered]))
        assert row[f"{name}_difference"] == pytest.approx(test[head] - base["test"].main)
        assert row["difference_low"] <= row["difference_high"]
    if name == "bleu":
        assert any(row["head"] != row["on_test_head"] for row in rows)  # or one could be taken for the other
    assert [row["p_value_holm"] for row in rows] == holm([row["p_value"] for row in rows])


def test_more_heads_ask_for_more_resamples():
    assert [least_resamples(tests) for tests in (50, 72)] == [10_000, 14_400]


def test_significant_heads_are_counted_raw_and_adjusted_with_those_that_improve():
    rows = [
        {"kind": "cross", "p_value": 0.0001, "p_value_holm": 0.0004, "bleu_difference": -2.0},
        {"kind": "cross", "p_value": 0.004, "p_value_holm": 0.012, "bleu_difference": 0.3},
        {"kind": "enc-self", "p_value": 0.01, "p_value_holm": 0.02, "bleu_difference": -0.1},  # not below
        {"kind": "enc-self", "p_value": 0.5, "p_value_holm": 0.5, "bleu_difference": 0.1},
    ]
    found = significance_counts(rows, "bleu_difference")
    assert found["raw"]["all"] == {"tested": 4, "significant": 2, "improve": 1}
    assert found["holm"]["all"] == {"tested": 4, "significant": 1, "improve": 0}
    assert found["raw"]["enc-self"] == {"tested": 2, "significant": 0, "improve": 0}
