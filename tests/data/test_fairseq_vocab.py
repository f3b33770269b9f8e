"""fairseq's dictionaries and the tokenizers that go with them. Codes and dictionaries are made by hand;
../shared has real ones."""

import sys
from pathlib import Path

import pytest

from headgates.data.fairseq_vocab import Dictionary, FairseqPieces, FairseqVocab, bpe, fairseq_vocabs
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError
from headgates.data.vocab import Vocab, load_vocabs

FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/fairseq"
pytest.importorskip("subword_nmt", reason="subword-nmt is not installed")
CODES = "#version: 0.2\nl o\nlo w</w>\ne r</w>\n"  # low -> low, lower -> lo@@ w@@ er
SYMBOLS = ["low", "lo@@", "w@@", "er", "n@@", "\u2028", "e@@"]


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    (tmp_path / "dict.en.txt").write_bytes(
        "".join(f"{symbol} {n}\n" for n, symbol in enumerate(SYMBOLS)).encode()
    )
    (tmp_path / "bpe.codes").write_text(CODES)
    return {"dictionary": tmp_path / "dict.en.txt", "bpe": tmp_path / "bpe.codes"}


def vocab_of(files: dict[str, Path]) -> FairseqVocab:
    vocab, again = fairseq_vocabs(files, files, Path("vocab.json"))
    assert vocab is again
    return vocab


def test_line_n_has_the_id_n_plus_4_whatever_line_ends_its_symbols_are(files):
    dictionary = Dictionary(files["dictionary"])
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", *SYMBOLS]
    assert [dictionary.index(symbol) for symbol in ("low", "\u2028", "e@@", "none", "</s>", "<pad>")] == [
        4,
        9,
        10,
        3,
        3,
        3,
    ]


def test_the_count_stands_after_the_last_space_and_a_later_symbol_may_overwrite(tmp_path):
    (tmp_path / "dict.txt").write_text("a b 5\nc 1\r\nc 2 #fairseq:overwrite\n")
    dictionary = Dictionary(tmp_path / "dict.txt")
    assert dictionary.symbols[4:] == ["a b", "c", "c"]
    assert (dictionary.index("a b"), dictionary.index("c")) == (4, 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1\nb\n", r"line 2: expected a symbol, a space and its count, got 'b'"),
        (b"a 1\nb 2\na 3\n", "line 3: 'a' comes twice"),
        (b"</s> 1\n", "line 1: '</s>' comes twice"),
        (b"a 1\n\xff 2\n", "line 2: byte 1 .* is not UTF-8"),
        (b"", "has no symbols"),
    ],
)
def test_a_broken_dictionary_says_where(content, message, tmp_path):
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Dictionary(tmp_path / "dict.txt")


def test_words_are_cut_and_put_together_again(files):
    vocab = vocab_of(files)
    ids = vocab.encode(["low  lower", "", "new"])
    assert [vocab.pieces(line) for line in ids] == [["low", "lo@@", "w@@", "er"], [], ["n@@", "e@@", "<unk>"]]
    assert vocab.decode([*ids[:2], [2, 4, 1, 0, 5]]) == ["low lower", "", "low lo"]
    assert vocab.characters(" low lower") == [[1, 2, 3], [5, 6], [7], [8, 9]]


def test_what_is_cut_already_stays_as_it_is(files):
    """lo@@ and w@@ say that they are parts, er follows one, and nobody knows what <unk> ended."""
    vocab = vocab_of(files)
    assert vocab.encode(["lo@@ w@@ er lower <unk> er low"]) == [[5, 6, 7, 5, 6, 7, 3, 7, 4]]
    assert [len(characters) for characters in vocab.characters("lo@@ er <unk> er")] == [4, 2, 5, 2]


def test_without_codes_text_is_taken_and_given_as_it_stands(files):
    del files["bpe"]
    vocab = vocab_of(files)
    assert vocab.encode(["low lo@@ er lower"]) == [[4, 5, 7, 3]]
    assert vocab.decode([[4, 5, 7, 3]]) == ["low lo@@ er <unk>"]


@pytest.mark.parametrize("content", ["", "a b c\nd e\n", "#version: x.y\na b\n"])
def test_broken_codes_are_one_error(content, files):
    files["bpe"].write_text(content)
    with pytest.raises(DataError, match="is no file of BPE codes"):
        bpe(files["bpe"])


def test_a_missing_package_names_the_extra(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "subword_nmt.apply_bpe", None)
    with pytest.raises(DataError, match=r"subword-nmt applies \(.*\); python -m pip install"):
        bpe(files["bpe"])


def test_the_pieces_of_a_sentencepiece_model_by_a_dictionary_s_numbers(tmp_path):
    own = Vocab.train(["the dog sleeps", "a dog sees the cat"] * 3, size=31, path=tmp_path / "vocab.model")
    pieces = own.pieces(range(4, len(own)))[::-1]
    (tmp_path / "dict.txt").write_text(
        "".join(f"{piece} 1\n" for piece in [*pieces[:-1], "madeupword0000"])
    )  # one is not in it
    vocab = FairseqPieces(Dictionary(tmp_path / "dict.txt"), Path("vocab.json"), tmp_path / "vocab.model")
    lines = ["the dog sees a cat", ""]
    known = [piece if piece in pieces[:-1] else "<unk>" for piece in own.pieces(own.encode(lines)[0])]
    assert vocab.pieces(vocab.encode(lines)[0]) == known
    assert vocab.decode([[*vocab.encode(["dog"])[0], 2]]) == ["dog"]
    assert vocab.characters("the dog") == own.characters("the dog")
    (tmp_path / "dict.txt").write_text("other 1\n")
    with pytest.raises(DataError, match="has none of the pieces of"):
        FairseqPieces(Dictionary(tmp_path / "dict.txt"), Path("vocab.json"), tmp_path / "vocab.model")


def test_a_run_folder_finds_its_files_by_vocab_json(files, tmp_path):
    (tmp_path / "vocab.json").write_text(
        '{"kind": "fairseq", "source": {"dictionary": "dict.en.txt", "bpe": "bpe.codes"}, '
        '"target": {"dictionary": "dict.en.txt"}}'
    )
    source, target = load_vocabs(tmp_path)
    assert (source.encode(["lower"]), target.encode(["lower"])) == ([[5, 6, 7]], [[3]])
    assert source.specials == SpecialTokens(padding=1, beginning=2, end=2, unknown=3)
    assert source.path == tmp_path / "vocab.json"
    (tmp_path / "vocab.json").write_text('{"kind": "fairseq", "source": {}}')
    with pytest.raises(DataError, match="does not describe the vocabularies beside it"):
        load_vocabs(tmp_path)
