"""fairseq's dictionaries, with the BPE of subword-nmt or a SentencePiece model that cuts words into their
symbols.

A dictionary is a text file of lines `symbol count`. Line n, from 0, has the id n + 4: before it come <s>,
<pad>, </s> and <unk>, which are not in the file. The decoder reads </s> first.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headgates.configs.fields import shortened
from headgates.configs.own_file import own_file
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError, reworded
from headgates.data.text_file import decode_line, opened
from headgates.data.vocab import VOCAB_ABOUT, Vocab, Vocabulary

SPECIALS = SpecialTokens(padding=1, beginning=2, end=2, unknown=3)
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")  # of the ids 0 to 3
UNKNOWN = SYMBOLS[SPECIALS.unknown]
MARK = "@@"  # what subword-nmt puts after every piece of a word but the last
OVERWRITE = "#fairseq:overwrite"
Cut = Callable[[str], list[str]]  # a word -> its pieces


class Dictionary:
    """The symbols of a dictionary file by their ids.

    Raises DataError where the file is missing or a line is not `symbol count`, or where a symbol comes
    twice."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.symbols = list(SYMBOLS)
        self.ids = {symbol: i for i, symbol in enumerate(SYMBOLS)}
        for number, line in enumerate(file_lines(self.path), start=1):
            text = line.rstrip()
            own = text.removesuffix(f" {OVERWRITE}")
            symbol, _, count = own.rpartition(" ")  # a symbol may hold spaces, a count does not
            if not (symbol and count.isdecimal()):
                raise DataError(
                    f"{self.path}, line {number}: expected a symbol, a space and its count, got "
                    f"{shortened(line)}"
                )
            if symbol in self.ids and own == text:
                raise DataError(
                    f"{self.path}, line {number}: {shortened(symbol)} comes twice, so ids after it would "
                    "be wrong; take the dictionary that fairseq-preprocess wrote"
                )
            self.ids[symbol] = len(self.symbols)
            self.symbols.append(symbol)
        if len(self.symbols) == len(SYMBOLS):
            raise DataError(
                f"{self.path} has no symbols; expected a fairseq dictionary, a line `symbol count` for each"
            )

    def __len__(self) -> int:
        return len(self.symbols)

    def index(self, symbol: str) -> int:
        """The id of a symbol of text; that of <unk> for all that the file does not have."""
        found = self.ids.get(symbol, SPECIALS.unknown)
        return found if found >= len(SYMBOLS) else SPECIALS.unknown  # the word </s> in a text does not end it


def file_lines(path: Path) -> list[str]:
    """The lines of a file of UTF-8, which end at line feeds and nowhere else: pieces may be other line
    separators. Raises DataError."""
    with opened(path) as file:
        raw = [line.removesuffix(b"\n") for line in file]
    return [decode_line(line, number, str(path)) for number, line in enumerate(raw, start=1)]


def join_pieces(pieces: Sequence[str]) -> str:
    """The text of pieces of words cut by subword-nmt."""
    return (" ".join(pieces) + " ").replace(f"{MARK} ", "").rstrip(" ")


def bpe(path: Path) -> Cut:
    """The cutting of a file of BPE codes, subword-nmt's or fastBPE's. Raises DataError where the package is
    missing or the file broken."""
    what = f"{path} holds BPE codes, which the package subword-nmt applies"
    with reworded(what, "python -m pip install '.[fairseq]'", ImportError):
        from subword_nmt.apply_bpe import BPE
    codes = read_codes(path)
    with reworded(f"{path} is no file of BPE codes", f"{codes[0]!r} is no version of theirs"):
        cutter = BPE(io.StringIO("\n".join(codes)), separator=MARK)
    return lambda word: cutter.segment_tokens([word])


def read_codes(path: Path) -> list[str]:
    """The line of the version, if there is one, and the pairs of pieces, the first to be merged first. Raises
    DataError at a file of something else."""
    lines = [line.strip("\r ") for line in file_lines(path)]
    version = [lines.pop(0)] if lines and lines[0].startswith("#version:") else []
    pairs = [line.split(" ") for line in lines if line]
    if not version and all(len(pair) == 3 and pair[2].isdecimal() for pair in pairs):
        version, pairs = ["#version: 0.2"], [pair[:2] for pair in pairs]  # fastBPE's: the same with counts
    wrong = next((" ".join(pair) for pair in pairs if len(pair) != 2), None if pairs else "nothing")
    if wrong is not None:
        raise DataError(f"{path} is no file of BPE codes: expected two pieces a line, got {shortened(wrong)}")
    return [*version, *map(" ".join, pairs)]


