"""What a word of the toy language pair is, read from its row of a table, and the endings of German.

Tables are text: a word a line, " / " between cells, "-" for an empty cell. Each class below takes the cells
of its row in order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
CLASSES = ("person", "animal", "thing", "closable", "text", "machine", "place", "food", "idea")
# of nouns; below called groups. Cells may also say:
SHORT_FOR = {"animate": CLASSES[:2], "solid": CLASSES[2:8], "any": CLASSES[:8]}


def read_entries(kind: Callable[..., T], text: str) -> tuple[T, ...]:
    """A table's words, each made from the cells of its row."""
    rows = (line.split(" / ") for line in text.strip().splitlines())
    return tuple(kind(*("" if cell.strip() == "-" else cell.strip() for cell in row)) for row in rows)


def groups_of(cell: str) -> tuple[str, ...]:
    """Return the groups of nouns that a cell names; `animate`, `solid` and `any` stand for several."""
    return tuple(group for word in cell.split() for group in SHORT_FOR.get(word, (word,)))


class Noun:
    """A noun. forms: English singular and plural; gender: m, f or n; german: singular and plural; where: its
    German preposition of place."""

    def __init__(self, forms: str, gender: str, german: str, where: str = "in") -> None:
        self.forms, self.gender, self.german, self.where = forms.split(), gender, german.split(), where


class Sense:
    """A German verb, from a cell such as `an|ruft rufen`: its separable prefix or "", and its third person
    (singular, plural). The infinitive is prefix + plural."""

    def __init__(self, cell: str) -> None:
        self.prefix, _, forms = cell.rpartition("|")
        self.forms = forms.split()


class Verb:
    """A verb.

    frame: intransitive, transitive, ditransitive, clause or copula. forms: English (singular, plural).
    subjects, objects: the groups of nouns that it takes (the objects of a clause verb are that and whether).
    german: of `Sense`. rest: `subject GROUPS: German` or `object GROUPS: German` for a second sense, which
    the group of this phrase decides; `dat` for a German object in the dative; `motion` where two-way
    prepositions take the accusative after it. senses: group -> Sense, "" for all other groups."""

    def __init__(self, frame: str, forms: str, subjects: str, objects: str, german: str, *rest: str) -> None:
        self.frame, self.forms = frame, forms.split()[::-1]
        self.subjects, self.objects = groups_of(subjects), groups_of(objects)
        self.case, self.motion = "dat" if "dat" in rest else "acc", "motion" in rest
        self.senses, self.decided_by = {"": Sense(german)}, "object"
        for condition, colon, other in (cell.partition(": ") for cell in rest):
            if colon:
                self.decided_by, *groups = condition.split()
                self.senses |= dict.fromkeys(groups, Sense(other))


class Adjective:
    """An adjective. groups: of the nouns that it describes. stems: the German stem by the noun's group, ""
    for all other groups; rest: `GROUPS: German` for a second one."""

    def __init__(self, form: str, groups: str, german: str, *rest: str) -> None:
        self.form, self.groups, self.stems = form, groups_of(groups), {"": german}
        for where, _, stem in (cell.partition(": ") for cell in rest):
            self.stems |= dict.fromkeys(where.split(), stem)


@dataclass(frozen=True)
class Determiner:
    """A determiner of singular or plural nouns. form: English, "" for the bare plural. stem: German. pattern,
    adjectives: the rows of `ENDINGS` of the stem, and of adjectives after it."""

    form: str
    label: str
    stem: str
    pattern: str
    adjectives: str


@dataclass(frozen=True)
class Adverb:
    """An adverb. label: spaCy's dependency label; `never` is neg, `today` npadvmod."""

    form: str
    german: str
    label: str = "advmod"


class Preposition:
    """A preposition. german: "" stands for the noun's own preposition of place. case: acc, dat, or two-way
    (acc with verbs of motion). groups: of the nouns that it takes."""

    def __init__(self, form: str, german: str, case: str, groups: str) -> None:
        self.form, self.german, self.case, self.groups = form, german, case, groups_of(groups)


def endings(*rows: str) -> dict[tuple[str, str], str]:
    """(case, column) -> ending, from a row for each case with a cell for each column, "-" for none. Columns
    are the genders, and p for plurals of any gender."""
    return {
        (case, column): ending.strip("-")
        for case, row in zip(("nom", "acc", "dat"), rows, strict=True)
        for column, ending in zip("mfnp", row.split(), strict=True)
    }


ENDINGS = {
    "der": endings("der die das die", "den die das die", "dem der dem den"),
    "relative": endings("der die das die", "den die das die", "dem der dem denen"),
    "dies": endings("er e es e", "en e es e", "em er em en"),
    "ein": endings("- e - e", "en e - e", "em er em en"),
    "fixed": endings("- - - -", "- - - -", "- - - -"),
    "weak": endings("e e e en", "en e e en", "en en en en"),
    "mixed": endings("er e es en", "en e es en", "en en en en"),
    "strong": endings("er e es e", "en e es e", "em er em en"),
}
