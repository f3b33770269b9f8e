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
from functools import cache
from itertools import accumulate
from random import Random
from typing import TypeAlias, TypeVar

from headgates.data.toy import lexicon
from headgates.data.toy.entries import Adjective, Adverb, Determiner, Noun, Preposition, Verb

T = TypeVar("T")


@cache
def zipf(count: int, shift: int) -> list[float]:
    """The running sums of 1 / (rank + shift), ranks from 1."""
    return list(accumulate(1 / (rank + shift) for rank in range(1, count + 1)))


def draw(rng: Random, items: Sequence[T], *, shift: int = 1) -> T:
    """One of the items, with weight 1 / (rank + shift). Uses `Random.random` alone, whose stream Python
    guarantees to keep."""
    sums = zipf(len(items), shift)
    return items[bisect(sums, rng.random() * sums[-1], 0, len(items) - 1)]


At: TypeAlias = dict[object, int]


@dataclass(slots=True)
class Phrase:
    """A noun phrase, or a name or pronoun, which has no determiner. at: part of it -> index of its word in
    English, filled in when English is written; as in `Clause`."""

    group: str
    noun: Noun
    plural: bool = False
    determiner: Determiner | None = None
    adjectives: "list[Quality]" = field(default_factory=list)
    post: "Place | None" = None
    relative: "Clause | None" = None
    others: "list[Phrase]" = field(default_factory=list)  # further phrases, joined by `and`
    at: At = field(default_factory=dict)

    @property
    def column(self) -> str:
        """The phrase's column in the tables of endings: the noun's gender, or p for a plural."""
        return "p" if self.plural else self.noun.gender


Quality: TypeAlias = tuple[Adverb | None, Adjective]  # very, old
Place: TypeAlias = tuple[Preposition, Phrase]


