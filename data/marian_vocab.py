"""Vocabularies of Marian's models: a SentencePiece model whose pieces' ids are the model's, or a YAML file of
`word: id`.

A YAML vocabulary's text is cut by a SentencePiece model beside it (OPUS-MT has source.spm and target.spm), or
at its spaces. Marian has neither padding nor beginning: here both are one more token after the last, whose
embedding is 0 and which is never produced.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from headgates.configs.own_file import own_file
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError, reworded
from headgates.data.trimming import Ids, Kept, trim_pieces
from headgates.data.vocab import VOCAB_ABOUT, Vocab, read_about, write_about

PADDING_NAME = "<pad>"  # the name of padding and beginning
EVENTS = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent)  # of a flat mapping
END, UNKNOWN = "</s>", "<unk>"
MULTIPLE = 8  # intgemm multiplies so many columns of the output layer at once, and Marian stops at a rest
LANGUAGE = re.compile(
    r">>.+<<"
)  # how models of many languages are told which one to write, before the source's pieces


class MarianVocab:
    """file: what it was read from. ids: piece -> id. specials: those of the model. cutter: cuts text into
    pieces, None for spaces. languages: the pieces that say which language to write, of a source. language:
    the one of a line that does not begin with its own."""

    def __init__(
        self,
        file: Path,
        ids: dict[str, int],
        specials: SpecialTokens,
        cutter: Vocab | None,
        languages: Sequence[str] = (),
        language: str | None = None,
    ):
        self.file, self.ids, self.specials, self.cutter = file, ids, specials, cutter
        self.names = {number: name for name, number in ids.items()} | {specials.padding: PADDING_NAME}
        self.languages, self.before = languages, [] if language is None else [ids[language]]

    @property
    def path(self) -> Path:
        return self.file.with_name(VOCAB_ABOUT)

    def __len__(self) -> int:
        return self.specials.padding + 1

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        owns, rests = zip(*map(self.own_language, lines), strict=True) if lines else ((), ())
        cut = [line.split() for line in rests]
        if self.cutter:
            cut = self.cutter.processor.encode(list(rests), out_type=str)
        return [
            ([self.ids[own]] if own else self.before)
            + [self.ids.get(piece, self.specials.unknown) for piece in pieces]
            if pieces
            else []
            for own, pieces in zip(owns, cut, strict=True)
        ]

    def own_language(self, line: str) -> tuple[str, str]:
        """The language token that a line begins with, or "", and the rest."""
        own = line[: line.find("<<") + 2] if line.startswith(">>") else ""
        return (own, line[len(own) :]) if own in self.languages else ("", line)

    def decode(self, ids_list: Sequence[Sequence[int]]) -> list[str]:
        """As in `Vocabulary`; an unknown piece is <unk> where spaces cut, SentencePiece's two question marks
        elsewhere."""
        no_text = {self.specials.padding, self.specials.beginning, self.specials.end}
        pieces = [self.pieces([i for i in ids if i not in no_text]) for ids in ids_list]
        return self.cutter.processor.decode(pieces) if self.cutter else [" ".join(each) for each in pieces]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """As in `Vocabulary`; an id between the vocabulary's last and padding has no piece, which is
        <unk>."""
        return [self.names.get(int(i), UNKNOWN) for i in ids]

    def characters(self, text: str) -> list[list[int]]:
        own, rest = self.own_language(text)
        words = [list(range(*match.span())) for match in re.finditer(r"\S+", rest)]
        found = self.cutter.characters(rest) if self.cutter else words
        before = [list(range(len(own)))] if own else [[] for _ in self.before]
        return before + [[i + len(own) for i in each] for each in found] if found else []


def load(
    folder: Path, about: dict[str, Any], *specials: SpecialTokens | None
) -> tuple[MarianVocab, MarianVocab]:
    """The vocabularies that vocab.json describes: `files` and `cutters` (None for none) name the two sides'
    files, `sizes` are the model's numbers of embeddings without padding, `language` is put before sources.
    Raises DataError where a file is missing or broken."""
    paths = [own_file(folder, Path(name).name) for name in about["files"]]
    cutters = [name and own_file(folder, Path(name).name) for name in about["cutters"]]
    return read_sides(paths, cutters, list(map(int, about["sizes"])), about["language"], specials)


def read_sides(
    paths: Sequence[Path],
    cutters: Sequence[Path | None],
    sizes: Sequence[int],
    language: str | None,
    specials: Sequence[SpecialTokens | None] = (None, None),
    *,
    writes_unknown: bool = False,
) -> tuple[MarianVocab, MarianVocab]:
    """The vocabularies of source and target, the same object twice where they are one. specials: the model's,
    where they are known. writes_unknown: else whether translations may hold <unk>."""
    source, target = zip(paths, cutters, sizes, specials, strict=True)
    first = read_side(*source, writes_unknown=writes_unknown)
    second = first if source == target else read_side(*target, writes_unknown=writes_unknown)
    languages = [piece for piece in first.ids if LANGUAGE.fullmatch(piece)]
    if language is not None and language not in languages:
        raise DataError(
            f"{first.file} has no token {language}; of such tokens it has "
            f"{', '.join(languages[:20]) or 'none'}"
        )
    if languages:  # of a source alone
        first = MarianVocab(first.file, first.ids, first.specials, first.cutter, languages, language)
    return first, second


def read_side(
    path: Path,
    cutter_path: Path | None,
    size: int,
    specials: SpecialTokens | None,
    *,
    writes_unknown: bool,
) -> MarianVocab:
    """The vocabulary of one side, for a model of `size` embeddings without padding."""
    cutter = (
        Vocab.load(cutter_path or path, SpecialTokens()) if cutter_path or path.suffix == ".spm" else None
    )
    if cutter and not cutter_path:
        ids = {piece: i for i, piece in enumerate(cutter.pieces(range(len(cutter))))}
    else:
        ids = read_words(path)
    missing = [name for name in (END, UNKNOWN) if name not in ids]
    if missing or max(ids.values()) >= size:
        found = f"ids up to {max(ids.values())}, but the model has {size} embeddings"
        if missing:
            found = f"no {' and no '.join(missing)}"
        raise DataError(
            f"{path} does not belong to the model: it has {found}; give the vocabulary that the model was "
            "trained with"
        )
    expected = SpecialTokens(size, size, ids[END], ids[UNKNOWN], writes_unknown=writes_unknown)
    return MarianVocab(path, ids, specials or expected, cutter)


def read_words(path: Path) -> dict[str, int]:
    """The ids of a YAML vocabulary's words. Raises DataError at a file that is no mapping of words to
    different ids from 0 on."""
    with reworded(f"{path} is no vocabulary of YAML `word: id`", "copy it again"):
        # every scalar a string: `no` and `1.0` are words; nothing is nested, named or constructed
        events = yaml.parse(path.read_bytes(), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        words = []
        for place, event in enumerate(events):
            expected = EVENTS[place] if place < len(EVENTS) else (yaml.ScalarEvent, yaml.MappingEndEvent)
            if isinstance(event, yaml.MappingEndEvent):
                break
            if not isinstance(event, expected):
                raise ValueError(f"a {type(event).__name__} stands in line {event.start_mark.line + 1}")
            if isinstance(event, yaml.ScalarEvent):
                words.append(event.value)
        ids = {word: int(number) for word, number in zip(words[::2], words[1::2], strict=True)}
    numbers = set(ids.values())
    if 2 * len(numbers) < len(words) or min(numbers, default=-1) < 0:
        raise DataError(
            f"{path}: expected a different id from 0 on for every word, got {len(numbers)} for "
            f"{len(words) // 2} words"
        )
    return ids


def trim(folder: Path, source: MarianVocab, target: MarianVocab, used: tuple[Ids, Ids]) -> Kept:
    """`data.trimming.trimmed_vocabs` of this kind. Raises DataError at a YAML vocabulary."""
    if source.file == target.file:
        used = (used[0] | used[1],) * 2
    kept: list[list[int]] = []
    for vocab, ids in zip((source, target), used, strict=True):
        if vocab.file.suffix != ".spm":
            raise DataError(
                f"{vocab.file} is Marian's YAML, which cannot be trimmed; take the same model as hf:NAME, or "
                "close heads or neurons instead"
            )
        padding = vocab.specials.padding  # no piece of the file
        stay = trim_pieces(folder / vocab.file.name, vocab.cutter, ids - {padding}, multiple=MULTIPLE)
        kept.append([*stay, padding])
    write_about(folder, read_about(source.path) | {"sizes": [len(ids) - 1 for ids in kept]})
    return kept[0], kept[1]
