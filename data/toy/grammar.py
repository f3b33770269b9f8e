"""The grammar of the toy language pair: draws what a sentence says. `writing.py` writes it down in English
and in German.

Why the translation is a function: a `Clause` says everything about a sentence, German is computed from it
without chance, and English can be read back into it in one way only:
- a verb has one valency (`know` two: a phrase, or a clause that `that` or `whether` opens); `that` opens a
  clause after a verb and a relative clause after a noun; `to` marks a recipient after the four verbs of
  giving and nowhere else;
- `of` and `from` attach to the noun before them, all other prepositions to the verb; adverbs before the verb
  and after it differ;
- after a relative clause comes the outer clause's verb, a clause opened by a mark or a comma, or the end;
  after a `that` clause the end;
- `because`, `when` ... attach to the main clause and stand in no other; `after`, `before` are marks where a
  verb follows their phrase;
- a comma before `and` or `but` joins clauses, no comma joins phrases, and phrases that are joined hold no
  clause and no `of`.
Nesting: a relative clause holds no other clause, a subordinate clause holds relative clauses only."""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, TypeAlias, TypeVar

from headgates.data.toy import lexicon as lexicon
from headgates.data.toy.entries import CLASSES, Adjective, Adverb, Determiner, Noun, Preposition, Verb

T = TypeVar("T")


class Zipf(Generic[T]):
    """Draws items with weight 1 / (rank + shift), ranks from 1. Uses `Random.random` alone, whose stream
    Python guarantees to keep."""

    def __init__(self, items: Sequence[T], *, shift: int = 1) -> None:
        self.items, self.sums, total = tuple(items), [], 0.0
        for rank in range(1, len(items) + 1):
            total += 1 / (rank + shift)
            self.sums.append(total)

    def draw(self, rng: Random) -> T:
        return self.items[min(bisect(self.sums, rng.random() * self.sums[-1]), len(self.items) - 1)]


@dataclass(slots=True)
class Phrase:
    """A noun phrase, or a name or pronoun. The fields at_... are the source indices of its words, filled in
    when English is written."""

    group: str
    noun: Noun | None = None
    name: tuple[str, str] = ("", "")  # English and German, where there is no noun
    plural: bool = False
    determiner: Determiner | None = None
    adjectives: list[tuple[Adverb | None, Adjective]] = field(default_factory=list)
    post: "tuple[Preposition, Phrase] | None" = None
    relative: "Clause | None" = None
    others: "list[Phrase]" = field(default_factory=list)  # further phrases, joined by `and`
    at_determiner: int = -1
    at_adjectives: list[tuple[int, int]] = field(
        default_factory=list
    )  # of the degree (-1: none) and of the adjective
    at_noun: int = -1
    at_post: int = -1
    at_others: list[int] = field(default_factory=list)  # of the comma or `and` before each of the others

    @property
    def column(self) -> str:
        """The phrase's column in the tables of endings: the noun's gender, or p for a plural."""
        assert self.noun
        return "p" if self.plural else self.noun.gender


Front: TypeAlias = (
    "Adverb | tuple[Preposition, Phrase] | Clause | None"  # what stands before the subject of a main clause
)


@dataclass(slots=True)
class Clause:
    """A clause. In a relative clause the role that `gap` names (subject or object) is played by the phrase it
    belongs to."""

    verb: Verb
    subject: Phrase
    object: Phrase | None = None
    recipient: Phrase | None = None
    recipient_first: bool = False  # `gives the man the book`, else `gives the book to the man`
    gap: str = ""
    opening: tuple[str, str] = ("", "")  # because/weil, that/dass; of a relative clause that or who, and ""
    modal: tuple[str, tuple[str, str]] | None = None
    negated: bool = False
    predicate: tuple[Adverb | None, Adjective] | None = None
    before: Adverb | None = None
    after: Adverb | None = None
    place: tuple[Preposition, Phrase] | None = None
    front: Front = None
    content: "Clause | None" = None  # what is said, known, asked
    adverbial: "Clause | None" = None  # final; a fronted one is `front`
    joined: "Clause | None" = None  # a second main clause
    at: dict[str, int] = field(
        default_factory=dict
    )  # role of a word of the clause's own (verb, modal, not, opening ...) -> source index

    @property
    def plural(self) -> bool:
        return self.subject.plural or bool(self.subject.others)


