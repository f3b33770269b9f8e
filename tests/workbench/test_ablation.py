"""The tables of ablations against a loop that closes heads by hand, in a model in which one head matters,
interrupted and repeated."""

import json

import numpy as np
import pytest
import torch

from headgates.analysis.significance import compare, holm, resample_counts, score
from headgates.workbench import ablated_stats
from headgates.workbench.ablation import (
    ablate_all_but_one,
    ablate_one,
    least_resamples,
    significance_counts,
)
from headgates.workbench.table import read_table

R = 211  # resamples
QUIET = {"report": lambda line: None}


def without(translator, site, heads, lines):
    """Translations of a model whose W_O has no columns of these heads: the slow way, without gates."""
    weight = translator.sites[site].out_proj.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.unflatten(1, (site.heads, -1))[:, heads] = 0
    hypotheses = translator.translate(lines)
    with torch.no_grad():
        weight.copy_(before)
    return hypotheses


def head_loop(dense, lines, *, others: bool):
    """Translations for every head: without it, or without the others of its site."""
    for site in sorted(dense.translator.sites):
        for head in range(site.heads):
            closed = [h for h in range(site.heads) if h != head] if others else [head]
            yield site, head, without(dense.translator, site, closed, lines)


@pytest.mark.parametrize("beam", [1, 3])
def test_each_head_removed_alone_scores_as_in_a_loop_over_heads(make_dense, beam):
    dense = make_dense(beam=beam)
    rows = ablate_one(dense, kinds=None, resamples=R, **QUIET)
    sources, references = dense.test
    drafts, counts, p_values = dense.translator.translate(sources), resample_counts(len(sources), R), []
    base = score(drafts, references)
    for row, (site, head, hypotheses) in zip(rows, head_loop(dense, sources, others=False), strict=True):
        theirs = score(hypotheses, references)
        compared = compare(theirs, base, counts)
        p_values.append(compared["bleu_p_value"])
        assert (row["site"], row["kind"], row["layer"], row["head"]) == (
            site.name,
            site.kind,
            site.layer,
            head,
        )
        assert (row["bleu"], row["chrf"]) == (theirs["bleu"], theirs["chrf"])
        assert row["bleu_difference"] == theirs["bleu"] - base["bleu"]
        assert row["chrf_difference"] == theirs["chrf"] - base["chrf"]
        assert [row["difference_low"], row["difference_high"]] == compared["bleu_difference_ci95"]
        assert row["p_value"] == compared["bleu_p_value"]
        assert row["changed_share"] == np.mean(
            [ours != draft for ours, draft in zip(hypotheses, drafts, strict=True)]
        )
    assert [row["p_value_holm"] for row in rows] == holm(p_values)
    assert len({row["bleu"] for row in rows}) > 5  # the heads do differ


def test_in_a_model_in_which_one_head_matters_the_table_finds_that_head_alone(make_dense):
    dense = make_dense(planted=("decoder.1.cross", 2), share=0.0)
    rows = ablate_one(dense, kinds=None, **QUIET)  # with the resamples that Holm needs
    planted = [row for row in rows if row["p_value_holm"] < 0.01]
    assert [(row["site"], row["head"]) for row in planted] == [("decoder.1.cross", 2)]
    assert planted[0]["bleu_difference"] < -50
    for row in rows:
        if row is not planted[0]:
            assert (row["bleu_difference"], row["chrf_difference"], row["p_value"], row["changed_share"]) == (
                0,
                0,
                1,
                0,
            )
    found = json.loads((dense.folder / "ablation/one.json").read_text())
    assert found["significant"]["holm"]["all"] == {"tested": 15, "significant": 1, "improve": 0}
    assert found["significant"]["raw"]["cross"] == {"tested": 6, "significant": 1, "improve": 0}
    assert found["significant"]["holm"]["enc-self"] == {"tested": 3, "significant": 0, "improve": 0}


def test_files_hold_rows_settings_signatures_provenance_and_statistics(make_dense):
    dense = make_dense()
    rows = ablate_one(dense, kinds=None, resamples=R, **QUIET)
    assert read_table(dense.folder, "ablation/one.csv") == rows
    found = json.loads((dense.folder / "ablation/one.json").read_text())
    base = score(dense.translator.translate(dense.test[0]), dense.test[1])
    assert found["base"] == {"bleu": base["bleu"], "chrf": base["chrf"]}
    assert found["signatures"] == base.signatures
    assert found["cache_key"]["resamples"] == R
    assert found["cache_key"]["search"]["beam"] == 1
    assert found["command"] == "python prune.py"
    assert found["changed_share"] == pytest.approx(np.mean([row["changed_share"] for row in rows]))
    kept = json.loads((dense.folder / "ablation/one-outputs.json").read_text())
    assert len(kept["changed"]) == len(rows)
    lines = dict(enumerate(kept["drafts"])) | dict(kept["changed"][7])
    site, head, hypotheses = list(head_loop(dense, dense.test[0], others=False))[7]
    assert list(lines.values()) == hypotheses, (site, head)


class Interrupter:
    """Translates until so many calls were made, then is interrupted."""

    def __init__(self, monkeypatch, allowed: int | None):
        self.calls, self.allowed, self.translations = 0, allowed, ablated_stats.ablated_translations
        monkeypatch.setattr(ablated_stats, "ablated_translations", self)

    def __call__(self, *args, **kwargs):
        if self.calls == self.allowed:
            raise KeyboardInterrupt
        self.calls += 1
        return self.translations(*args, **kwargs)


