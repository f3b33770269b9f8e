"""Every analysis finds in the planted model exactly what was planted."""

from collections import Counter

import pytest

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.positions import THRESHOLD, Positions
from headgates.analysis.rare_words import RareWords
from headgates.analysis.roles import MARGIN, RARE_SHARE
from headgates.analysis.scores.importance import importance
from headgates.analysis.syntax import Syntax
from headgates.gates import HeadMap
from tests.worlds.planted import (
    COUNTS,
    HEADS,
    planted_batches,
    planted_model,
    planted_pairs,
    true_heads,
)

PAIRS = planted_pairs()
WORDS = sum(len(pair.words) for pair in PAIRS)


@pytest.fixture(scope="module")
def model():
    return planted_model()


def at(role: str, kind: str, head_map: HeadMap) -> float:
    site, head = next(each for each in HEADS[role] if kind in each[0])
    return float(head_map[site][head])


def observed(model, observer):
    observe_attention(model, planted_batches(PAIRS), [observer])
    return observer


def test_positions_finds_the_previous_and_the_next_token_heads_and_no_other(model):
    best = observed(model, Positions()).best()
    truth = true_heads("previous", "next")
    assert best.share.map(lambda row: row >= THRESHOLD) == truth
    assert (best.share.flat()[truth.flat()] == 1).all()
    for role, offset in (("previous", -1), ("next", 1)):
        assert at(role, "enc-self", best.offset) == offset


@pytest.mark.parametrize("rank", [1, 13])
def test_rare_words_finds_the_rare_word_head_and_no_other(model, rank):
    rare = observed(model, RareWords(COUNTS, rank))
    assert rare.two_rarest().map(lambda row: row >= RARE_SHARE) == true_heads("rare").select(["enc-self"])
    assert at("rare", "enc-self", rare.rarest()) == at("rare", "enc-self", rare.two_rarest()) == 1
    assert 0.05 < rare.chance()[0] < rare.chance()[1] < 0.4
    assert rare.sentences == sum(max(pair.source) - 4 >= rank for pair in PAIRS)


def test_alignment_finds_the_aligned_head_and_no_other(model):
    links = [pair.links for pair in PAIRS]
    alignment, entropy = (observed(model, each) for each in (Alignment(links), Entropy()))
    baseline, agreement = alignment.baseline(), alignment.agreement()
    assert agreement.map(lambda row: row >= baseline.share + MARGIN) == true_heads("aligned").select(
        ["cross"]
    )
    assert at("aligned", "cross", agreement) == 1
    offsets = Counter(-(t // 2) - t % 2 for pair in PAIRS for t in range(len(pair.target)))
    # target tokens 1 and 2 of every sentence
    assert (alignment.tokens, baseline.offset) == (2 * WORDS, -1)
    assert baseline.share == pytest.approx(offsets[-1] / (2 * WORDS))
    assert at("aligned", "cross", entropy.nats()) == pytest.approx(0, abs=1e-5)
    assert entropy.relative().flat()[true_heads("noise").flat()].numpy() == pytest.approx(1, abs=1e-5)


def test_only_the_subject_head_is_syntactic_and_only_from_verb_to_subject(model):
    words = {i: list(range(len(pair.words))) for i, pair in enumerate(PAIRS)}
    # of two adverbs before a verb either is right: the previous token's head finds one always
    labels = ["nsubj", "dobj", "amod"]
    syntax = observed(model, Syntax(dict(enumerate(PAIRS)), words, labels, samples=31))
    assert syntax.syntactic() == true_heads("subject").select(["enc-self"])
    found = [row for row in syntax.rows() if row["syntactic"]]
    assert [(row["label"], row["direction"], row["accuracy"]) for row in found] == [
        ("nsubj", "head->dependent", 1)
    ]
    assert found[0]["baseline"] < 0.5


@pytest.mark.parametrize("absolute", ["sentence", "token", "batch"])
def test_importance_ranks_the_needed_heads_above_noise(model, absolute):
    scores = importance(model, planted_batches(PAIRS), absolute=absolute)
    for kind in ("enc-self", "cross"):
        noise, row = true_heads("noise").select([kind]).flat(), scores.select([kind]).flat()
        assert row[~noise].min() > 20 * row[noise].max()
    assert (scores.select(["dec-self"]).flat() == 0).all()  # it writes nothing
