"""BLEU, chrF and their bootstrap against sacreBLEU's own, McNemar's test against SciPy's, Holm's adjustment
against its definition, and levels where the truth is planted."""

import copy
import math
import random

import numpy as np
import pytest
import sacrebleu
from sacrebleu import metrics as sacre
from sacrebleu.significance import PairedTest
from scipy.stats import binomtest

from headgates.analysis import significance
from headgates.analysis.metrics import ACCURACY, BLEU, CHRF
from headgates.analysis.significance import (
    AT_ONCE,
    BOOTSTRAP_SEED,
    above_trivial,
    compare,
    compare_many,
    half_sample_p_values,
    holm,
    interval,
    p_value,
    resample_chunks,
    resample_counts,
    sacrebleu_p_value,
    score,
    score_changed,
    scored,
)

N, R = 97, 101  # sentences, resamples
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "the", "of", "Hund", ","]
RNG = random.Random(0)
REFERENCES = [" ".join(RNG.choice(WORDS) for _ in range(RNG.randint(1, 11))) for _ in range(N)]


def disturbed(references: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
        for line in references
    ]


BASELINE, SYSTEM = disturbed(REFERENCES, 0.3, 1), disturbed(REFERENCES, 0.35, 2)
BASE, COUNTS = score(BASELINE, REFERENCES), resample_counts(N, R)
CHANGED = [
    {},
    {3: "a b c d"},
    {i: text for i, text in enumerate(disturbed(BASELINE, 0.5, 2)) if i % 5 == 0},
    dict(enumerate(REFERENCES)),  # better everywhere
    dict.fromkeys(range(N), ""),  # nothing is left
]
OUTPUTS = [[changed.get(i, draft) for i, draft in enumerate(BASELINE)] for changed in CHANGED]


@pytest.mark.parametrize("rows", [1, 7, R, 1000])
def test_resamples_have_as_many_sentences_as_there_are_and_do_not_depend_on_their_chunks(rows, monkeypatch):
    monkeypatch.setattr(significance, "AT_ONCE", rows * N)
    chunks = list(resample_chunks(N, R))
    assert np.array_equal(np.concatenate(chunks), COUNTS)
    assert max(map(len, chunks)) == min(rows, R)
    assert (COUNTS.sum(axis=1) == N).all()
    assert not np.array_equal(COUNTS[0], COUNTS[1])


SHORT = ["a b c d e", "d e f g", "a b c d e f"]


