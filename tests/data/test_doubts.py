"""What is said of a text that may not be the one that was meant."""

import pytest

from headgates.data import load_corpus
from headgates.data.doubts import doubts
from headgates.data.splits import Corpus
from headgates.data.text import ParallelText

SOURCES, TARGETS = [f"source {i}" for i in range(23)], [f"target {i}" for i in range(23)]


def said(train=(SOURCES, TARGETS), valid=(["a"], ["b"]), test=(["c"], ["d"]), tgt="de") -> list[str]:
    train, valid, test = (
        ParallelText(list(sources), list(targets)) for sources, targets in (train, valid, test)
    )
    return list(doubts(Corpus(train, valid, test, "own", "", "en", tgt)))


def test_a_test_set_of_training_pairs_is_counted_with_an_example():
    (words,) = said(test=([*SOURCES[3:7], "new", "new"], [*TARGETS[3:7], "x", "y"]))
    assert words.startswith("own: 4 of 6 test pairs are training pairs too, such as 'source 3'")
    assert said(test=(SOURCES, [*TARGETS[:2], *TARGETS[:21]])) != []
    assert said(test=(SOURCES, [*TARGETS[:1], *TARGETS[:22]])) == []  # one short sentence may come again


@pytest.mark.parametrize(("line", "sign"), [("two\0words", "NUL bytes"), ("three\tcolumns\there", "tabs")])
@pytest.mark.parametrize("side", [0, 1])
def test_signs_that_are_no_text_are_counted_with_an_example(line, sign, side):
    sides = [list(SOURCES), list(TARGETS)]
    sides[side][5] = sides[side][11] = line
    (words,) = said(train=sides)
    assert words.startswith("own: 2 training pairs, such as ")
    assert sign in words
    assert repr(line)[1:5] in words
    assert said(train=sides, tgt="") == (
        [words] if sign == "NUL bytes" else []
    )  # a classifier's text has tabs


def test_a_copied_side_is_said_and_nothing_is_said_of_text_without_fault():
    (words,) = said(valid=(["a", "b", "c"], ["a", "b", "x"]))
    assert "most validation lines are the same" in words
    assert list(doubts(load_corpus("toy"))) == []
