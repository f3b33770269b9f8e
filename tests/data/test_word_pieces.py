"""Pieces and the words they belong to, on vocabularies trained for the case."""

import random

import pytest
import sentencepiece

from headgates.data.special_tokens import SpecialTokens
from headgates.data.toy import generate
from headgates.data.vocab import Vocab
from headgates.data.word_pieces import word_of_piece

UNK = SpecialTokens().unknown


@pytest.fixture(scope="module")
def pairs():
    return generate(211, seed=5)


@pytest.fixture(scope="module")
def vocab(pairs, tmp_path_factory) -> Vocab:
    """Small, so that many words are several pieces; it has no letters but those of the toy language and a few
    more."""
    extra = ["cannot do n't über 5 2 / ! ' ... Café"] * 3
    return Vocab.train(
        [p.source for p in pairs] + extra, size=97, path=tmp_path_factory.mktemp("vocab") / "v.model"
    )


def pieces(vocab: Vocab, text: str) -> list[str]:
    return vocab.processor.encode(text, out_type=str)


def spelled(vocab: Vocab, text: str, words: list[str]) -> list[str]:
    """What the pieces of each word spell."""
    found = [""] * len(words)
    for piece, word in zip(pieces(vocab, text), word_of_piece(vocab, text, words), strict=True):
        assert word is not None
        found[word] += piece.replace("\u2581", "")
    return found


def test_the_pieces_of_every_toy_word_spell_it(vocab, pairs):
    several = 0
    for pair in pairs:
        assert spelled(vocab, pair.source, pair.words) == list(pair.words)
        several += len(pieces(vocab, pair.source)) - len(pair.words)
    assert several > 500


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("the ﬁne dog", ["the", "ﬁne", "dog"], ["the", "fine", "dog"]),  # a ligature
        # full width; one character that becomes three
        ("the Ｄog…", ["the", "Ｄog", "…"], ["the", "Dog", "..."]),
        ("½ dog", ["½", "dog"], ["1⁄2", "dog"]),
        ("Cafe\u0301 dog", ["Cafe\u0301", "dog"], ["Café", "dog"]),  # two characters that become one
        ("  the\u00a0 dog  sees ", ["the", "dog", "sees"], ["the", "dog", "sees"]),
        ("do\u200bg \u200b sees", ["do\u200bg", "\u200b", "sees"], ["dog", "", "sees"]),
        ("I don't", ["I", "do", "n't"], ["I", "do", "n't"]),
        ("中 dog 文!", ["中", "dog", "文", "!"], ["中", "dog", "文", "!"]),  # unknown pieces
    ],
)
def test_normalised_and_unknown_characters_keep_their_word(vocab, text, words, expected):
    assert spelled(vocab, text, words) == expected


def test_a_space_alone_belongs_to_the_word_after_it(vocab):
    text = "the 中 dog"
    assert pieces(vocab, text)[1:3] == ["\u2581", "中"]
    assert word_of_piece(vocab, text, ["the", "中", "dog"])[1:3] == [1, 1]


def test_a_piece_of_two_words_belongs_to_the_one_with_more_of_it(tmp_path):
    whole = Vocab.train(["cannot cannot gonna"] * 5, size=34, path=tmp_path / "v.model")
    assert pieces(whole, "cannot gonna") == ["\u2581cannot", "\u2581gonna"]
    assert word_of_piece(whole, "cannot gonna", ["c", "annot", "gon", "na"]) == [1, 2]
    # equal halves: the first
    assert word_of_piece(whole, "cannot gonna", ["can", "not", "go", "nna"]) == [0, 3]


def test_a_piece_of_a_byte_counts_for_the_character_that_the_byte_is_of(tmp_path):
    path, text = tmp_path / "bytes.model", "née 中文 dog <0xC3>"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the dog sees <0xC3>"] * 50),
        model_prefix=str(path.with_suffix("")),
        vocab_size=290,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    vocab = Vocab.load(path, SpecialTokens())
    found = dict(enumerate(zip(pieces(vocab, text), vocab.characters(text), strict=True)))
    bytes_of_two = [own for piece, own in found.values() if piece in ("<0xC3>", "<0xA9>")]
    assert bytes_of_two == [[1], [1]], "é; what is written <0xC3> is no byte"
    words = word_of_piece(vocab, text, ["née", "中", "文", "dog", "<0xC3>"])
    assert [words.count(word) for word in (1, 2)] == [4, 3], "three bytes each, and the space before 中"
    assert words == sorted(words)


def test_an_empty_line_has_no_pieces(vocab):
    assert word_of_piece(vocab, "", []) == []
    assert word_of_piece(vocab, " \u200b", ["\u200b"]) == []


def test_random_text_keeps_every_piece_within_its_word(vocab):
    """Words of any characters with spaces between: no piece crosses a space, so a piece's word is the number
    of spaces before it."""
    rng = random.Random(7)
    alphabet = "dogsthe.,'5ü½…ﬁＤ中\U0001f600"
    for _ in range(101):
        words = ["".join(rng.choices(alphabet, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 7))]
        text = " ".join(words)
        spaces, expected = -1, []
        for piece in pieces(vocab, text):
            spaces += piece.startswith("\u2581")
            expected.append(spaces)
        assert word_of_piece(vocab, text, words) == expected, text
    assert UNK in vocab.encode(["中"])[0]
