"""The CoNLL-U reader: what it reads, what it refuses, and the `conllu` package as a second opinion."""

from pathlib import Path

import pytest

from headgates.data.conllu import Tree, read_conllu, word_spans
from headgates.data.text import DataError
from headgates.data.text_file import read_lines

EWT = Path(__file__).parents[2] / ".." / "shared" / "data" / "ud_english_ewt"


def row(number, form="dog", head="0", label="root", misc="_"):
    return "\t".join([str(number), form, "_", "_", "_", "_", str(head), label, "_", misc])


@pytest.fixture
def write(tmp_path):
    def to_file(*lines: str) -> Path:
        path = tmp_path / "trees.conllu"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return to_file


NO_SPACE = "SpaceAfter=No"


@pytest.mark.parametrize(
    ("lines", "text", "words", "written"),
    [
        (  # without a text comment the forms are put together
            [row("1-2", "Don't", "_"), row(1, "Do"), row(2, "n't"),
             row(3, "bark", misc=f"Lang=en|{NO_SPACE}"), row(4, "!")],
            "Don't bark!", "Do n't bark !", "Do n't bark !",
        ),
        (  # a contraction is cut into its parts where they are its letters, else the first part has all
            ["# text = don't!", row("1-2", "don't", misc=NO_SPACE), row(1, "do"), row(2, "n't"), row(3, "!")],
            "don't!", "do n't !", "do n't !",
        ),
        (
            ["# text = du chien", row("1-2", "du"), row(1, "de"), row(2, "le"), row(3, "chien")],
            "du chien", "de le chien", "du  chien",
        ),
        # empty nodes are left out and do not count
        ([row("0.1", "It"), row(1, "a"), row("1.1", "and"), row(2, "b")], "a b", "a b", "a b"),
        # a text comment is of its own sentence alone
        (["# text = lost", "", "# text_en = no", "# text", row(1, "#")], "#", "#", "#"),
    ],
)  # fmt: skip
def test_a_sentence_has_its_text_its_words_and_how_they_are_written(write, lines, text, words, written):
    (tree,) = read_conllu(write(*lines, ""))
    assert (tree.text, tree.words, tree.written) == (text, tuple(words.split()), tuple(written.split(" ")))


def test_heads_and_labels_are_read_and_the_last_sentence_may_lack_its_empty_line(write):
    dogs = [row(1, "Dogs", 2, "nsubj"), row(2, "sleep", misc=NO_SPACE), row(3, ".", 2, "punct")]
    trees = read_conllu(write("", "# sent_id = 1", *dogs, "", "", "# text = Two", row(1, "Two")))
    assert trees[0] == Tree(("Dogs", "sleep", "."), (2, 0, 2), ("nsubj", "root", "punct"), "Dogs sleep.")
    assert [tree.text for tree in trees] == ["Dogs sleep.", "Two"]


@pytest.mark.parametrize(
    ("lines", "number", "message"),
    [
        (["# a comment"], None, "has no sentence: expected CoNLL-U, 10 columns a word"),
        (["# x", "1 dog _ _"], 2, "expected 10 columns with tabs between them, got 1"),
        ([row("one")], 1, "expected word 1, got 'one'"),
        ([row(1, "a", 2), row(3)], 2, "expected word 2, got '3'"),
        ([row(1), "", row(2)], 3, "expected word 1, got '2'"),
        ([row("2-3"), row(1)], 1, "expected word 1, got '2-3'"),
        ([row("2-1")], 1, "expected word 1, got '2-1'"),
        ([row("1-2", "don't"), row(1, "do")], 2, "the sentence ends after word 1; expected word 2"),
        ([row("1.1")], 1, "the sentence ends after word 0"),
        ([row(1, "dog", "_")], 1, "expected the number of the head of 'dog' in column 7"),
        ([row(1), row(2, "a", 3)], 2, "the head of word 2 is 3; expected another of the 2 words, or 0"),
        ([row(1), row(2, "a", 2)], 2, "the head of word 2 is 2"),
        (
            ["# text = The cat", row(1, "The", 2), row(2, "dog")],
            2,
            "not its `# text`: word 2, 'dog', is not what the text goes on with: 'cat'",
        ),
        (["# text = dog !", row(1, "dog")], 2, "the text goes on after the last of its 1 words: '!'"),
    ],
)
def test_an_error_names_the_file_the_line_and_what_was_expected(write, lines, number, message):
    path = write(*lines, "")
    with pytest.raises(DataError) as caught:
        read_conllu(path)
    assert str(caught.value).startswith(f"{path}, line {number}: " if number else str(path))
    assert message in str(caught.value)


def test_words_are_found_whatever_white_space_stands_around_and_in_them():
    text = "  A  dog,\u00a0 de facto \U0001f600!"
    words = ["A", "dog", ",", "de  facto", "\U0001f600", "", "!"]
    spans = word_spans(text, words)
    assert [text[begin:end] for begin, end in spans] == ["A", "dog", ",", "de facto", "\U0001f600", "", "!"]


@pytest.mark.skipif(not EWT.is_dir(), reason="needs ../shared/data/ud_english_ewt")
def test_ewt_is_read_whole_and_as_the_conllu_package_reads_it():
    conllu = pytest.importorskip("conllu")
    path = EWT / "en_ewt-ud-test.conllu.gz"
    theirs = conllu.parse("\n".join(read_lines(path)) + "\n\n")
    ours = read_conllu(path)
    assert (len(ours), len(theirs), sum(map(len, ours))) == (2077, 2077, 25094)
    for tree, other in zip(ours, theirs, strict=True):
        words = [token for token in other if isinstance(token["id"], int)]
        assert tree.words == tuple(token["form"] for token in words)
        assert tree.heads == tuple(token["head"] for token in words)
        assert tree.labels == tuple(token["deprel"] for token in words)
        assert tree.text == other.metadata["text"]
