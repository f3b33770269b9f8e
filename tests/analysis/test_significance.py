"""BLEU, chrF and their bootstrap against sacreBLEU's own."""

import math
import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics import BLEU as SacreBLEU
from sacrebleu.metrics import CHRF as SacreCHRF
from sacrebleu.significance import PairedTest

from headgates.analysis.metrics import BLEU, CHRF
from headgates.analysis.significance import (
    compare,
    interval,
    p_value,
    resample_counts,
    sacrebleu_p_value,
    score,
    scored,
)

N, R = 97, 101  # sentences, resamples
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "the", "of", "Hund", ","]


def lines(rng: random.Random) -> list[str]:
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 11))) for _ in range(N)]


def disturbed(references: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
        for line in references
    ]


REFERENCES = lines(random.Random(0))
NULL_COUNTS = resample_counts(N, 200)
BASELINE, SYSTEM = disturbed(REFERENCES, 0.3, 1), disturbed(REFERENCES, 0.35, 2)


def chosen(row: np.ndarray, values: list[str]) -> list[str]:
    return [value for value, count in zip(values, row.astype(int), strict=True) for _ in range(count)]


def test_every_resample_draws_as_many_sentences_as_there_are():
    counts = resample_counts(N, R)
    assert counts.shape == (R, N)
    assert (counts.sum(axis=1) == N).all()
    assert not np.array_equal(counts[0], counts[1])
    assert np.array_equal(counts, resample_counts(N, R))


def test_scores_and_signatures_are_sacrebleus():
    ours = score(SYSTEM, REFERENCES)
    assert ours["bleu"] == sacrebleu.corpus_bleu(SYSTEM, [REFERENCES]).score
    assert ours["chrf"] == sacrebleu.corpus_chrf(SYSTEM, [REFERENCES]).score
    assert ours.signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert ours.signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_resampled_bleu_and_chrf_equal_scoring_the_resampled_lines():
    scored, counts = score(SYSTEM, REFERENCES), resample_counts(N, 7)
    bleu, chrf = (
        BLEU.resampled(counts @ scored.statistics["bleu"]),
        CHRF.resampled(counts @ scored.statistics["chrf"]),
    )
    for i, row in enumerate(counts):
        hypotheses, references = chosen(row, SYSTEM), chosen(row, REFERENCES)
        assert bleu[i] == pytest.approx(
            sacrebleu.corpus_bleu(hypotheses, [references], force=True).score, abs=1e-9
        )
        assert chrf[i] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score, abs=1e-9)


@pytest.mark.parametrize(
    "hypotheses",
    [
        ["", "", ""],
        ["zzz yyy xxx www vvv", "uuu", "ttt sss"],  # no match at all
        ["a", "b", "c"],  # no 2-grams
        ["a b", "", "zz"],  # no 3-grams, an empty line
        ["a zz b zz c", "b yy d", "c a"],  # 1-grams match, no 2-gram does
        ["a b c d", "d e f g h", "a b c zz e f g"],
        [
            "a b c d e f g h of the , a b",
            "d e f g h a a a a",
            "a b c d e f g h",
        ],  # longer than the references
    ],
)
def test_edge_cases_equal_sacrebleu(hypotheses):
    references = ["a b c d e", "d e f g", "a b c d e f"]
    scored = score(hypotheses, references)
    assert BLEU.resampled(scored.statistics["bleu"].sum(0, keepdims=True))[0] == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references], force=True).score, abs=1e-12
    )
    assert CHRF.resampled(scored.statistics["chrf"].sum(0, keepdims=True))[0] == pytest.approx(
        sacrebleu.corpus_chrf(hypotheses, [references]).score, abs=1e-12
    )


def test_intervals_and_sacrebleus_own_p_value_equal_its_paired_bootstrap():
    metrics = {"BLEU": SacreBLEU(references=[REFERENCES]), "chrF": SacreCHRF(references=[REFERENCES])}
    named = [("baseline", BASELINE), ("system", SYSTEM)]
    _, theirs = PairedTest(named, metrics, None, test_type="bs", n_samples=R)()
    ours = compare(score(SYSTEM, REFERENCES), score(BASELINE, REFERENCES), resample_counts(N, R))
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF2")):
        result = theirs[label][1]
        assert ours[f"{name}_p_sacrebleu"] == pytest.approx(result.p_value, abs=1e-12)
        low, high = ours[f"{name}_ci95"]
        assert (high - low) / 2 == pytest.approx(result.ci, rel=1e-6)  # sacreBLEU keeps its samples in fp32
        assert ours[f"{name}_difference"] == pytest.approx(result.score - theirs[label][0].score, abs=1e-9)


