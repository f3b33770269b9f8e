"""What a comparison says in words, on tables where the truth is planted: a tie is called a tie, and a lead a
lead."""

import numpy as np
import pytest

from headgates.configs.recipe import Lambda, Speed
from headgates.report.compare_files import leads
from headgates.report.compare_summary import summary
from tests.worlds.compared import LINES, compared, made, right, scattered, twice

RANKED = {"importance": 50, "random": 40}


def said(points, about: str, **bases) -> list[str]:
    """The sentences that contain a text."""
    return [
        sentence for sentence in summary(compared(points, **bases), metric="accuracy") if about in sentence
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (range(140), range(100), "50.00 to 50.00): a lead, +20.00 (+"),
        (scattered(101, 1), scattered(100, 2), "50.00 to 50.00): a tie, +0.50 (-"),
    ],
)
def test_a_planted_lead_is_called_a_lead_and_a_tie_a_tie(ours, theirs, words):
    points = [made("importance", 11, right(ours)), made("random", 11, right(theirs))]
    (sentence,) = said(twice(points), "At 11 heads")
    assert "importance is the best" in sentence
    assert ") against unpruned; the highest of the others is random with 50.00 accuracy (2 seeds" in sentence
    assert words in sentence


def test_between_recipes_of_one_seed_no_lead_is_called():
    points = [made("importance", 11, right(range(140))), made("random", 11, right(range(100)))]
    assert "no verdict on one seed, +20.00 (+" in said(points, "At 11 heads")[0]
    assert "no verdict on one seed" in said([*twice(points[:1]), points[1]], "At 11 heads")[0]


SEVEN = ("importance", "raw-importance", "obs", "loss-swap", "fisher", "random", "subset")


def of_seeds(generator, spreads, better=0, validation=False) -> list:
    """Three rows a method, which has 100 lines right on average; spreads: between the seeds of each. The
    first has so many more. validation: they have losses, which say nothing; else the best is picked on the
    lines that decide."""
    return [
        made(
            method,
            11,
            right(generator.permutation(LINES)[: round(100 + more + luck)]),
            seed=seed,
            loss=generator.normal() if validation else None,
        )
        for method, spread, more in zip(SEVEN, spreads, [better] + [0] * 6, strict=False)
        for seed, luck in enumerate(generator.normal(size=3) * spread, start=1)
    ]


@pytest.mark.parametrize(
    ("spreads", "validation"), [((0, 60), False), ((0,) * 6 + (60,), False), ((60,) + (0,) * 6, True)]
)
def test_methods_that_differ_by_luck_alone_are_rarely_ahead(spreads, validation):
    generator = np.random.default_rng(5)
    called = 0
    for _ in range(200):
        sentences = said(of_seeds(generator, spreads, validation=validation), "At 11 heads")
        called += any(word in text for text in sentences for word in (": a lead", "ahead", "behind"))
    assert called <= 15  # of 200 at .05, with a chance of .95


def test_the_best_is_picked_on_validation_and_compared_with_the_highest_of_the_others():
    lines = {"importance": (range(120), 1.0), "random": (range(60), 1.1), "scratch": (range(118), 1.2)}
    points = [made(method, 11, right(own), loss=loss) for method, (own, loss) in lines.items()]
    (sentence,) = said(twice(points), "At 11 heads")
    assert "importance is the best on validation" in sentence
    assert "the highest of the others is the same shape from random weights" in sentence
    assert ": a tie, +1.00" in sentence


def test_gates_are_compared_with_the_best_of_the_others_on_validation():
    lines = {"subset": (range(120), 1.0), "importance": (range(60), 1.1), "random": (range(118), 1.2)}
    points = [made(method, 11, right(own), loss=loss) for method, (own, loss) in lines.items()]
    best, learned = said(twice(points), "At 11 heads")
    assert "the highest of the others is random" in best
    assert "learned subset against importance, the best of the others: ahead, +30.00" in learned


def test_a_lead_over_six_others_is_found_though_they_make_many_pairs():
    generator = np.random.default_rng(6)
    found = [said(of_seeds(generator, [1] * 7, better=40), "At 11 heads") for _ in range(10)]
    assert all("importance is the best" in text and ": a lead, +" in text for text, _ in found)
    assert all(": behind, -" in text for _, text in found)


