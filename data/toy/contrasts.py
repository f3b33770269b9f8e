"""Contrasts of the toy language, made by its grammar: a sentence, the same with one thing changed, and what
German says of each.

    number  one noun is singular or plural            The old dog can sleep. / The old dogs can sleep.
    gender  the object is of another gender           Der Hund kann den ... / Der Hund kann die ...
    case    the verb takes the accusative or dative   Der Hund kann den ... / Der Hund kann dem ...
    order   subject and object change places          The dog sees the cat. / The cat sees the dog.

Of number and order all that differs in German is what the change causes; of gender and case the outputs end
with the first word that shows it. A modal verb keeps English verbs as they are, and puts German ones last."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from headgates.data.contrast import OPEN, Contrast
from headgates.data.toy import lexicon
from headgates.data.toy.entries import Determiner, Noun, Verb
from headgates.data.toy.grammar import Clause, Phrase, Quality, adjectives, draw
from headgates.data.toy.writing import both_languages, join_words

COUNT = 100  # contrasts of a set
ANIMATE = ("person", "animal")
Two = tuple[Clause, Clause]  # what is said, and what is said with one thing changed


def toy_contrasts(name: str, *, count: int = COUNT, seed: int = 0) -> list[Contrast]:
    """Return `count` contrasts of a kind, no source twice. Which of the two sentences is the source, chance
    decides. The same seed gives the same."""
    rng, found = Random(seed), dict[str, Contrast]()
    two, first_difference = MAKERS[name]
    while len(found) < count:
        said, other = two(rng)
        pair = [(said, other), (other, said)][rng.random() < 0.5]
        (source, right), (corrupted, wrong) = map(written, pair)
        if first_difference:
            right, wrong = until_they_differ(right, wrong)
        if not {source, corrupted} & found.keys():
            found[source] = Contrast(source, right, wrong, corrupted)
    return list(found.values())


def written(clause: Clause) -> tuple[str, str]:
    """The clause in English and in German."""
    english, german = both_languages(clause)
    return join_words(english.words), join_words(german.words)


def until_they_differ(right: str, wrong: str) -> tuple[str, str]:
    """Both outputs up to the first word in which they differ."""
    words = right.split(), wrong.split()
    same = next(i for i, (a, b) in enumerate(zip(*words, strict=False)) if a != b)
    first, second = (" ".join(each[: same + 1]) + OPEN for each in words)
    return first, second


# ---------------------------------------------------------------- what is said


def number(rng: Random) -> Two:
    subject = phrase(rng, draw(rng, ANIMATE))
    with_object = rng.random() < 0.5
    verb = draw(rng, taking(subject, "transitive" if with_object else "intransitive"))
    own = phrase(rng, draw(rng, verb.objects)) if with_object else None
    clause = Clause(verb, subject, own, modal=draw(rng, lexicon.MODALS))
    several = replace(subject, plural=True, determiner=the(lexicon.PLURAL), at={})
    return clause, replace(clause, subject=several, at={})


def gender(rng: Random) -> Two:
    subject = phrase(rng, draw(rng, ANIMATE))
    verb = draw(rng, [verb for verb in taking(subject, "transitive") if verb.case == "acc"])
    own = phrase(rng, draw(rng, verb.objects))
    others = [noun for noun in lexicon.NOUNS[own.group] if noun.gender != own.noun.gender]
    clause = Clause(verb, subject, own, modal=draw(rng, lexicon.MODALS))
    return clause, replace(clause, object=replace(own, noun=draw(rng, others), at={}), at={})


def case(rng: Random) -> Two:
    subject = phrase(rng, draw(rng, ANIMATE))
    takes = taking(subject, "transitive")
    dative = draw(rng, [verb for verb in takes if verb.case == "dat"])
    group = draw(rng, [group for group in ANIMATE if group in dative.objects])
    accusative = draw(rng, [verb for verb in takes if verb.case == "acc" and group in verb.objects])
    clause = Clause(dative, subject, phrase(rng, group), modal=draw(rng, lexicon.MODALS))
    return clause, replace(clause, verb=accusative, at={})


def order(rng: Random) -> Two:
    group = draw(rng, ANIMATE)
    takes = [
        verb
        for verb in lexicon.VERBS["transitive"]
        if group in verb.subjects and group in verb.objects and verb.senses.keys() <= {"", *ANIMATE}
    ]
    noun = draw(rng, lexicon.NOUNS[group])
    other = draw(rng, [each for each in lexicon.NOUNS[group] if each is not noun])
    first, second = phrase(rng, group, noun), phrase(rng, group, other)
    modal = draw(rng, lexicon.MODALS) if rng.random() < 0.5 else None
    clause = Clause(draw(rng, takes), first, second, modal=modal)
    return clause, replace(clause, subject=second, object=first, at={})


MAKERS: dict[str, tuple[Callable[[Random], Two], bool]] = {  # and whether outputs end where they differ first
    "number": (number, False),
    "gender": (gender, True),
    "case": (case, True),
    "order": (order, False),
}


# ---------------------------------------------------------------- parts of it


def the(determiners: Sequence[Determiner]) -> Determiner:
    return next(each for each in determiners if each.form == "the")


def phrase(rng: Random, group: str, noun: Noun | None = None) -> Phrase:
    """`the`, perhaps an adjective, and a noun in the singular."""
    qualities: list[Quality] = [(None, draw(rng, adjectives(group)))] if rng.random() < 0.5 else []
    return Phrase(group, noun or draw(rng, lexicon.NOUNS[group]), False, the(lexicon.SINGULAR), qualities)


def taking(subject: Phrase, frame: str) -> list[Verb]:
    """The verbs that take this subject."""
    return [verb for verb in lexicon.VERBS[frame] if subject.group in verb.subjects]
