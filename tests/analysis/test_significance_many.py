"""Many systems against one: the same numbers as one by one, in little memory; and Holm's adjustment."""

import random

import numpy as np
import pytest
import sacrebleu

from headgates.analysis import significance
from headgates.analysis.significance import (
    AT_ONCE,
    SEED,
    compare,
    compare_many,
    half_sample_p_values,
    holm,
    resample_chunks,
    resample_counts,
    score,
    score_changed,
)

N, R = 97, 101  # sentences, resamples
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "the", "of", "Hund", ","]


def make_lines(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 11))) for _ in range(N)]


def disturbed(lines: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < share else word for word in line.split())
        for line in lines
    ]


REFERENCES = make_lines(0)
DRAFTS = disturbed(REFERENCES, 0.3, 1)
CHANGED = [
    {},
    {3: "a b c d"},
    {i: text for i, text in enumerate(disturbed(DRAFTS, 0.5, 2)) if i % 5 == 0},
    dict(enumerate(REFERENCES)),  # better everywhere
    dict.fromkeys(range(N), ""),  # nothing is left
    {i: REFERENCES[i] for i in range(0, N, 7)},
]


def written_out(changed: dict[int, str]) -> list[str]:
    return [changed.get(i, draft) for i, draft in enumerate(DRAFTS)]


@pytest.mark.parametrize("changed", CHANGED)
def test_scoring_the_changed_lines_alone_equals_scoring_all(changed):
    ours = score_changed(score(DRAFTS, REFERENCES), DRAFTS, changed, REFERENCES)
    theirs = score(written_out(changed), REFERENCES)
    assert (ours["bleu"], ours["chrf"], ours.signatures) == (
        theirs["bleu"],
        theirs["chrf"],
        theirs.signatures,
    )
    assert np.array_equal(ours.statistics["bleu"], theirs.statistics["bleu"])
    assert np.array_equal(ours.statistics["chrf"], theirs.statistics["chrf"])


def test_only_lines_that_differ_from_their_draft_are_scored_anew(monkeypatch):
    base, seen = score(DRAFTS, REFERENCES), []

    def counting(hypotheses, references, metrics):
        seen.extend(hypotheses)
        return score(hypotheses, references, metrics)

    monkeypatch.setattr(significance, "score", counting)
    assert score_changed(base, DRAFTS, {5: DRAFTS[5]}, REFERENCES) is base
    score_changed(base, DRAFTS, {11: "a b", 5: DRAFTS[5], 2: "c"}, REFERENCES)
    assert seen == ["c", "a b"]


def test_the_base_is_left_as_it_was():
    base = score(DRAFTS, REFERENCES)
    before = base.statistics["bleu"].copy()
    score_changed(base, DRAFTS, {3: "nothing of it"}, REFERENCES)
    assert np.array_equal(base.statistics["bleu"], before)


def test_drafts_that_do_not_pair_up_with_the_base_are_refused():
    with pytest.raises(ValueError, match=f"drafts and references of {N} lines, got {N - 1} and {N}"):
        score_changed(score(DRAFTS, REFERENCES), DRAFTS[1:], {}, REFERENCES)


@pytest.mark.parametrize("at_once", [1, 7, 100, R, 1000, None])
def test_resamples_drawn_in_chunks_are_those_drawn_at_once(at_once):
    chunks = list(resample_chunks(N, R, at_once=at_once))
    assert np.array_equal(np.concatenate(chunks), resample_counts(N, R))
    assert max(map(len, chunks)) <= (at_once or AT_ONCE // N)


@pytest.mark.parametrize("draws", [AT_ONCE, 13 * N])  # all resamples at once; 13 at a time
def test_many_systems_give_to_the_last_digit_what_each_gives_alone(draws, monkeypatch):
    monkeypatch.setattr(significance, "AT_ONCE", draws)
    base = score(DRAFTS, REFERENCES)
    systems = [score(written_out(changed), REFERENCES) for changed in CHANGED]
    counts = resample_counts(N, R)
    for system, found in zip(systems, compare_many(systems, base, resamples=R), strict=True):
        alone = compare(system, base, counts)
        assert found == {name: value for name, value in alone.items() if name.startswith("bleu")}


def test_an_unchanged_system_has_p_one_and_a_perfect_one_the_smallest_p():
    base = score(DRAFTS, REFERENCES)
    found = compare_many([base, score(REFERENCES, REFERENCES)], base, resamples=R)
    assert [each["bleu_p_value"] for each in found] == [1, pytest.approx(1 / (R + 1))]
    assert found[0]["bleu_difference_ci95"] == [0, 0]


def test_the_share_of_lost_half_samples_is_that_of_a_loop():
    base = score(DRAFTS, REFERENCES)
    systems = [base, *(score(written_out(changed), REFERENCES) for changed in CHANGED)]
    rng, wins = np.random.default_rng(SEED), np.zeros(len(systems))
    for drawn in rng.choice(N, size=(50, N // 2), replace=True):
        theirs = sacrebleu.corpus_bleu([DRAFTS[i] for i in drawn], [[REFERENCES[i] for i in drawn]]).score
        for number, system in enumerate(systems[1:], start=1):
            lines = written_out(CHANGED[number - 1])
            ours = sacrebleu.corpus_bleu([lines[i] for i in drawn], [[REFERENCES[i] for i in drawn]]).score
            wins[number] += (
                ours > theirs if system.main > base.main else ours < theirs if system.main < base.main else 0
            )
    assert half_sample_p_values(systems, base, resamples=50) == pytest.approx(1 - wins / 50)


def slow_holm(p_values: list[float]) -> list[float]:
    """The step-down definition: the j-th smallest p-value times (m - j + 1), and never less than a smaller
    one's."""
    m, ranked = len(p_values), sorted(p_values)
    return [min(1.0, max((m - j) * ranked[j] for j in range(ranked.index(p) + 1))) for p in p_values]


def test_holm_on_paper():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_equals_its_definition():
    rng = random.Random(0)
    for m in (1, 2, 7, 73):
        p_values = [rng.random() ** 3 for _ in range(m)]
        assert holm(p_values) == pytest.approx(slow_holm(p_values))


def test_holm_gives_equal_p_values_one_adjusted_value_and_never_exceeds_one():
    assert holm([0.5, 0.01, 0.01, 1.0]) == pytest.approx([1.0, 0.04, 0.04, 1.0])
    assert holm([]) == []
