"""Contrasts: two outputs of one source, of which a model should prefer the right one; and, where heads are to
be patched, a corrupted source for which the wrong one is right.

A file has a contrast a line, all of one form, columns parted by tabs:

    source <tab> right <tab> wrong
    source <tab> corrupted source <tab> right <tab> wrong

Empty lines and lines that begin with # are passed over. An output that ends in " ..." is a beginning: what
comes after it does not count. Importing this needs the standard library alone."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.registry import imported
from headgates.data.text import DataError, line_error
from headgates.data.text_file import lines_of

LEAST = 4  # contrasts of a file: half of them name heads, half test them
OPEN = " ..."  # the end of an output that is a beginning
CONTRASTS_FOLDER = Path(__file__).parent / "contrasts"
# prefix -> name -> what it is about; of the toy language they are generated, of English to German files
NAMED = {
    "toy": {
        "number": "the subject's",
        "gender": "the object's, by its article",
        "case": "the object's, which the verb at the end decides",
        "order": "who does it to whom, in the same words",
    },
    "toy-multi": {
        "language": "which of two the first source token asks for",
        "number": "the subject's",
    },
    "en-de": {
        "number": "one or several",
        "pronoun": "he or she",
        "negation": "negated or not",
    },
}
GENERATORS = {  # prefix -> "module:f(name)"
    "toy": "headgates.data.toy.contrasts:toy_contrasts",
    "toy-multi": "headgates.data.toy.multi:multi_contrasts",
}


@dataclass(frozen=True)
class Contrast:
    """One line. corrupted: None where the file has no such column."""

    source: str
    right: str
    wrong: str
    corrupted: str | None = None

    @property
    def difference(self) -> tuple[frozenset[str], frozenset[str]]:
        """The words that only the source has, and those that only the corrupted one has; of both outputs
        where there is no corrupted source, or the sources differ in nothing but order. Without case and
        punctuation."""
        sides = (self.source, self.corrupted or self.source), (self.right, self.wrong)
        for one, other in (map(word_counts, each) for each in sides):
            if one != other:
                break
        return frozenset(one - other), frozenset(other - one)


def word_counts(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.casefold()))


def read_contrasts(name: str) -> list[Contrast]:
    """The contrasts of PREFIX:NAME in NAMED, or of a file. Raises DataError at an unknown name, and at the
    first broken line of a file, with its number."""
    prefix, colon, own = name.partition(":")
    if not colon or prefix not in NAMED:
        return read_file(name)
    if own not in NAMED[prefix]:
        raise DataError(
            f"{prefix} has no contrast {own!r}{did_you_mean(own, NAMED[prefix])}; it has "
            f"{', '.join(NAMED[prefix])}"
        )
    if prefix in GENERATORS:
        found: list[Contrast] = imported(GENERATORS[prefix])(own)
        return found
    return read_file(CONTRASTS_FOLDER / f"{prefix}-{own}.tsv")


def names_for(data: str, pair: str) -> list[str]:
    """The names of NAMED for a model of this corpus, or else of these languages, such as en-de."""
    prefix = data if data in GENERATORS else pair
    return [f"{prefix}:{name}" for name in NAMED.get(prefix, ())]


def read_file(path: str | Path) -> list[Contrast]:
    """The contrasts of a file; errors are those of `read_contrasts`."""
    found: list[Contrast] = []
    columns = 0
    for number, line in enumerate(lines_of(path), start=1):
        if not line or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) not in (3, 4) or "" in cells:
            raise line_error(
                path,
                number,
                "expected 3 cells, source, right and wrong output, or 4, source, corrupted source, right and "
                f"wrong output, parted by tabs; got {len(cells)}{', one of them empty' * ('' in cells)}",
            )
        columns = columns or len(cells)
        if len(cells) != columns:
            raise line_error(path, number, f"has {len(cells)} cells, others {columns}; give all one form")
        *sources, right, wrong = cells
        if right == wrong or len(set(sources)) < len(sources):
            what = "outputs" if right == wrong else "sources"
            raise line_error(path, number, f"both {what} are the same, so there is no contrast")
        found.append(Contrast(sources[0], right, wrong, sources[1] if len(sources) > 1 else None))
    if len(found) < LEAST:
        raise DataError(
            f"{path} has {len(found)} contrasts; expected at least {LEAST}: half of them name heads, the "
            "others test these"
        )
    return found


def without_mark(output: str) -> tuple[str, bool]:
    """An output without the mark of a beginning, and whether it had it."""
    return output.removesuffix(OPEN), output.endswith(OPEN)
