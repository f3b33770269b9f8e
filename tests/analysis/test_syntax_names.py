"""The names of relations: UD's and CLEAR's, subtypes, negations, and labels that the parses lack."""

import pytest
import torch

from headgates.analysis.attention_pass import AttentionBatch
from headgates.analysis.syntax import Syntax, clear_name
from headgates.data.batch import collate
from headgates.data.conllu import Tree
from headgates.gates import HeadSite
from tests.worlds.seen_attention import seen_attention

SITE = HeadSite.at("enc-self", 0, 3)
TREE = Tree(
    ("the", "cat", "sees", "old", "dogs"),
    (2, 3, 0, 5, 3),
    ("det", "nsubj", "ROOT", "amod", "dobj"),
    "the cat sees old dogs",
)
WORDS: list[int | None] = [0, 1, 2, 3, 4]


def seen(sentences: int) -> AttentionBatch:
    batch = collate([([5] * len(WORDS), [7])] * sentences, list(range(sentences)), 1)
    return seen_attention(batch, {SITE: torch.full((sentences, SITE.heads, 6, 6), 1 / 6)})


def test_the_names_of_ud_and_clear_are_one_relation():
    trees = [
        TREE,
        Tree(
            TREE.words,
            TREE.heads,
            tuple("obj" if label == "dobj" else label for label in TREE.labels),
            TREE.text,
        ),
    ]
    for names in (["dobj"], ["obj"], ["obj", "dobj"]):
        syntax = Syntax(trees, [WORDS, WORDS], names)
        syntax.add(seen(2))
        rows = syntax.rows()
        assert [(row["label"], row["n"]) for row in rows] == [("dobj", 2)] * 6


@pytest.mark.parametrize(
    ("label", "word", "name"),
    [
        ("obj", "dogs", "dobj"),
        ("dobj", "dogs", "dobj"),
        ("nsubj:pass", "dogs", "nsubjpass"),
        ("nsubj", "dogs", "nsubj"),
        ("nsubj:outer", "dogs", "nsubj:outer"),
        ("advmod", "quickly", "advmod"),
        ("advmod", "Not", "neg"),
        ("advmod", "n't", "neg"),
        ("det", "not", "det"),
    ],
)
def test_a_subtype_is_a_relation_of_its_own_and_negations_are_no_adverbs(label, word, name):
    assert clear_name(label, word) == name


def test_a_label_that_the_parses_lack_is_named_with_those_they_have():
    with pytest.raises(ValueError) as caught:
        Syntax([TREE], [WORDS], ["nsubj", "nsbj"])
    assert str(caught.value) == ("no word of the parses has the label 'nsbj'; did you mean 'nsubj'?")
    with pytest.raises(ValueError, match=r"has the label 'advmod'; known: none"):
        Syntax([], [], ["advmod"])


def test_a_relation_that_was_not_asked_for_is_named():
    syntax = Syntax([TREE], [WORDS], ["nsubj", "obj"])
    syntax.add(seen(1))
    assert (
        len(syntax.accuracy("obj", "dependent->head")) == len(syntax.accuracy("dobj", "dependent->head")) == 1
    )
    with pytest.raises(
        ValueError,
        match=r"no relation 'amod', 'dependent->head'; there are nsubj, dobj, each head->dependent and dep",
    ):
        syntax.accuracy("amod", "dependent->head")
