"""Vocabularies: the same file from the same text, the same text back, and sizes that cannot be."""

import pytest
import sentencepiece

from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError
from headgates.data.vocab import Vocab

PAD, BOS, EOS, UNK = 0, 1, 2, 3

LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "Der flinke braune Fuchs springt über den faulen Hund.",
    "Größe, Maß und „Zitat“ – naïve café, e-mail@example.org",
    "Быстрая лиса прыгает. 敏捷的狐狸 🦊",
] * 7


@pytest.fixture(scope="module")
def vocab(tmp_path_factory) -> Vocab:
    return Vocab.train(LINES, size=211, path=tmp_path_factory.mktemp("vocab") / "vocab.model")


def test_specials_have_the_ids_0_to_3(vocab):
    assert vocab.pieces([PAD, BOS, EOS, UNK]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_encoding_adds_no_specials_and_knows_every_character_of_its_text(vocab):
    assert min(i for ids in vocab.encode(LINES) for i in ids) > UNK
    assert UNK in vocab.encode(["ǂ"])[0]


def test_padding_begin_and_end_leave_no_trace_in_text(vocab):
    ids = vocab.encode(LINES)
    assert vocab.decode([[BOS, *each, EOS, PAD, PAD] for each in ids]) == LINES
    assert (vocab.encode([""]), vocab.decode([[]])) == ([[]], [""])


def test_ellipsis_and_ligature_become_plain_as_the_docstring_says(vocab):
    assert vocab.decode(vocab.encode(["ﬂinke  fox\u200b"])) == ["flinke fox"]


def test_the_same_text_gives_the_same_file(vocab, tmp_path):
    again = Vocab.train(LINES, size=211, path=tmp_path / "again.model")
    assert again.path.read_bytes() == vocab.path.read_bytes()
    assert len(again) == len(Vocab.load(again.path)) == 211
    assert [path.name for path in tmp_path.iterdir()] == ["again.model"]


def test_a_text_too_small_for_the_size_warns_and_gives_what_there_is(tmp_path):
    with pytest.warns(UserWarning, match=r"room for (\d+) pieces only, 8009 were asked for"):
        small = Vocab.train(["ab ab cd"], size=8009, path=tmp_path / "v.model")
    assert 4 < len(small) < 31
    assert small.decode(small.encode(["ab cd"])) == ["ab cd"]


def test_a_size_below_the_number_of_characters_says_how_many_are_needed(tmp_path):
    with pytest.raises(
        DataError, match=r"vocabulary of 7 pieces .* 9\b"
    ):  # 4 specials, a to d, the word mark
        Vocab.train(["a b c d"], size=7, path=tmp_path / "v.model")
    assert list(tmp_path.iterdir()) == []
    assert len(Vocab.train(["a b c d"], size=9, path=tmp_path / "v.model")) == 9


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_text_is_an_error(tmp_path, lines):
    with pytest.raises(DataError, match="no text to train a vocabulary on"):
        Vocab.train(lines, size=101, path=tmp_path / "v.model")


def test_loading_what_is_not_there_or_no_model_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no vocabulary at"):
        Vocab.load(tmp_path / "v.model")
    (tmp_path / "v.model").write_text("hello")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        Vocab.load(tmp_path / "v.model")


def save_other(path, **numbers: int) -> None:
    """A SentencePiece model that numbers its special tokens as `numbers` say, and else as SentencePiece
    does."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES),
            model_writer=file,
            vocab_size=211,
            model_type="bpe",
            minloglevel=2,
            **numbers,
        )


def test_a_model_with_other_special_ids_says_so(tmp_path):
    save_other(tmp_path / "v.model", pad_id=1, bos_id=0, eos_id=2, unk_id=3)
    vocab = Vocab.load(tmp_path / "v.model")
    assert vocab.specials == SpecialTokens(padding=1, beginning=0, end=2, unknown=3)
    assert vocab.decode([[0, *vocab.encode(LINES[:1])[0], 2, 1, 1]]) == LINES[:1]


def test_a_model_without_padding_needs_special_tokens_from_elsewhere(tmp_path):
    save_other(tmp_path / "v.model")
    with pytest.raises(DataError, match=r"numbers pad, bos, eos, unk as \(-1, 1, 2, 0\)"):
        Vocab.load(tmp_path / "v.model")
    specials = SpecialTokens(
        padding=211, beginning=211, end=2, unknown=0
    )  # a row of the model's own behind the pieces
    assert Vocab.load(tmp_path / "v.model", specials).specials == specials