class DictionaryVocab:
    """What vocabularies of a dictionary have in common."""

    specials = SPECIALS

    def __init__(self, dictionary: Dictionary, path: Path):
        self.dictionary, self.path = dictionary, path

    def __len__(self) -> int:
        return len(self.dictionary)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """As in `Vocabulary`; every piece of a word but the last ends in @@ where subword-nmt cut it, and a
        word's first piece starts with U+2581 where SentencePiece did."""
        return [self.dictionary.symbols[int(i)] for i in ids]

    def text(self, ids: Sequence[int]) -> list[int]:
        """The ids that stand for text."""
        return [int(i) for i in ids if int(i) not in (0, SPECIALS.padding, SPECIALS.end)]


class FairseqVocab(DictionaryVocab):
    """A dictionary whose text is words, cut by `cut`; without it they are taken as they stand, and stay so.

    What is cut already stays as it is: pieces that end in @@, <unk>, and the piece after one of these."""

    def __init__(self, dictionary: Dictionary, path: Path, cut: Cut | None = None):
        super().__init__(dictionary, path)
        self.cut = cut

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [[self.dictionary.index(piece) for piece, _ in self._pieces(line)] for line in lines]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """As in `Vocabulary`, without BPE's marks where there are codes; an unknown piece is <unk>."""
        texts = (self.pieces(self.text(ids)) for ids in ids_list)
        return [join_pieces(pieces) if self.cut else " ".join(pieces) for pieces in texts]

    def characters(self, text: str) -> list[list[int]]:
        """As in `Vocabulary`: pieces are the parts of words, in order."""
        order = iter([i for i, character in enumerate(text) if not character.isspace()])
        return [[next(order) for _ in range(length)] for _, length in self._pieces(text)]

    def _pieces(self, line: str) -> Iterator[tuple[str, int]]:
        """The pieces of a line, each with how many of its characters it stands for."""
        whole = False
        for word in line.split():
            part = word.endswith(MARK) or word == UNKNOWN
            if self.cut is None or whole or part:
                yield word, len(word)
            else:
                *inner, last = self.cut(word)
                yield from ((piece, len(piece) - len(MARK)) for piece in inner)
                yield last, len(last)
            whole = part


class FairseqPieces(DictionaryVocab):
    """A dictionary of the pieces of a SentencePiece model, which cuts the text and puts it together."""

    def __init__(self, dictionary: Dictionary, path: Path, model: Path):
        super().__init__(dictionary, path)
        self.sentencepiece = Vocab.load(model, SpecialTokens())
        own = self.sentencepiece.pieces(range(len(self.sentencepiece)))
        if not set(own).intersection(dictionary.symbols[len(SYMBOLS) :]):
            raise DataError(
                f"{dictionary.path} has none of the pieces of {model}; take the dictionary of the text "
                "that it cut"
            )

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        cut = self.sentencepiece.processor.encode(list(lines), out_type=str)
        return [list(map(self.dictionary.index, pieces)) for pieces in cut]

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        return self.sentencepiece.processor.decode([self.pieces(self.text(ids)) for ids in ids_list])

    def characters(self, text: str) -> list[list[int]]:
        return self.sentencepiece.characters(text)


def load(
    folder: Path, about: dict[str, Any], source: SpecialTokens | None, target: SpecialTokens | None
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of a run folder. about: for "source" and "target" the files, {"dictionary": ..., "bpe"
    or "sentencepiece": ...}."""
    of_source, of_target = (
        {name: own_file(folder, Path(file).name) for name, file in about[side].items()}
        for side in ("source", "target")
    )
    return fairseq_vocabs(of_source, of_target, folder / VOCAB_ABOUT)


def fairseq_vocabs(
    source: dict[str, Path], target: dict[str, Path], path: Path
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of files as `load` names them; the same object twice where they are equal in content.
    Raises DataError."""
    vocab = fairseq_vocab(source, path)
    ours, theirs = ({name: file.read_bytes() for name, file in each.items()} for each in (source, target))
    return vocab, vocab if ours == theirs else fairseq_vocab(target, path)


def fairseq_vocab(files: dict[str, Path], path: Path) -> Vocabulary:
    dictionary = Dictionary(files["dictionary"])
    if "sentencepiece" in files:
        return FairseqPieces(dictionary, path, files["sentencepiece"])
    return FairseqVocab(dictionary, path, bpe(files["bpe"]) if "bpe" in files else None)