def test_a_difference_has_the_sign_of_system_minus_reference_and_lies_in_its_interval():
    found = compare(score(SYSTEM, REFERENCES), score(BASELINE, REFERENCES), resample_counts(N, R))
    assert found["bleu_difference"] < 0
    low, high = found["bleu_difference_ci95"]
    assert low <= found["bleu_difference"] <= high


def test_identical_systems_differ_by_nothing_with_p_one():
    found = compare(score(SYSTEM, REFERENCES), score(SYSTEM, REFERENCES), resample_counts(N, R))
    assert found["bleu_difference"] == found["chrf_difference"] == 0
    assert [found[f"{name}_{p}"] for name in ("bleu", "chrf") for p in ("p_value", "p_sacrebleu")] == [
        1,
        1,
        1,
        1,
    ]
    assert found["bleu_difference_ci95"] == [0, 0]


def test_a_perfect_system_differs_significantly_from_a_poor_one():
    found = compare(
        score(REFERENCES, REFERENCES), score(disturbed(REFERENCES, 0.9, 3), REFERENCES), resample_counts(N, R)
    )
    assert found["bleu_p_value"] == pytest.approx(1 / (R + 1))


def test_the_interval_holds_the_middle_95_percent():
    assert interval(np.arange(1000.0)) == [25, 974]


def test_the_p_value_counts_the_centred_differences_on_both_sides():
    system, reference = np.array([-3.0, 5.0, 2.0, 2.0, 4.0]), np.zeros(5)  # mean 2: centred -5, 3, 0, 0, 2
    assert (
        p_value(system, reference, 3.0)
        == p_value(system, reference, -3.0)
        == pytest.approx((2 + 1) / (5 + 1))
    )
    assert p_value(system, reference, 2.0) == pytest.approx((3 + 1) / (5 + 1))  # as large counts
    assert p_value(system, reference, 5.1) == pytest.approx(1 / (5 + 1))


def test_sacrebleus_p_value_counts_the_centred_sizes_on_one_side():
    system, reference = (
        np.array([1.0, -5.0, 2.0, 2.0]),
        np.zeros(4),
    )  # sizes have the mean 2.5: only 5 - 2.5 is above 2
    assert sacrebleu_p_value(system, reference, 2.0) == pytest.approx((1 + 1) / (4 + 1))


@pytest.fixture(scope="module")
def null_p_values() -> dict[str, np.ndarray]:
    """Both p-values of BLEU in 1,000 comparisons of two systems that are alike: each line of each is drawn
    from the same outputs."""
    outputs = [BLEU.statistics(disturbed(REFERENCES, 0.3, seed), REFERENCES) for seed in range(12)]
    pool, rng, found = np.stack(outputs), np.random.default_rng(0), {"p_value": [], "p_sacrebleu": []}
    for _ in range(1000):
        system, reference = (pool[rng.integers(len(pool), size=N), np.arange(N)] for _ in range(2))
        compared = compare(scored({"bleu": system}, [BLEU]), scored({"bleu": reference}, [BLEU]), NULL_COUNTS)
        for name, values in found.items():
            values.append(compared[f"bleu_{name}"])
    return {name: np.array(values) for name, values in found.items()}


@pytest.mark.parametrize("level", [0.01, 0.05, 0.1, 0.5])
def test_a_true_null_is_rejected_at_the_level_of_the_test(null_p_values, level):
    rejected = (null_p_values["p_value"] <= level).mean()
    assert (
        abs(rejected - level) < 3 * math.sqrt(level * (1 - level) / 1000) + 0.005
    )  # chance, and what 200 resamples add


def test_sacrebleus_p_value_rejects_a_true_null_about_twice_as_often_as_it_says(null_p_values):
    assert 0.075 < (null_p_values["p_sacrebleu"] <= 0.05).mean() < 0.14
    assert null_p_values["p_sacrebleu"].max() < 0.6  # two-sided ones go up to 1
    assert null_p_values["p_value"].max() > 0.95


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_lines_that_do_not_pair_up_are_refused(hypotheses, references):
    with pytest.raises(
        ValueError,
        match=f"as many hypotheses as references, at least one; got {len(hypotheses)} and {len(references)}",
    ):
        score(hypotheses, references)