NOUNS = {group: Zipf(nouns) for group, nouns in lexicon.NOUNS.items()}
ADJECTIVES = {group: Zipf([a for a in lexicon.ADJECTIVES if group in a.groups]) for group in CLASSES}
VERBS = {frame: Zipf(verbs) for frame, verbs in lexicon.VERBS.items()}
GROUPS = {
    groups: Zipf(groups)
    for verbs in lexicon.VERBS.values()
    for v in verbs
    for groups in (v.subjects, v.objects)
}
GROUPS |= {p.groups: Zipf(p.groups) for p in lexicon.PREPOSITIONS + lexicon.DIRECTIONS + lexicon.OF_NOUN}
GROUPS[lexicon.COPULA.subjects] = Zipf(lexicon.COPULA.subjects)
TAKING_SUBJECT = {  # (frame, group of the subject) -> verbs
    (frame, group): Zipf([v for v in lexicon.VERBS[frame] if group in v.subjects])
    for frame in ("intransitive", "transitive")
    for group in CLASSES
}
TAKING_OBJECT = {
    group: Zipf([v for v in lexicon.VERBS["transitive"] if group in v.objects]) for group in CLASSES
}
DETERMINERS = (Zipf(lexicon.SINGULAR, shift=0), Zipf(lexicon.PLURAL, shift=0))
SPOKEN_DETERMINERS = (DETERMINERS[0], Zipf([d for d in lexicon.PLURAL if d.form], shift=0))
NAMES, PRONOUNS, DEGREES = Zipf(lexicon.NAMES), Zipf(lexicon.PRONOUNS), Zipf(lexicon.DEGREES)
BEFORE, AFTER, FRONT = Zipf(lexicon.BEFORE_VERB), Zipf(lexicon.AFTER_VERB + lexicon.TIME), Zipf(lexicon.TIME)
PLACES, DIRECTIONS, OF_NOUN = Zipf(lexicon.PREPOSITIONS), Zipf(lexicon.DIRECTIONS), Zipf(lexicon.OF_NOUN)
MODALS, ADVERBIAL_MARKS, COORDINATORS = (
    Zipf(lexicon.MODALS),
    Zipf(lexicon.ADVERBIAL_MARKS),
    Zipf(lexicon.COORDINATORS),
)


def draw_sentence(rng: Random) -> Clause:
    """Draw the meaning of one sentence: a main clause, perhaps with a fronted adverb, phrase or clause, or
    with a second main clause."""
    chance = rng.random()
    front: Front = None
    if chance < 0.10:
        front = FRONT.draw(rng)
    elif chance < 0.17:
        front = draw_place(rng, PLACES)
    elif chance < 0.23:
        front = draw_clause(rng, rank="subordinate", opening=ADVERBIAL_MARKS.draw(rng))
    joined = None
    if front is None and rng.random() < 0.07:
        joined = draw_clause(rng, rank="joined", opening=COORDINATORS.draw(rng))
    clause = draw_clause(rng, rank="joined" if joined else "main", front=front)
    clause.joined = joined
    return clause


def draw_clause(
    rng: Random, *, rank: str, front: Front = None, opening: tuple[str, str] = ("", "")
) -> Clause:
    """Draw a clause with its own subject. rank: main (may hold any other clause), joined (one of two main
    clauses: holds none) or subordinate (holds relative clauses only)."""
    main, chance = rank == "main", rng.random()
    fronted = isinstance(front, tuple)
    if chance < 0.28 or (fronted and chance < 0.40):
        verb = VERBS["intransitive"].draw(rng)
    elif chance < 0.72:
        verb = VERBS["transitive"].draw(rng)
    elif chance < 0.82:
        verb = lexicon.COPULA
    elif chance < 0.90 or not main:
        verb = VERBS["ditransitive"].draw(rng)
    else:
        verb = VERBS["clause"].draw(rng)
    bare = rank == "joined"  # two main clauses are long enough without clauses inside
    joining = main and not isinstance(front, Clause)
    subject = draw_phrase(
        rng, GROUPS[verb.subjects].draw(rng), subject=True, clauses=not bare, joining=joining, spoken=fronted
    )
    clause = Clause(verb, subject, front=front, opening=opening)
    if verb.frame in ("transitive", "ditransitive"):
        long = subject.relative or subject.others or verb.frame == "ditransitive"
        clause.object = draw_phrase(
            rng, GROUPS[verb.objects].draw(rng), clauses=not (bare or long), joining=joining and not long
        )
    if verb.frame == "ditransitive":
        clause.recipient = draw_phrase(rng, "person", spoken=True, clauses=False)
        clause.recipient_first = rng.random() < 0.4
    _fill(rng, clause)
    if verb.frame == "clause":
        mark = GROUPS[verb.objects].draw(rng)
        clause.content = draw_clause(rng, rank="subordinate", opening=(mark, lexicon.CONTENT_MARKS[mark]))
    elif main and front is None and not (clause.object and clause.object.relative) and rng.random() < 0.12:
        clause.adverbial = draw_clause(rng, rank="subordinate", opening=ADVERBIAL_MARKS.draw(rng))
    return clause


