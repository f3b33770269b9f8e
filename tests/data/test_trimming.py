"""Vocabularies with the pieces of a text alone: SentencePiece itself says how its smaller models cut."""

import random

import pytest
import sentencepiece

from headgates.data.special_tokens import SpecialTokens
from headgates.data.trimming import merged_symbols, trimmed_vocabs
from headgates.data.vocab import Vocab

SYLLABLES = ["ka", "to", "mi", "ren", "sol", "ba", "ut", "lo", "shi", "gar", "é", "ñu"]
TEXT_WORDS, OTHER_WORDS = 23, 31


def words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(count)]


def lines(count: int, known: list[str], seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(known, k=rng.randint(1, 7))) for _ in range(count)]


def model(folder, kind: str, **options) -> Vocab:
    path = folder / "vocab.model"
    text = lines(400, words(TEXT_WORDS, 1) + words(OTHER_WORDS, 2), 3)
    options = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "vocab_size": 151} | options
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=file,
            model_type=kind,
            hard_vocab_limit=False,
            character_coverage=1.0,
            minloglevel=2,
            **options,
        )
    return Vocab.load(path)


def trimmed(vocab: Vocab, text: list[str], folder) -> tuple[Vocab, list[int]]:
    """The vocabulary, joint, with what the text needs."""
    used = set().union(*vocab.encode(text))
    kept, again = trimmed_vocabs(folder, vocab, vocab, (used, set()))
    assert kept == again
    return Vocab.load(folder / "vocab.model"), kept


CASES = {
    "unigram": {},
    "unigram of bytes": {"kind": "unigram", "byte_fallback": True, "vocab_size": 401},
    "bpe": {},
    "bpe of bytes": {"kind": "bpe", "byte_fallback": True, "vocab_size": 401},
    "bpe with symbols": {"kind": "bpe", "user_defined_symbols": ["sol", ">>fra<<"]},
    "char": {},
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_cut_as_before_and_any_other_can_be_written(name, tmp_path):
    options = {"kind": name, **CASES[name]}
    vocab = model(tmp_path, **options)
    text = lines(37, words(TEXT_WORDS, 1), 5)
    (tmp_path / "less").mkdir()
    less, kept = trimmed(vocab, text, tmp_path / "less")
    assert less.pieces(range(len(less))) == vocab.pieces(kept)
    assert (len(less) < len(vocab)) == (name != "char")
    assert [[kept[i] for i in ids] for ids in less.encode(text)] == vocab.encode(text)
    assert less.specials == vocab.specials.renumbered(kept) == SpecialTokens()
    others = lines(41, words(OTHER_WORDS, 2), 7)
    assert less.decode(less.encode(others)) == others
    assert not any(less.specials.unknown in ids for ids in less.encode(others))
    strange = ["kato Ω mi", "日本 ba"]  # neither has these characters: bytes, or unknown as before
    assert less.decode(less.encode(strange)) == vocab.decode(vocab.encode(strange))


def test_merging_takes_the_lowest_rank_first_and_of_equal_ones_the_left():
    ranks = {("a", "b"): 1, ("b", "c"): 0, ("a", "bc"): 2, ("a", "a"): 3}
    rank = {pair: float(number) for pair, number in ranks.items()}.get
    assert merged_symbols("abc", lambda a, b: rank((a, b))) == {"a", "b", "c", "bc", "abc"}
    assert merged_symbols("aaa", lambda a, b: rank((a, b))) == {"a", "aa"}
    assert merged_symbols("", lambda a, b: rank((a, b))) == set()


def test_two_vocabularies_keep_each_their_own(tmp_path):
    source = Vocab.train(lines(90, words(TEXT_WORDS, 1), 3), size=97, path=tmp_path / "vocab.src.model")
    target = Vocab.train(lines(90, words(OTHER_WORDS, 2), 3), size=101, path=tmp_path / "vocab.tgt.model")
    (tmp_path / "less").mkdir()
    few = lines(3, words(OTHER_WORDS, 2), 4)
    used = (set(source.encode(["kato"])[0]), set().union(*target.encode(few)))
    kept = trimmed_vocabs(tmp_path / "less", source, target, used)
    for vocab, ids, text in zip((source, target), kept, (["kato"], few), strict=True):
        less = Vocab.load(tmp_path / "less" / vocab.path.name)
        assert len(less) == len(ids) < len(vocab)
        assert [[ids[i] for i in row] for row in less.encode(text)] == vocab.encode(text)