@dataclass(slots=True)
class Clause:
    """A clause. In a relative clause the role that `gap` names (nsubj or dobj) is played by the phrase it
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
    predicate: Quality | None = None
    before: Adverb | None = None
    after: Adverb | None = None
    place: Place | None = None
    front: "Adverb | Place | Clause | None" = None  # what stands before the subject of a main clause
    content: "Clause | None" = None  # what is said, known, asked
    adverbial: "Clause | None" = None  # final; a fronted one is `front`
    joined: "Clause | None" = None  # a second main clause
    at: At = field(default_factory=dict)

    @property
    def plural(self) -> bool:
        return self.subject.plural or bool(self.subject.others)


def draw_sentence(rng: Random) -> Clause:
    """Draw the meaning of one sentence: a main clause, perhaps with a fronted adverb, phrase or clause, or
    with a second main clause."""
    chance = rng.random()
    front: Adverb | Place | Clause | None = None
    if chance < 0.10:
        front = draw(rng, lexicon.TIME)
    elif chance < 0.17:
        front = draw_place(rng, lexicon.PREPOSITIONS)
    elif chance < 0.23:
        front = draw_clause(rng, rank="subordinate", opening=draw(rng, lexicon.ADVERBIAL_MARKS))
    joined = None
    if front is None and rng.random() < 0.07:
        joined = draw_clause(rng, rank="joined", opening=draw(rng, lexicon.COORDINATORS))
    clause = draw_clause(rng, rank="joined" if joined else "main", front=front)
    clause.joined = joined
    return clause


def draw_clause(
    rng: Random,
    *,
    rank: str,
    front: Adverb | Place | Clause | None = None,
    opening: tuple[str, str] = ("", ""),
) -> Clause:
    """Draw a clause with its own subject. rank: main (may hold any other clause), joined (one of two main
    clauses: holds none) or subordinate (holds relative clauses only)."""
    main, chance = rank == "main", rng.random()
    fronted = isinstance(front, tuple)
    if chance < 0.28 or (fronted and chance < 0.40):
        verb = draw(rng, lexicon.VERBS["intransitive"])
    elif chance < 0.72:
        verb = draw(rng, lexicon.VERBS["transitive"])
    elif chance < 0.82:
        verb = lexicon.COPULA
    elif chance < 0.90 or not main:
        verb = draw(rng, lexicon.VERBS["ditransitive"])
    else:
        verb = draw(rng, lexicon.VERBS["clause"])
    bare = rank == "joined"  # two main clauses are long enough without clauses inside
    joining = main and not isinstance(front, Clause)
    subject = draw_phrase(
        rng, draw(rng, verb.subjects), subject=True, clauses=not bare, joining=joining, spoken=fronted
    )
    clause = Clause(verb, subject, front=front, opening=opening)
    if verb.frame in ("transitive", "ditransitive"):
        long = subject.relative or subject.others or verb.frame == "ditransitive"
        clause.object = draw_phrase(
            rng, draw(rng, verb.objects), clauses=not (bare or long), joining=joining and not long
        )
    if verb.frame == "ditransitive":
        clause.recipient = draw_phrase(rng, "person", spoken=True)
        clause.recipient_first = rng.random() < 0.4
    _fill(rng, clause)
    if verb.frame == "clause":
        mark = draw(rng, verb.objects)
        clause.content = draw_clause(rng, rank="subordinate", opening=(mark, lexicon.CONTENT_MARKS[mark]))
    elif main and front is None and not (clause.object and clause.object.relative) and rng.random() < 0.12:
        clause.adverbial = draw_clause(rng, rank="subordinate", opening=draw(rng, lexicon.ADVERBIAL_MARKS))
    return clause


def draw_relative(rng: Random, head: Phrase) -> Clause:
    """Draw a relative clause about `head`, which is its subject or its object; all its phrases are plain."""
    chance, group = rng.random(), head.group
    taking = [verb for verb in lexicon.VERBS["transitive"] if group in verb.objects]
    if chance < 0.5 and taking:
        verb = draw(rng, taking)
        subject = draw_phrase(rng, draw(rng, verb.subjects), subject=True, spoken=True)
        clause = Clause(verb, subject, object=head, gap="dobj", opening=("that", ""))
    else:
        frame = "intransitive" if chance < 0.65 else "transitive"
        taking = [verb for verb in lexicon.VERBS[frame] if group in verb.subjects]
        verb = draw(rng, taking) if chance < 0.9 and taking else lexicon.COPULA
        pronoun = "who" if group == "person" and rng.random() < 0.4 else "that"
        clause = Clause(verb, head, gap="nsubj", opening=(pronoun, ""))
        if verb.frame == "transitive":
            clause.object = draw_phrase(rng, draw(rng, verb.objects))
    _fill(rng, clause)
    return clause


def _fill(rng: Random, clause: Clause) -> None:
    """Add what may surround any verb: modal, negation, adverbs, a place, the adjective of `is`."""
    verb = clause.verb
    if verb is lexicon.COPULA:
        adjective = draw(rng, adjectives(clause.subject.group))
        clause.predicate = (draw(rng, lexicon.DEGREES) if rng.random() < 0.3 else None, adjective)
    chance = rng.random()
    if chance < 0.16 and clause.predicate is None:
        clause.modal = draw(rng, lexicon.MODALS)
    elif chance < 0.25:
        clause.negated = True
    # `the dog that sleeps often sees`: read by people in two ways
    after_relative = clause.subject.relative and not clause.modal
    if not (clause.negated or after_relative) and rng.random() < 0.14:
        clause.before = draw(rng, lexicon.BEFORE_VERB)
    if clause.predicate or verb.frame == "clause" or (clause.object and clause.object.relative):
        return
    if verb.motion:
        if rng.random() < 0.7:
            clause.place = draw_place(rng, lexicon.DIRECTION_PREPOSITIONS)
    elif not isinstance(clause.front, tuple) and rng.random() < (0.3 if clause.object is None else 0.16):
        clause.place = draw_place(rng, lexicon.PREPOSITIONS)
    if not isinstance(clause.front, Adverb) and rng.random() < (
        0.12 if clause.gap or clause.front or clause.place else 0.2
    ):
        clause.after = draw(rng, lexicon.AFTER_VERB + lexicon.TIME)


def adjectives(group: str) -> list[Adjective]:
    """Those that describe nouns of a group."""
    return [adjective for adjective in lexicon.ADJECTIVES if group in adjective.groups]


def draw_place(rng: Random, prepositions: Sequence[Preposition]) -> Place:
    """Draw a preposition and a plain phrase for it."""
    preposition = draw(rng, prepositions)
    return preposition, draw_phrase(rng, draw(rng, preposition.groups), spoken=True)


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
        if chance < 0.14:
            noun = draw(rng, lexicon.PRONOUNS if chance < 0.05 and subject else lexicon.NAMES)
            return Phrase(group, noun, plural=len(noun.forms) > 1)
    phrase = Phrase(group, draw(rng, lexicon.NOUNS[group]), plural=rng.random() < 0.34)
    determiners = lexicon.PLURAL if phrase.plural else lexicon.SINGULAR
    phrase.determiner = draw(rng, [each for each in determiners if each.form or not spoken], shift=0)
    chance = rng.random()
    for _ in range((chance < 0.38) + (chance < 0.06)):
        adjective = draw(rng, adjectives(group))
        if all(adjective is not other for _, other in phrase.adjectives):
            phrase.adjectives.append((draw(rng, lexicon.DEGREES) if rng.random() < 0.12 else None, adjective))
    chance = rng.random()
    if clauses and chance < 0.17:
        phrase.relative = draw_relative(rng, phrase)
    elif clauses and chance < 0.25:
        phrase.post = draw_place(rng, lexicon.OF_NOUN)
    elif joining and phrase.determiner.form and chance < 0.33:
        phrase.others = [draw_phrase(rng, group, spoken=True) for _ in range(1 + (chance >= 0.31))]
    return phrase
