"""Correlation of one-head ablations on two test sets."""

import math

import pytest
from scipy import stats

from headgates.explain.ablation import ablate
from headgates.explain.transfer import correlate, correlate_kinds, transfer
from headgates.records.table import read_table

R = 211  # resamples
X, Y = [0.1, -2.0, 0.4, -0.3, 1.1, 0.0, -5.5], [0.3, -1.0, 0.2, -0.9, 0.8, 0.1, -1.1]


def pearson_by_hand(x, y):
    """r, and its p by Student's t with n - 2 degrees of freedom."""
    n, mean_x, mean_y = len(x), sum(x) / len(x), sum(y) / len(y)
    both = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    r = both / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return r, 2 * stats.t.sf(abs(r) * math.sqrt((n - 2) / (1 - r * r)), n - 2)


def ranks(values):
    return [sorted(values).index(value) + 1.0 for value in values]


def test_correlations_and_p_values_by_hand():
    found = correlate(X, Y)
    assert found["heads"] == 7
    assert found["pearson"] == pytest.approx(pearson_by_hand(X, Y))
    assert found["spearman"] == pytest.approx(pearson_by_hand(ranks(X), ranks(Y)))


@pytest.mark.parametrize(
    ("x", "y"),
    [([1.0, 2.0], [2.0, 3.0]), ([0.0, 0.0, 0.0], [1.0, 2.0, 3.0])],
)
def test_where_there_is_no_correlation_there_is_none(x, y):
    assert correlate(x, y) == {"heads": len(x), "pearson": None, "spearman": None}


def test_each_kind_has_a_correlation_of_its_own():
    rows = [
        {"kind": "cross" if i < 3 else "enc-self", "bleu_difference": x, "other_bleu_difference": y}
        for i, (x, y) in enumerate(zip(X, Y, strict=True))
    ]
    found = correlate_kinds(rows, "bleu_difference")
    assert found == {
        "all": correlate(X, Y),
        "cross": correlate(X[:3], Y[:3]),
        "enc-self": correlate(X[3:], Y[3:]),
    }


def transferred(dense, kinds=None):
    other = ("other", dense.lines("valid"))
    return transfer(dense, dense.lines("test"), other, kinds=kinds, facts={}, resamples=R)


def test_the_same_head_matters_on_both_test_sets_of_a_planted_model(make_dense):
    _, correlations = transferred(make_dense(planted=("decoder.1.cross", 2), share=0.0))
    assert correlations["all"]["heads"] == 15
    assert correlations["all"]["pearson"] == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    # no head of that kind does anything
    assert correlations["enc-self"] == {"heads": 3, "pearson": None, "spearman": None}


def test_rows_hold_both_tables_and_the_other_test_set_has_a_table_of_its_own(make_dense):
    dense, kinds, name = make_dense(), ["cross", "enc-self"], "ablation/transfer-other-enc-self+cross"
    rows, correlations = transferred(dense, kinds)
    there = read_table(dense.folder, "ablation/one-on-other-enc-self+cross.csv")
    here, as_there = (
        ablate("one", dense, {"test": dense.lines(split)}, kinds=kinds, facts={}, resamples=R, fresh=True)
        for split in ("test", "valid")
    )
    assert there == as_there
    for row, ours, theirs in zip(rows, here, there, strict=True):
        assert (row["site"], row["head"]) == (ours["site"], ours["head"])
        for column in ("bleu_difference", "p_value", "p_value_holm"):
            assert (row[column], row[f"other_{column}"]) == (ours[column], theirs[column])
    assert read_table(dense.folder, f"{name}.csv") == rows
    written = dense.folder.read_json(f"{name}.json")
    assert written["correlations"]["all"]["pearson"] == list(correlations["all"]["pearson"])
