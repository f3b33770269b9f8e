"""Dependency trees, and their reader from CoNLL-U files (universaldependencies.org/format.html): ten columns
a word, an empty line after each sentence. The words are numbered 1, 2, ...; of a contraction (`1-2 don't`) a
tree has the parts; empty nodes (8.1) are left out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgates.configs.fields import shortened
from headgates.data.text import DataError, line_error
from headgates.data.text_file import read_lines

COLUMNS = 10
ID, FORM, HEAD, LABEL, MISC = 0, 1, 6, 7, 9
_NUMBER = re.compile(r"(\d+)(?:([-.])(\d+))?")


@dataclass
class Tree:
    """The dependency tree of a sentence. heads: for each word its head's number, from 1, or 0 for a root;
    text: as written.

    written: the characters of the text that belong to each word; by default the word itself. They differ for
    a contraction that is not its parts side by side: of French `du` (de + le) the first part has all
    characters and the second has ''."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    text: str
    written: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.written = self.written or self.words
        assert len(self.words) == len(self.heads) == len(self.labels) == len(self.written)

    def __len__(self) -> int:
        return len(self.words)


def word_spans(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Return for each word the range [begin, end) of its characters in `text`; begin = end for a word without
    characters.

    White space is ignored, and the words must cover the rest of the text. Raises DataError at the first word
    that does not follow."""
    places = [i for i, character in enumerate(text) if not character.isspace()]
    spans, at, end = [], 0, 0
    for number, word in enumerate(words, start=1):
        letters = "".join(word.split())
        own = places[at : at + len(letters)]
        if "".join(text[i] for i in own) != letters:
            rest = "".join(text[i:].strip() for i in own[:1])
            raise DataError(f"word {number}, {word!r}, is not what the text goes on with: {shortened(rest)}")
        at, end = at + len(own), own[-1] + 1 if own else end
        spans.append((own[0] if own else end, end))
    if at < len(places):
        rest = text[places[at] :].strip()
        raise DataError(f"the text goes on after the last of its {len(words)} words: {shortened(rest)}")
    return spans


def read_conllu(path: str | Path) -> list[Tree]:
    """Return the trees of a CoNLL-U file, plain or gzip. A sentence's text is its comment `# text =`, or else
    its forms put together.

    Raises DataError, naming file and line, at a line that breaks the format."""
    trees: list[Tree] = []
    rows: list[tuple[int, list[str]]] = []
    text: str | None = None
    lines = [*read_lines(path), ""]  # the last sentence may lack its empty line
    for number, line in enumerate(lines, start=1):
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
            raise line_error(
                path, line, f"expected {COLUMNS} columns with tabs between them, got {len(columns)}"
            )
        form, head, match = columns[FORM], columns[HEAD], _NUMBER.fullmatch(columns[ID])
        if match and match[2] == ".":
            continue
        number, end = len(nodes) + 1, int(match[3] or 0) if match else 0
        if not match or int(match[1]) != number or (match[2] and (end < number or contraction_end >= number)):
            raise line_error(
                path,
                line,
                f"expected word {number}, got {columns[ID]!r}; words are numbered from 1 in each sentence, "
                "as 3, 3-4 or 3.1",
            )
        if match[2] or number > contraction_end:
            tokens.append((number, form, "SpaceAfter=No" not in columns[MISC].split("|")))
        if match[2]:
            contraction_end = end
            continue
        if not head.isdecimal():
            raise line_error(
                path, line, f"expected the number of the head of {form!r} in column 7 (0: root), got {head!r}"
            )
        nodes.append((form, int(head), columns[LABEL], line))
    for number, (_, head_number, _, line) in enumerate(nodes, start=1):
        if head_number == number or head_number > len(nodes):
            raise line_error(
                path,
                line,
                f"the head of word {number} is {head_number}; expected another of the {len(nodes)} words, or "
                "0",
            )
    if contraction_end > len(nodes) or not nodes:
        words_there = len(nodes)
        raise line_error(
            path, rows[-1][0], f"the sentence ends after word {words_there}; expected word {words_there + 1}"
        )
    words, heads, labels, _ = zip(*nodes, strict=True)
    sentence = "".join(form + " " * space for _, form, space in tokens).strip()
    tree = Tree(words, heads, labels, sentence if text is None else text, _written(words, tokens))
    try:
        word_spans(tree.text, tree.written)
    except DataError as error:
        raise line_error(
            path, rows[0][0], f"the words of this sentence are not its `# text`: {error}"
        ) from None
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