@pytest.mark.parametrize(
    ("lines", "verdict"), [(range(120), "ahead"), (range(40), "behind"), (scattered(81, 1), "tie")]
)
def test_learned_gates_are_ahead_behind_or_a_tie_with_the_best_score_of_the_same_training(lines, verdict):
    found = (("subset", lines), ("importance", range(80)), ("random", range(20)))
    trained = [made(choose, 5, right(own), epochs=1) for choose, own in found]
    untrained = made("importance", 5, right(range(180)))
    (sentence,) = said(twice([*trained, untrained]), "learned subset against")
    assert f"against importance, the best of the others: {verdict}, " in sentence


@pytest.mark.parametrize(("epochs", "words"), [(0, "without training"), (1, "with 1 epoch of training")])
def test_the_training_is_set_apart_from_a_size_that_ends_in_words_of_its_own(epochs, words):
    speed = Speed(1.5, shortlist="0")
    points = [made(choose, 5, right(range(90)), budget=speed, epochs=epochs) for choose in ("l0", "plan")]
    size = f"At 1.5 times the speed, without a shortlist, {words}, "
    assert [sentence[: len(size)] for sentence in said(points[:1], "At ")] == [size]
    assert [sentence[: len(size)] for sentence in said(points, "At ")] == [size, size]


def test_what_a_closing_adds_is_the_mean_over_pairs_that_differ_in_it_alone():
    points = [made("importance", heads, right(range(n))) for heads, n in ((11, 120), (5, 60))]
    points += [made("importance", heads, right(range(n)), refit="out") for heads, n in ((11, 120), (5, 100))]
    points += [made("random", 5, right(range(10)), refit="out")]  # without a pair
    (sentence,) = said(twice(points), "in place of")
    assert "+10.00 accuracy on average over 2 pairs of rows (+0.00 to +20.00; 1 better, 1 tie)" in sentence


def test_what_training_adds_stands_beside_what_it_adds_to_the_base():
    points = [made("importance", 5, right(range(40))), made("importance", 5, right(range(100)), epochs=1)]
    (sentence,) = said(twice(points), "adds", continued=range(196))
    assert sentence.startswith("1 epoch of training adds +30.00 accuracy for importance (+")
    assert "; 1 better); the base itself changes by +3.00 (+" in sentence


def test_of_a_method_that_lambda_controls_the_open_heads_are_named():
    points = [
        made("l0", heads, right(range(100)), budget=Lambda(0.02), seed=heads, epochs=1) for heads in (9, 7)
    ]
    (sentence,) = said(points, "λ")
    assert "leaves 7 to 9 heads open: 50.00 accuracy (2 seeds, 50.00 to 50.00)" in sentence


def test_ranks_are_told_and_one_seed_is_warned_of():
    first, again = (
        [made(name, 5, right(range(n)), epochs=1, seed=seed) for name, n in RANKED.items()] for seed in (1, 2)
    )
    assert said(first, "Mean rank") == ["Mean rank with 1 epoch of training: importance 1.00, random 2.00."]
    assert len(said(first, "One seed says nothing of the luck of training")) == 1
    assert said([*first, *again], "luck of training") == []


def test_every_sentence_ends_and_names_no_number_that_is_none():
    sentences = summary(compared([made("importance", 5, right(range(LINES // 2)))]), metric="BLEU")
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.endswith(".")
        assert not {"nan", "None", "inf"} & set(sentence.replace(",", " ").split())


def test_of_a_base_that_learned_nothing_no_lead_is_told():
    found = compared([made("l0", 5, right(range(150))), made("random", 5, right(range(3)))])
    found.base.first.above_trivial = (-0.5, 0.2)
    (said,) = summary(found, metric="accuracy")
    assert said.startswith("base has not learned its task")
    assert leads(found) == []


def test_the_training_that_rows_share_is_told_and_what_they_do_not_share():
    points = [made(choose, 5, right(range(90)), epochs=1) for choose in ("subset", "importance")]
    for each in points:
        each.result.stage = {"steps": 7, "losses": [1.0], "best_epoch": 0}
    (sentence,) = said(points, "the same 7 steps")
    assert "; learned subset choose their heads within them;" in sentence
    points[1].result.stage |= {"steps": 8}
    assert not said(points, "the same 7 steps")