def draw_relative(rng: Random, head: Phrase) -> Clause:
    """Draw a relative clause about `head`, which is its subject or its object; all its phrases are plain."""
    chance = rng.random()
    if chance < 0.5 and (verbs := TAKING_OBJECT[head.group]).items:
        verb = verbs.draw(rng)
        subject = draw_phrase(rng, GROUPS[verb.subjects].draw(rng), subject=True, spoken=True, clauses=False)
        clause = Clause(verb, subject, object=head, gap="object", opening=("that", ""))
    else:
        frame = "intransitive" if chance < 0.65 else "transitive"
        verb = (
            TAKING_SUBJECT[frame, head.group].draw(rng)
            if chance < 0.9 and TAKING_SUBJECT[frame, head.group].items
            else lexicon.COPULA
        )
        pronoun = "who" if head.group == "person" and rng.random() < 0.4 else "that"
        clause = Clause(verb, head, gap="subject", opening=(pronoun, ""))
        if verb.frame == "transitive":
            clause.object = draw_phrase(rng, GROUPS[verb.objects].draw(rng), clauses=False)
    _fill(rng, clause)
    return clause


def _fill(rng: Random, clause: Clause) -> None:
    """Add what may surround any verb: modal, negation, adverbs, a place, the adjective of `is`."""
    verb = clause.verb
    if verb is lexicon.COPULA:
        adjective = ADJECTIVES[clause.subject.group].draw(rng)
        clause.predicate = (DEGREES.draw(rng) if rng.random() < 0.3 else None, adjective)
    chance = rng.random()
    if chance < 0.16 and clause.predicate is None:
        clause.modal = MODALS.draw(rng)
    elif chance < 0.25:
        clause.negated = True
    after_relative = (
        clause.subject.relative and not clause.modal
    )  # `the dog that sleeps often sees`: read by people in two ways
    if not (clause.negated or after_relative) and rng.random() < 0.14:
        clause.before = BEFORE.draw(rng)
    if clause.predicate or verb.frame == "clause" or (clause.object and clause.object.relative):
        return
    if verb.motion:
        if rng.random() < 0.7:
            clause.place = draw_place(rng, DIRECTIONS)
    elif not isinstance(clause.front, tuple) and rng.random() < (0.3 if clause.object is None else 0.16):
        clause.place = draw_place(rng, PLACES)
    if not isinstance(clause.front, Adverb) and rng.random() < (
        0.12 if clause.gap or clause.front or clause.place else 0.2
    ):
        clause.after = AFTER.draw(rng)


def draw_place(rng: Random, prepositions: Zipf[Preposition]) -> tuple[Preposition, Phrase]:
    """Draw a preposition and a plain phrase for it."""
    preposition = prepositions.draw(rng)
    return preposition, draw_phrase(rng, GROUPS[preposition.groups].draw(rng), spoken=True, clauses=False)


def draw_phrase(
    rng: Random,
    group: str,
    *,
    subject: bool = False,
    spoken: bool = False,
    clauses: bool = False,
    joining: bool = False,
) -> Phrase:
    """Draw a noun phrase of a group of nouns. subject: may be a pronoun; spoken: must open with a word of its
    own (no `dogs` alone); clauses: may hold a relative clause or `of`; joining: may hold further phrases."""
    if group == "person":
        chance = rng.random()
        if chance < 0.05 and subject:
            english, german, plural = PRONOUNS.draw(rng)
            return Phrase(group, name=(english, german), plural=plural)
        if chance < 0.14:
            name = NAMES.draw(rng)
            return Phrase(group, name=(name, name))
    phrase = Phrase(group, NOUNS[group].draw(rng), plural=rng.random() < 0.34)
    phrase.determiner = (SPOKEN_DETERMINERS if spoken else DETERMINERS)[phrase.plural].draw(rng)
    chance = rng.random()
    for _ in range((chance < 0.38) + (chance < 0.06)):
        adjective = ADJECTIVES[group].draw(rng)
        if all(adjective is not other for _, other in phrase.adjectives):
            phrase.adjectives.append((DEGREES.draw(rng) if rng.random() < 0.12 else None, adjective))
    chance = rng.random()
    if clauses and chance < 0.17:
        phrase.relative = draw_relative(rng, phrase)
    elif clauses and chance < 0.25:
        preposition = OF_NOUN.draw(rng)
        phrase.post = preposition, draw_phrase(rng, GROUPS[preposition.groups].draw(rng), spoken=True)
    elif joining and phrase.determiner.form and chance < 0.33:
        for _ in range(1 if chance < 0.31 else 2):
            other = draw_phrase(rng, group, spoken=True)
            phrase.others.append(other)
    return phrase
