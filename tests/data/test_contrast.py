"""Contrasts: what a file may hold, that the toy language's have one difference and its consequences alone,
and the sets that are shipped."""

import pytest

from headgates.data.contrast import (
    CONTRASTS_FOLDER,
    NAMED,
    OPEN,
    Contrast,
    read_contrasts,
    read_file,
    without_mark,
)
from headgates.data.text import DataError
from headgates.data.toy.contrasts import COUNT, toy_contrasts
from tests.data.test_toy import DATIVE_VERBS, DEFINITE, GENDER_OF, lemma_and_number

LINES = [f"a {i}\tb {i}\tc {i}\td {i}" for i in range(5)]


def test_a_file_gives_its_lines_with_or_without_corrupted_sources(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("# about\n\n" + "\n".join(LINES) + "\n", encoding="utf-8")
    assert read_contrasts(str(path)) == [Contrast(f"a {i}", f"c {i}", f"d {i}", f"b {i}") for i in range(5)]
    path.write_text("\n".join(line.partition("\t")[2] for line in LINES), encoding="utf-8")
    assert read_file(path)[1] == Contrast("b 1", "c 1", "d 1")
    assert without_mark("Der Hund ...") == ("Der Hund", True)
    assert without_mark("Der Hund.") == ("Der Hund.", False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a\tb", "expected 3 cells.*or 4.*got 2"),
        ("a\tb\t\td", "got 4, one of them empty"),
        ("a\tb\tc", "has 3 cells, others 4"),
        ("a\tb\tc\tc", "both outputs are the same"),
        ("a\ta\tc\td", "both sources are the same"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path, line, words):
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join([*LINES, "# next", line]), encoding="utf-8")
    with pytest.raises(DataError, match=f"mine.tsv, line 7: .*{words}"):
        read_contrasts(str(path))


def test_too_few_lines_and_unknown_names_are_refused(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join(LINES[:3]), encoding="utf-8")
    with pytest.raises(DataError, match="has 3 contrasts; expected at least 4"):
        read_contrasts(str(path))
    with pytest.raises(DataError, match=r"toy has no contrast 'numbr' .did you mean 'number'"):
        read_contrasts("toy:numbr")
    with pytest.raises(DataError, match="no file"):
        read_contrasts(str(tmp_path / "other.tsv"))


# ---------------------------------------------------------------- the toy language


def words(line: str) -> list[str]:
    return line.removesuffix(".").lower().split()


def differences(first: str, second: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b in zip(words(first), words(second), strict=True) if a != b]


@pytest.mark.parametrize("name", NAMED["toy"])
def test_contrasts_of_the_toy_language_are_many_and_each_is_another(name):
    found = toy_contrasts(name)
    assert len(found) == COUNT == len({each.source for each in found})
    assert found == toy_contrasts(name)
    assert found[:7] == toy_contrasts(name, count=7)
    assert found != toy_contrasts(name, seed=1)
    assert all(each.right != each.wrong and each.source != each.corrupted for each in found)


def test_number_changes_one_noun_and_german_shows_its_number_at_the_verb():
    singular, plural = {"wird", "kann", "muss", "soll"}, {"werden", "können", "müssen", "sollen"}
    directions = 0
    for each in toy_contrasts("number"):
        ((own, other),) = differences(each.source, each.corrupted)
        (lemma, is_plural), (other_lemma, other_plural) = map(lemma_and_number, (own, other))
        assert (lemma, is_plural) == (other_lemma, not other_plural)
        for output, of_plural in ((each.right, is_plural), (each.wrong, other_plural)):
            assert set(words(output)) & (plural if of_plural else singular)
            assert not set(words(output)) & (singular if of_plural else plural)
        directions += is_plural
    assert 30 < directions < 70


def test_gender_changes_the_object_and_outputs_end_with_the_article_of_its_gender():
    for each in toy_contrasts("gender"):
        ((own, other),) = differences(each.source, each.corrupted)
        assert own == words(each.source)[-1]
        outputs = [without_mark(output)[0].split() for output in (each.right, each.wrong)]
        assert not set(words(each.source)) & set(DATIVE_VERBS)  # they do not tell m from n
        assert [output[-1] for output in outputs] == [
            DEFINITE["acc"][GENDER_OF[noun]] for noun in (own, other)
        ]
        assert outputs[0][:-1] == outputs[1][:-1]
        assert each.right.endswith(OPEN)


def test_case_changes_the_verb_and_outputs_end_with_the_article_of_its_case():
    for each in toy_contrasts("case"):
        ((own, other),) = differences(each.source, each.corrupted)
        assert (own in DATIVE_VERBS) != (other in DATIVE_VERBS)
        gender = GENDER_OF[words(each.source)[-1]]
        for output, verb in ((each.right, own), (each.wrong, other)):
            article = DEFINITE["dat" if verb in DATIVE_VERBS else "acc"][gender]
            assert without_mark(output)[0].split()[-1] == article


def test_order_changes_no_english_word():
    for each in toy_contrasts("order"):
        assert sorted(words(each.source)) == sorted(words(each.corrupted))
        assert len(words(each.right)) == len(words(each.wrong))
        assert [word for word in words(each.source) if word in GENDER_OF] == [
            word for word in reversed(words(each.corrupted)) if word in GENDER_OF
        ]


# ---------------------------------------------------------------- what is shipped


@pytest.mark.parametrize("name", NAMED["en-de"])
def test_the_shipped_sets_are_minimal_pairs_in_both_directions(name):
    assert (CONTRASTS_FOLDER / f"en-de-{name}.tsv").is_file()
    found = read_contrasts(f"en-de:{name}")
    assert len(found) == 40 == len({each.source for each in found})
    most = {"number": 2, "pronoun": 1, "negation": 1}[name]  # `the dog is`, `the dogs are`
    firsts = []
    for each in found:
        changed = differences(each.source, each.corrupted)
        assert 1 <= len(changed) <= most + each.source.startswith(("A ", "Two ")) * (name == "number")
        firsts.append(changed[0][0])
    halves = [firsts[::2], firsts[1::2]]  # the one names heads, the other tests them
    for half in halves:
        assert all(half.count(word) < 15 for word in set(half)), half
