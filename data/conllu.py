"""Dependency trees, and their reader from CoNLL-U files (universaldependencies.org/format.html): ten columns
a word, an empty line after each sentence. The words are numbered 1, 2, ...; of a contraction (`1-2 don't`) a
tree has the parts; empty
nodes (8.1) are left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgates.data.parallel import read_lines
from headgates.data.text import DataError

COLUMNS = 10
ID, FORM, HEAD, LABEL, MISC = 0, 1, 6, 7, 9
_NUMBER = re.compile(r"(\d+)(?:([-.])(\d+))?")


@dataclass(frozen=True)
class Tree:
    """The dependency tree of a sentence. heads: for each word its head's number, from 1, or 0 for a root;
    text: as written.

    written: the characters of the text that belong to each word; by default the word itself. They differ for
    a contraction that is not its parts side by side: of French `du` (de + le) the first part has all
    characters and the second has
    ''."""

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
    """Return for each word the range [begin, end) of its characters in `text`; begin = end for a word without
    characters.

    White space is ignored, and the words must cover the rest of the text. Raises DataError at the first word
    that does not follow."""
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
                raise DataError(
                    f"word {number}, {word!r}, is not what the text goes on with: {shorten(rest)!r}"
                )
            begin = at if begin is None else begin
            at += 1
        spans.append((at, at) if begin is None else (begin, at))
    if rest := text[at:].strip():
        raise DataError(f"the text goes on after the last of its {len(words)} words: {shorten(rest)!r}")
    return spans


def shorten(text: str, width: int = 60) -> str:
    """Return the text, cut to `width` characters, the last three of them dots, if it is longer."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def read_conllu(path: str | Path) -> list[Tree]:
    """Return the trees of a CoNLL-U file, plain or gzip. A sentence's text is its comment `# text =`, or else
    its forms put together.

    Raises DataError, naming file and line, at a line that breaks the format."""
    trees: list[Tree] = []
    rows: list[tuple[int, list[str]]] = []
    text: str | None = None
    for number, line in enumerate(
        [*read_lines(path), ""], start=1
    ):  # the last sentence may lack its empty line
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
        raise DataError(
            f"{path} has no sentence: expected CoNLL-U, {COLUMNS} columns a word and an empty line after "
            "each sentence"
        )
    return trees


def _tree(path: str | Path, rows: list[tuple[int, list[str]]], text: str | None) -> Tree:
    nodes: list[tuple[str, int, str, int]] = []  # of each word: form, head, label, and line in the file
    tokens: list[tuple[int, str, bool]] = []  # number of its first word, as written, a space after it
    contraction_end = 0  # the number of the last word of the current contraction
    for line, columns in rows:
        if len(columns) != COLUMNS:
            raise _error(path, line, f"expected {COLUMNS} columns with tabs between them, got {len(columns)}")
        form, space = columns[FORM], "SpaceAfter=No" not in columns[MISC].split("|")
        match = _NUMBER.fullmatch(columns[ID])
        if not match:
            raise _error(
                path,
                line,
                f"expected a word's number such as 3, 3-4 or 3.1 in the first column, got {columns[ID]!r}",
            )
        if match[2] == ".":
            continue
        first, next_word = int(match[1]), len(nodes) + 1
        if first != next_word or (match[2] and (int(match[3]) < first or contraction_end >= next_word)):
            raise _error(
                path,
                line,
                f"expected word {next_word}, got {columns[ID]!r}; words are numbered from 1 in each sentence",
            )
        if match[2]:
            contraction_end = int(match[3])
            tokens.append((next_word, form, space))
            continue
        if next_word > contraction_end:
            tokens.append((next_word, form, space))
        if not columns[HEAD].isdecimal():
            raise _error(
                path,
                line,
                f"expected the number of the head of {form!r} in column 7 (0 for the root), got "
                f"{columns[HEAD]!r}",
            )
        nodes.append((form, int(columns[HEAD]), columns[LABEL], line))
    for number, (_, head, _, line) in enumerate(nodes, start=1):
        if head == number or head > len(nodes):
            raise _error(
                path,
                line,
                f"the head of word {number} is {head}; expected another of the {len(nodes)} words, or 0",
            )
    last, sentence = rows[-1][0], "".join(form + " " * space for _, form, space in tokens).strip()
    if contraction_end > len(nodes) or not nodes:
        raise _error(path, last, f"the sentence ends after word {len(nodes)}; expected word {len(nodes) + 1}")
    words, heads, labels, _ = zip(*nodes, strict=True)
    tree = Tree(words, heads, labels, sentence if text is None else text, _written(words, tokens))
    try:
        word_spans(tree.text, tree.written)
    except DataError as error:
        raise _error(path, rows[0][0], f"the words of this sentence are not its `# text`: {error}") from None
    return tree


def _written(words: tuple[str, ...], tokens: list[tuple[int, str, bool]]) -> tuple[str, ...]:
    """`Tree.written` of words that tokens begin at: a contraction is cut where its parts are written side by
    side."""
    written: list[str] = []
    ends = [first for first, _, _ in tokens[1:]] + [len(words) + 1]
    for (first, form, _), end in zip(tokens, ends, strict=True):
        parts = words[first - 1 : end - 1]
        written += parts if "".join(parts) == form else [form, *[""] * (len(parts) - 1)]
    return tuple(written)


def _error(path: str | Path, line: int, message: str) -> DataError:
    return DataError(f"{path}, line {line}: {message}")