@pytest.mark.parametrize(
    ("hypotheses", "references"),
    [
        (SYSTEM, REFERENCES),
        (["", "", ""], SHORT),
        (["a", "b", "c"], SHORT),  # no 2-grams
        (["a zz b zz c", "b yy d", ""], SHORT),  # 1-grams match, no 2-gram does
        (["a b c d e f g h of the , a b", "d e f g h a a a a", "a b c d e f g h"], SHORT),  # longer
    ],
)
def test_scores_of_lines_and_of_resampled_lines_are_sacrebleus(hypotheses, references):
    ours, lines = score(hypotheses, references), np.arange(len(references))
    assert ours.signatures["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    counts = np.concatenate([np.ones((1, len(lines))), resample_counts(len(lines), 3)])
    for metric, theirs in ((BLEU, sacrebleu.corpus_bleu), (CHRF, sacrebleu.corpus_chrf)):
        assert ours[metric.name] == theirs(hypotheses, [references]).score
        found = metric.resampled(counts @ ours.statistics[metric.name])
        for value, row in zip(found, counts.astype(int), strict=True):
            some = np.repeat(lines, row)
            system, gold = [hypotheses[i] for i in some], [references[i] for i in some]
            assert value == pytest.approx(theirs(system, [gold]).score, abs=1e-9)


def test_intervals_and_sacrebleus_own_p_value_equal_its_paired_bootstrap():
    metrics = {name: getattr(sacre, name)(references=[REFERENCES]) for name in ("BLEU", "CHRF")}
    named = [("baseline", BASELINE), ("system", SYSTEM)]
    _, theirs = PairedTest(named, metrics, None, test_type="bs", n_samples=R)()
    ours = compare(score(SYSTEM, REFERENCES), BASE, COUNTS)
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF2")):
        result = theirs[label][1]
        assert ours[f"{name}_p_sacrebleu"] == pytest.approx(result.p_value, abs=1e-12)
        low, high = ours[f"{name}_ci95"]
        assert (high - low) / 2 == pytest.approx(result.ci, rel=1e-6)  # sacreBLEU keeps its samples in fp32
        assert ours[f"{name}_difference"] == pytest.approx(result.score - theirs[label][0].score, abs=1e-9)
    assert interval(np.arange(1000.0)) == [25, 974]


def test_the_p_values_count_centred_differences_on_both_sides_and_centred_sizes_on_one():
    system, reference = np.array([-3.0, 5.0, 2.0, 2.0, 4.0]), np.zeros(5)  # mean 2: centred -5, 3, 0, 0, 2
    for difference, larger in ((3.0, 2), (-3.0, 2), (2.0, 3), (5.1, 0)):  # as large counts
        assert p_value(system, reference, difference) == pytest.approx((larger + 1) / (5 + 1))
    # sizes have the mean 2.5: only 5 - 2.5 is above 2
    assert sacrebleu_p_value(np.array([1.0, -5.0, 2.0, 2.0]), np.zeros(4), 2.0) == pytest.approx(2 / 5)


def test_a_true_null_is_rejected_at_the_level_and_by_sacrebleus_p_about_twice_as_often():
    """1,000 comparisons of two systems that are alike: each line of each is sampled from the same outputs."""
    pool = np.stack([BLEU.statistics(disturbed(REFERENCES, 0.3, seed), REFERENCES) for seed in range(12)])
    rng, counts, found = np.random.default_rng(0), resample_counts(N, 200), []
    for _ in range(1000):
        alike = (pool[rng.integers(12, size=N), np.arange(N)] for _ in range(2))
        found.append(compare(*(scored({"bleu": each}, [BLEU]) for each in alike), counts))
    p, theirs = (np.array([each[f"bleu_{name}"] for each in found]) for name in ("p_value", "p_sacrebleu"))
    for level in (0.01, 0.05, 0.1, 0.5):
        # chance, and what 200 resamples add
        assert abs((p <= level).mean() - level) < 3 * math.sqrt(level * (1 - level) / 1000) + 0.005
    assert 0.075 < (theirs <= 0.05).mean() < 0.14
    assert theirs.max() < 0.6 < 0.95 < p.max()  # two-sided ones go up to 1


# --- many systems


@pytest.mark.parametrize(("changed", "outputs"), list(zip(CHANGED, OUTPUTS, strict=True)))
def test_scoring_the_changed_lines_alone_equals_scoring_all_and_leaves_the_base(
    changed, outputs, monkeypatch
):
    before, seen, theirs = copy.deepcopy(BASE.statistics), [], score(outputs, REFERENCES)
    monkeypatch.setattr(significance, "score", lambda lines, *rest: seen.extend(lines) or score(lines, *rest))
    ours = score_changed(BASE, BASELINE, {5: BASELINE[5]} | changed, REFERENCES)
    assert seen == [line for line, draft in zip(outputs, BASELINE, strict=True) if line != draft]
    assert ours.values == theirs.values
    for name, rows in theirs.statistics.items():
        assert np.array_equal(ours.statistics[name], rows)
        assert np.array_equal(BASE.statistics[name], before[name])


@pytest.mark.parametrize("draws", [AT_ONCE, 13 * N])  # all resamples at once; 13 at a time
def test_many_systems_give_to_the_last_digit_what_each_gives_alone(draws, monkeypatch):
    monkeypatch.setattr(significance, "AT_ONCE", draws)
    systems = [score(outputs, REFERENCES) for outputs in OUTPUTS]
    many = compare_many(systems, BASE, resamples=R)
    for system, found in zip(systems, many, strict=True):
        alone = compare(system, BASE, COUNTS)
        assert found == {name: value for name, value in alone.items() if name.startswith("bleu")}
    assert [many[i]["bleu_p_value"] for i in (0, 3)] == [1, pytest.approx(1 / (R + 1))]  # alike, and perfect
    assert many[0]["bleu_p_sacrebleu"] == 1
    assert many[0]["bleu_difference_ci95"] == [0, 0]


def test_the_share_of_lost_half_samples_is_that_of_a_loop():
    systems = [score(outputs, REFERENCES) for outputs in OUTPUTS[:3]]
    lost = [[] for _ in systems]
    for lines in np.random.default_rng(BOOTSTRAP_SEED).choice(N, size=(20, N // 2), replace=True):
        gold = [[REFERENCES[i] for i in lines]]
        bleu, *ours = (
            sacrebleu.corpus_bleu([outputs[i] for i in lines], gold, force=True).score
            for outputs in (BASELINE, *OUTPUTS[:3])
        )
        for losses, system, each in zip(lost, systems, ours, strict=True):
            losses.append(np.sign(system.main - BASE.main) * (each - bleu) <= 0)
    assert half_sample_p_values(systems, BASE, resamples=20) == pytest.approx(np.mean(lost, axis=1))


@pytest.mark.parametrize(("lines", "p"), [(1, 1.0), (3, 0.25), (5, 0.0625)])
def test_a_few_sentences_show_no_more_than_chance_may_do_on_them(lines, p):
    better, worse = (score([word] * lines, ["a"] * lines, (ACCURACY,)) for word in "ab")
    assert compare(better, worse, resample_counts(lines, 1000))["accuracy_p_value"] == p


def test_holm_equals_its_step_down_definition_and_equal_p_values_stay_equal():
    assert holm([0.5, 0.01, 0.01, 1.0]) == pytest.approx([1.0, 0.04, 0.04, 1.0])
    assert holm([]) == []
    for m in (1, 7, 73):
        p = [RNG.random() ** 3 for _ in range(m)]
        ranked = sorted(p)
        slow = [min(1.0, max((m - j) * ranked[j] for j in range(ranked.index(each) + 1))) for each in p]
        assert holm(p) == pytest.approx(slow)


# --- right or wrong lines


@pytest.mark.parametrize("alone", [(0, 0), (0, 1), (1, 1), (3, 9), (9, 3), (1100, 1023)])
def test_mcnemars_p_is_that_of_the_binomial_test_and_stands_beside_the_bootstrap(alone):
    rows = (np.repeat(row, (*alone, 7, 5)) for row in ((1, 0, 1, 0), (0, 1, 1, 0)))
    system, base = (scored({"accuracy": np.c_[row, row**0]}, [ACCURACY]) for row in rows)
    expected = binomtest(alone[0], sum(alone), 0.5).pvalue if sum(alone) else 1.0
    found = compare(system, base, resample_counts(len(base), R))
    assert found["accuracy_p_mcnemar"] == pytest.approx(expected)
    assert compare_many([system], base, resamples=R) == [found]
    assert not any("mcnemar" in name for name in compare(BASE, BASE, COUNTS))
    assert score(["yes", "no"], ["yes", "yes"], [ACCURACY]).main == 50


def test_lines_that_do_not_pair_up_are_refused():
    for references in (["a", "b"], []):
        with pytest.raises(ValueError, match="as many hypotheses as references, at least one; got"):
            score(references[1:], references)
    with pytest.raises(ValueError, match=f"drafts and references of {N} lines, got {N - 1} and {N}"):
        score_changed(BASE, BASELINE[1:], {}, REFERENCES)


def test_a_model_that_learned_nothing_passes_as_learned_at_most_as_often_as_planted():
    """Labels drawn without a look at the source: the interval leaves 0 out in 2.5% of the draws at most."""
    rng, lines = np.random.default_rng(0), 60
    draws = [(rng.random((2, lines)) < 0.5).astype(int).astype(str).tolist() for _ in range(200)]
    passed = sum(above_trivial(*draw, ACCURACY)[0] > 0 for draw in draws)
    assert passed <= 11  # 3 standard errors above 5


LABELS = ["yes"] * 80 + ["no"] * 20
FEW = [f"line {number}" for number in range(4)]


@pytest.mark.parametrize(
    ("outputs", "references", "learned"),
    [
        (SYSTEM, REFERENCES, True),
        ([REFERENCES[0]] * N, REFERENCES, False),  # always the same
        ([*REFERENCES[7:], *REFERENCES[:7]], REFERENCES, False),  # good sentences, of other lines
        (disturbed(REFERENCES, 0.97, 3), REFERENCES, False),
        (["yes"] * 100, LABELS, False),  # the majority class
        ([*LABELS[:90], *["yes"] * 10], LABELS, True),
        (FEW, FEW, True),
    ],
)
def test_outputs_that_ignore_the_source_are_not_learned(outputs, references, learned):
    metric = BLEU if references is REFERENCES else ACCURACY
    assert (above_trivial(outputs, references, metric)[0] > 0) is learned


def test_of_a_few_lines_that_no_model_could_pass_nothing_is_said():
    assert above_trivial(FEW[:3], FEW[:3], ACCURACY) is None
