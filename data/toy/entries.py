"""What a word of the toy language pair is, how its table is read, and how German inflects it.

Tables are text: a word a line, " / " between cells, "-" for an empty cell."""

from dataclasses import dataclass

CLASSES = (
    "person",
    "animal",
    "thing",
    "closable",
    "text",
    "machine",
    "place",
    "food",
    "idea",
)  # of nouns; below called groups
SHORT_FOR = {
    "animate": ("person", "animal"),
    "solid": ("thing", "closable", "text", "machine", "place", "food"),
    "any": ("person", "animal", "thing", "closable", "text", "machine", "place", "food"),
}


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun. forms: English (singular, plural); german: the same in German; gender: m, f or n; where: its
    preposition of place."""

    forms: tuple[str, str]
    german: tuple[str, str]
    gender: str
    where: str


@dataclass(frozen=True, slots=True)
class Sense:
    """A German verb: its separable prefix or "", and third person (singular, plural); the infinitive is
    prefix + plural."""

    prefix: str
    forms: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb. forms: English (singular, plural). frame: intransitive, transitive, ditransitive, clause or
    copula. subjects, objects: the groups of nouns that it takes (the objects of a clause verb are that and
    whether). senses: the German verb by the group of the phrase that decides, "" for all other groups;
    decided_by: whether this phrase is the subject or the object. case: of the German object. motion: whether
    two-way prepositions take the
    accusative after it."""

    forms: tuple[str, str]
    frame: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    senses: dict[str, Sense]
    decided_by: str
    case: str
    motion: bool


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective. groups: of the nouns that it describes. stems: the German stem by the noun's group, ""
    for all other groups."""

    form: str
    groups: tuple[str, ...]
    stems: dict[str, str]


@dataclass(frozen=True, slots=True)
class Determiner:
    """A determiner of singular or plural nouns. form: English, "" for the bare plural. stem: German. pattern:
    how the stem inflects (der, dies, ein, viel, or fixed). adjectives: the declension of adjectives after it
    (weak, mixed or strong)."""

    form: str
    label: str
    stem: str
    pattern: str
    adjectives: str


@dataclass(frozen=True, slots=True)
class Adverb:
    """An adverb. label: spaCy's dependency label; `never` is neg, `today` npadvmod."""

    form: str
    german: str
    label: str


@dataclass(frozen=True, slots=True)
class Preposition:
    """A preposition. german: "" stands for the noun's own preposition of place. case: acc, dat, or two-way
    (acc with verbs of motion). groups: of the nouns that it takes."""

    form: str
    german: str
    case: str
    groups: tuple[str, ...]


def table(text: str) -> list[list[str]]:
    """Return the rows of a table, each as the list of its cells."""
    return [
        ["" if cell.strip() == "-" else cell.strip() for cell in line.split(" / ")]
        for line in text.strip().splitlines()
    ]


def groups_of(cell: str) -> tuple[str, ...]:
    """Return the groups of nouns that a cell names; `animate`, `solid` and `any` stand for several."""
    return tuple(group for word in cell.split() for group in SHORT_FOR.get(word, (word,)))


def pair(cell: str) -> tuple[str, str]:
    first, second = cell.split()
    return first, second


def read_nouns(text: str) -> tuple[Noun, ...]:
    """Read a table of nouns: English singular and plural, gender, German; then the preposition of place
    unless it is `in`."""
    return tuple(Noun(pair(r[0]), pair(r[2]), r[1], r[3] if len(r) > 3 else "in") for r in table(text))


def sense_of(cell: str) -> Sense:
    """Read a German verb such as `an|ruft rufen`: prefix, singular, plural."""
    prefix, _, forms = cell.rpartition("|")
    return Sense(prefix, pair(forms))


def read_verbs(frame: str, text: str) -> tuple[Verb, ...]:
    """Read a table of verbs: English plural and singular, subjects, objects, German (prefix|singular plural);
    then, as needed, `subject GROUPS: German` or `object GROUPS: German` for a second sense, `dat`,
    `motion`."""
    verbs = []
    for english, subjects, objects, german, *rest in table(text):
        plural, singular = pair(english)
        senses, decided_by = {"": sense_of(german)}, "object"
        for condition, _, other in (cell.partition(": ") for cell in rest if ":" in cell):
            decided_by, *groups = condition.split()
            senses |= {group: sense_of(other) for group in groups}
        case = "dat" if "dat" in rest else "acc"
        verbs.append(
            Verb(
                (singular, plural),
                frame,
                groups_of(subjects),
                groups_of(objects),
                senses,
                decided_by,
                case,
                "motion" in rest,
            )
        )
    return tuple(verbs)


def read_adjectives(text: str) -> tuple[Adjective, ...]:
    """Read a table of adjectives: English, groups of nouns, German; then, where there is a second sense,
    `GROUPS: German`."""
    adjectives = []
    for english, groups, german, *rest in table(text):
        stems = {"": german}
        for where, _, stem in (cell.partition(": ") for cell in rest):
            stems |= dict.fromkeys(where.split(), stem)
        adjectives.append(Adjective(english, groups_of(groups), stems))
    return tuple(adjectives)


def read_adverbs(text: str) -> tuple[Adverb, ...]:
    return tuple(Adverb(r[0], r[1], r[2] if len(r) > 2 else "advmod") for r in table(text))


def read_prepositions(text: str) -> tuple[Preposition, ...]:
    return tuple(
        Preposition(english, german, case, groups_of(groups)) for english, german, case, groups in table(text)
    )


def read_determiners(text: str) -> tuple[Determiner, ...]:
    return tuple(Determiner(*row) for row in table(text))


CASES, COLUMNS = ("nom", "acc", "dat"), "mfnp"  # p: plural, of any gender


def read_endings(stem: str, *rows: str) -> dict[str, dict[str, str]]:
    """Return case -> column -> form. Each row holds the endings of a case, one for each column, "-" for
    none."""
    forms = [[stem + ending.strip("-") for ending in row.split()] for row in rows]
    return {case: dict(zip(COLUMNS, row, strict=True)) for case, row in zip(CASES, forms, strict=True)}


ARTICLE = read_endings("d", "er ie as ie", "en ie as ie", "em er em en")
RELATIVE = read_endings("d", "er ie as ie", "en ie as ie", "em er em enen")
ENDINGS = {
    "dies": read_endings("", "er e es e", "en e es e", "em er em en"),
    "ein": read_endings("", "- e - e", "en e - e", "em er em en"),
    "weak": read_endings("", "e e e en", "en e e en", "en en en en"),
    "mixed": read_endings("", "er e es en", "en e es en", "en en en en"),
    "strong": read_endings("", "er e es e", "en e es e", "em er em en"),
}
ENDINGS["viel"] = ENDINGS["strong"]


def decline_noun(noun: Noun, *, plural: bool, case: str) -> str:
    """Return the German noun. Only the dative plural has an ending of its own: -n, unless the plural ends in
    n or s."""
    form = noun.german[plural]
    return form + "n" if plural and case == "dat" and form[-1] not in "ns" else form


def decline_determiner(determiner: Determiner, *, column: str, case: str) -> str:
    """Return the German determiner; "" where German has none."""
    if determiner.pattern == "der":
        return ARTICLE[case][column]
    return (
        determiner.stem
        if determiner.pattern == "fixed"
        else determiner.stem + ENDINGS[determiner.pattern][case][column]
    )
