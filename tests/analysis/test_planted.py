"""Every analysis finds in the planted model exactly what was planted."""

import pytest

from headgates.analysis.alignment import Alignment
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.positions import THRESHOLD, Positions
from headgates.analysis.rare_words import RareWords
from headgates.analysis.roles import MARGIN, RARE_SHARE
from headgates.analysis.syntax import Syntax
from headgates.gates import HeadMap
from tests.worlds.planted import COUNTS, HEADS, planted_batches, planted_model, planted_pairs, true_heads

PAIRS = planted_pairs()


@pytest.fixture(scope="module")
def model():
    return planted_model()


def observed(model, observer):
    observe_attention(model, planted_batches(PAIRS), [observer])
    return observer


def assert_found(head_map: HeadMap, needed: float, *roles: str) -> None:
    """The heads of these roles have all of it, and no other head has what is needed."""
    truth = HeadMap({site: row for site, row in true_heads(*roles).items() if site in head_map})
    assert head_map.map(lambda row: row >= needed) == truth
    assert (head_map.flat()[truth.flat()] == 1).all()


def test_positions_finds_the_previous_and_the_next_token_heads_and_no_other(model):
    best = observed(model, Positions()).best()
    assert_found(best.share, THRESHOLD, "previous", "next")
    for role, offset in (("previous", -1), ("next", 1)):
        site, head = HEADS[role][0]
        assert best.offset[site][head] == offset


@pytest.mark.parametrize("rank", [1, 13])
def test_rare_words_finds_the_rare_word_head_and_no_other(model, rank):
    rare = observed(model, RareWords(COUNTS, rank))
    assert_found(rare.two_rarest(), RARE_SHARE, "rare")
    assert_found(rare.rarest(), 1, "rare")
    assert rare.sentences == sum(max(pair.source) - 4 >= rank for pair in PAIRS)


def test_alignment_finds_the_aligned_head_and_no_other(model):
    alignment = observed(model, Alignment([pair.links for pair in PAIRS]))
    baseline = alignment.baseline()
    assert_found(alignment.agreement(), baseline.share + MARGIN, "aligned")
    assert baseline.offset == -1  # target tokens 1 and 2 of every sentence


def test_only_the_subject_head_is_syntactic_and_only_from_verb_to_subject(model):
    words = {i: list(range(len(pair.words))) for i, pair in enumerate(PAIRS)}
    # of two adverbs before a verb either is right: the previous token's head finds one always
    labels = ["nsubj", "dobj", "amod"]
    syntax = observed(model, Syntax(dict(enumerate(PAIRS)), words, labels, samples=31))
    assert syntax.syntactic() == true_heads("subject").select(["enc-self"])
    (row,) = (row for row in syntax.rows() if row["syntactic"])
    assert (row["label"], row["direction"], row["accuracy"]) == ("nsubj", "head->dependent", 1)