@pytest.mark.parametrize("beam", [1, 3])
def test_an_interrupted_table_goes_on_after_its_last_part_and_ends_the_same(make_dense, monkeypatch, beam):
    dense = make_dense(beam=beam)
    name = "one" if beam == 1 else "one-beam3"
    whole = ablate_one(dense, kinds=None, resamples=R, **QUIET)
    for suffix in (".csv", ".json", "-outputs.json"):
        (dense.folder / f"ablation/{name}{suffix}").unlink()
    with monkeypatch.context() as patch:
        Interrupter(patch, allowed=2)
        with pytest.raises(KeyboardInterrupt):
            ablate_one(dense, kinds=None, resamples=R, **QUIET)
    assert not (dense.folder / f"ablation/{name}.json").exists()
    counter = Interrupter(monkeypatch, allowed=None)
    assert ablate_one(dense, kinds=None, resamples=R, **QUIET) == whole
    assert counter.calls == (1 if beam == 1 else 3)  # of three kinds, or of five sites
    assert ablate_one(dense, kinds=None, resamples=R, **QUIET) == whole
    assert counter.calls == (1 if beam == 1 else 3)  # read from its file


def test_a_table_of_another_model_or_text_is_refused_unless_fresh(make_dense):
    dense = make_dense()
    ablate_one(dense, kinds=None, resamples=R, **QUIET)
    with pytest.raises(
        ValueError,
        match=r"ablation/one\.json was made with other resamples than this command; --fresh makes it anew",
    ):
        ablate_one(dense, kinds=None, resamples=R + 1, **QUIET)
    dense.test = (dense.test[0][1:], dense.test[1][1:])
    with pytest.raises(ValueError, match="was made with other text and sentences than this command"):
        ablate_one(dense, kinds=None, resamples=R, **QUIET)
    ablate_one(dense, kinds=None, resamples=R, fresh=True, **QUIET)
    (dense.folder / "ablation/one.json").unlink()  # as if interrupted before the end
    other = make_dense(seed=2)
    with pytest.raises(
        ValueError, match=r"one-outputs\.json was made with other weights and text than this command"
    ):
        ablate_one(other, kinds=None, resamples=R, **QUIET)
    assert ablate_one(other, kinds=None, resamples=R, fresh=True, **QUIET)


def test_broken_outputs_are_named(make_dense):
    dense = make_dense()
    ablate_one(dense, kinds=["cross"], resamples=R, **QUIET)
    (dense.folder / "ablation/one-cross.json").unlink()
    path = dense.folder / "ablation/one-cross-outputs.json"
    for content in (b"", b"not JSON", path.read_bytes()[:500]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"one-cross-outputs\.json.*--fresh"):
            ablate_one(dense, kinds=["cross"], resamples=R, **QUIET)


def test_each_layer_is_reduced_to_the_head_that_is_best_on_validation_and_reported_on_test(make_dense):
    dense = make_dense()
    rows = ablate_all_but_one(dense, kinds=None, resamples=R, **QUIET)
    bleu = {}
    for split in ("valid", "test"):
        sources, references = getattr(dense, split)
        for site, head, hypotheses in head_loop(dense, sources, others=True):
            bleu[split, site.name, head] = score(hypotheses, references)["bleu"]
    base = {
        split: score(dense.translator.translate(text[0]), text[1])
        for split, text in (("valid", dense.valid), ("test", dense.test))
    }
    assert [row["site"] for row in rows] == [site.name for site in sorted(dense.translator.sites)]
    for row in rows:
        head = max(range(3), key=lambda head: bleu["valid", row["site"], head])
        flattered = max(range(3), key=lambda head: bleu["test", row["site"], head])
        assert (row["head"], row["on_test_head"]) == (head, flattered)
        assert row["valid_bleu"] == bleu["valid", row["site"], head]
        assert row["valid_bleu_difference"] == row["valid_bleu"] - base["valid"]["bleu"]
        assert row["bleu"] == bleu["test", row["site"], head]
        assert row["bleu_difference"] == row["bleu"] - base["test"]["bleu"]
        assert row["on_test_bleu"] == bleu["test", row["site"], flattered] >= row["bleu"]
        assert row["on_test_bleu_difference"] == row["on_test_bleu"] - base["test"]["bleu"]
        assert row["difference_low"] <= row["difference_high"]
        if head == flattered:
            assert row["on_test_p_value"] == row["p_value"]
    assert any(
        row["head"] != row["on_test_head"] for row in rows
    )  # or the test would not see one taken for the other
    assert [row["p_value_holm"] for row in rows] == holm([row["p_value"] for row in rows])
    assert read_table(dense.folder, "ablation/all-but-one.csv") == rows
    found = json.loads((dense.folder / "ablation/all-but-one.json").read_text())
    assert "selection on test" in found["on_test"]
    assert found["base"]["valid"]["bleu"] == base["valid"]["bleu"]
    assert found["bleu_of_every_head"]["test"]["decoder.1.cross"][2] == bleu["test", "decoder.1.cross", 2]


def test_a_layer_whose_one_head_matters_is_reduced_to_it_without_loss(make_dense):
    dense = make_dense(planted=("decoder.0.cross", 1), share=0.0)
    row = next(
        row for row in ablate_all_but_one(dense, kinds=["cross"], **QUIET) if row["site"] == "decoder.0.cross"
    )
    assert (row["head"], row["bleu_difference"], row["p_value"], row["bleu"]) == (1, 0, 1, pytest.approx(100))


@pytest.mark.parametrize(("tests", "resamples"), [(50, 10_000), (72, 14_400)])
def test_more_heads_ask_for_more_resamples(tests, resamples):
    assert least_resamples(tests) == resamples


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
