"""The toy language with two target languages: the first source token says which, and nothing else does."""

import pytest

from headgates.data import load_corpus
from headgates.data.contrast import read_contrasts
from headgates.data.text import DataError
from headgates.data.toy import toy_pairs
from headgates.data.toy.multi import TAGS


def test_a_sentence_is_german_or_german_spelt_backwards_as_its_first_word_asks():
    corpus, counts = load_corpus("toy-multi", src="en", tgt="multi"), dict.fromkeys(TAGS, 0)
    for split in ("valid", "test"):
        text = corpus.split(split)
        for source, target, pair in zip(text.sources, text.targets, toy_pairs(split), strict=True):
            tag, _, sentence = source.partition(" ")
            counts[tag] += 1
            assert sentence == pair.source
            backwards = pair.target[::-1].lower().replace(".", "").replace(",", "").split()[::-1]
            words = target.replace(".", "").replace(",", "").split()
            assert words == backwards if tag == "namreg" else target == pair.target
    assert counts["german"] == counts["namreg"]
    with pytest.raises(DataError, match="use --src en --tgt multi"):
        load_corpus("toy-multi", src="en", tgt="de")


def test_the_contrast_of_number_is_the_toy_languages_under_one_tag():
    plain = read_contrasts("toy:number")
    for each, own in zip(read_contrasts("toy-multi:number"), plain, strict=True):
        tag, _, source = each.source.partition(" ")
        assert (source, each.corrupted) == (own.source, f"{tag} {own.corrupted}")
        backwards = [word[::-1].lower() for word in own.wrong.removesuffix(".").split()]
        assert each.wrong == (own.wrong if tag == "german" else " ".join(backwards) + ".")


def test_the_contrast_of_languages_changes_the_tag_alone():
    found = read_contrasts("toy-multi:language")
    tags = {each.source.split()[0] for each in found}
    assert tags == set(TAGS)
    for each in found:
        (tag, *words), (other, *others) = each.source.split(), each.corrupted.split()
        assert words == others
        assert {tag, other} == set(TAGS)
        assert (each.right[0].isupper(), each.wrong[0].isupper()) == (tag == "german", other == "german")
