"""Dependency trees, and their reader from CoNLL-U files (universaldependencies.org/format.html): ten columns a word, an empty line after
each sentence. The words are numbered 1, 2, ...; of a contraction (`1-2 don't`) a tree has the parts; empty nodes (8.1) are left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data.parallel import DataError, read_lines

COLUMNS = 10
ID, FORM, HEAD, LABEL, MISC = 0, 1, 6, 7, 9
_NUMBER = re.compile(r"(\d+)(?:([-.])(\d+))?")


@dataclass(frozen=True)
class Tree:
    """One sentence. heads: per word, 1-based, 0 for a root; text: as one reads it.

    written: what of the text is each word's, the words themselves unless given. They differ where a contraction is not its parts side by
    side (`du` is de + le): the first part has all of it, the others have ''."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    text: str
    written: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.written:
            object.__setattr__(self, "written", self.words)
        assert len(self.words) == len(self.heads) == len(self.labels) == len(self.written)

    def __len__(self) -> int:
        return len(self.words)


def word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Per word the characters [begin, end) of `text` that are its own; begin = end for a word of which nothing is written.

    White space does not count: side by side, the words must be the text without it. DataError names the first word that is not next."""
    spans, at = [], 0
    for number, word in enumerate(words, start=1):
        begin = None
        for character in word:
            if character.isspace():
                continue
            while text[at : at + 1].isspace():
                at += 1
            if text[at : at + 1] != character:
                rest = text[at if begin is None else begin :].strip()
                raise DataError(f"word {number}, {word!r}, is not what the text goes on with: {shorten(rest)!r}")
            begin = at if begin is None else begin
            at += 1
        spans.append((at, at) if begin is None else (begin, at))
    if rest := text[at:].strip():
        raise DataError(f"the text goes on after the last of its {len(words)} words: {shorten(rest)!r}")
    return spans


def shorten(text: str, width: int = 60) -> str:
    """The first `width` characters, with dots where there are more."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def read_conllu(path: str | Path) -> list[Tree]:
    """The trees of a CoNLL-U file, plain or gzip, in its order. The text is the comment `# text =`, or the forms put together where there
    is none. DataError names the file and the line that is not as the format has it."""
    trees: list[Tree] = []
    rows: list[tuple[int, list[str]]] = []
    text: str | None = None
    for number, line in enumerate([*read_lines(path), ""], start=1):  # the last sentence may lack its empty line
        if line.startswith("#"):
            name, equals, value = line[1:].partition("=")
            if equals and name.strip() == "text":
                text = value.strip()
        elif line:
            rows.append((number, line.split("\t")))
        else:
            if rows:
                trees.append(_tree(path, rows, text))
            rows, text = [], None
    if not trees:
        raise DataError(f"{path} has no sentence: expected CoNLL-U, {COLUMNS} columns a word and an empty line after each sentence")
    return trees


def _tree(path: str | Path, rows: list[tuple[int, list[str]]], text: str | None) -> Tree:
    words: list[str] = []
    heads: list[int] = []
    labels: list[str] = []
    places: list[int] = []  # the lines of the words
    tokens: list[tuple[int, str, bool]] = []  # number of its first word, as written, a space after it
    inside = 0  # the last word of the present contraction
    for line, columns in rows:
        if len(columns) != COLUMNS:
            raise _error(path, line, f"expected {COLUMNS} columns with tabs between them, got {len(columns)}")
        form, space = columns[FORM], "SpaceAfter=No" not in columns[MISC].split("|")
        match = _NUMBER.fullmatch(columns[ID])
        if not match:
            raise _error(path, line, f"expected a word's number such as 3, 3-4 or 3.1 in the first column, got {columns[ID]!r}")
        if match[2] == ".":
            continue
        first, here = int(match[1]), len(words) + 1
        if first != here or (match[2] and (int(match[3]) < first or inside >= here)):
            raise _error(path, line, f"expected word {here}, got {columns[ID]!r}; words are numbered from 1 in each sentence")
        if match[2]:
            inside = int(match[3])
            tokens.append((here, form, space))
            continue
        if here > inside:
            tokens.append((here, form, space))
        if not columns[HEAD].isdecimal():
            raise _error(path, line, f"expected the number of the head of {form!r} in column 7 (0 for the root), got {columns[HEAD]!r}")
        words.append(form)
        heads.append(int(columns[HEAD]))
        labels.append(columns[LABEL])
        places.append(line)
    for number, (head, line) in enumerate(zip(heads, places, strict=True), start=1):
        if head == number or head > len(words):
            raise _error(path, line, f"the head of word {number} is {head}; expected another of the {len(words)} words, or 0")
    last, sentence = rows[-1][0], "".join(form + " " * space for _, form, space in tokens).strip()
    if inside > len(words) or not words:
        raise _error(path, last, f"the sentence ends after word {len(words)}; expected word {len(words) + 1}")
    tree = Tree(tuple(words), tuple(heads), tuple(labels), sentence if text is None else text, _written(words, tokens))
    try:
        word_spans(tree.text, tree.written)
    except DataError as error:
        raise _error(path, rows[0][0], f"the words of this sentence are not its `# text`: {error}") from None
    return tree


def _written(words: list[str], tokens: list[tuple[int, str, bool]]) -> tuple[str, ...]:
    """`Tree.written` of words that tokens begin at: a contraction is cut where its parts are written side by side."""
    written: list[str] = []
    ends = [first for first, _, _ in tokens[1:]] + [len(words) + 1]
    for (first, form, _), end in zip(tokens, ends, strict=True):
        parts = words[first - 1 : end - 1]
        written += parts if "".join(parts) == form else [form, *[""] * (len(parts) - 1)]
    return tuple(written)


def _error(path: str | Path, line: int, message: str) -> DataError:
    return DataError(f"{path}, line {line}: {message}")
