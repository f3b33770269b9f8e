"""Writes a sentence of the toy grammar down: in English with its dependency tree, and in German with its
alignment to the English words.

English labels are spaCy's (CLEAR style): a relative pronoun is nsubj or dobj of its clause, `is` heads its
adjective (acomp), joined phrases are a chain. German: the finite verb stands second in main clauses and last
in all others; prefixes and infinitives close the clause; before them stand, in this order, subject (where
something else is first),
`oft`, dative, accusative,
`nicht`, `langsam`, place."""

from headgates.data.toy.entries import (
    ENDINGS,
    RELATIVE,
    Adjective,
    Adverb,
    Preposition,
    decline_determiner,
    decline_noun,
)
from headgates.data.toy.grammar import Clause, Phrase

LABELS = (
    "ROOT", "acomp", "advcl", "advmod", "amod", "aux", "cc", "ccomp", "conj", "dative", "det", "dobj",
    "mark", "neg", "npadvmod", "nsubj", "nummod", "pobj", "poss", "prep", "punct", "relcl",
)  # fmt: skip
PUNCTUATION = (",", ".")


def join(words: list[str]) -> str:
    """Join words to a line of text, without a space before commas and periods."""
    return " ".join(words).replace(" ,", ",").replace(" .", ".")


class English:
    """A sentence in English: its words, their heads (numbered from 1, 0 for the root) and labels. Methods
    count words from 0, and fill in the fields `at...` of the clauses and phrases."""

    def __init__(self, sentence: Clause) -> None:
        self.words: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []
        root = self._clause(sentence, "ROOT", -1)
        self._add(".", "punct", root)
        self.words[0] = self.words[0][0].upper() + self.words[0][1:]

    def _add(self, word: str, label: str, head: int = -1) -> int:
        """Add a word and return its index. head: the index of its head, -1 while it is unknown and for the
        root."""
        self.words.append(word)
        self.labels.append(label)
        self.heads.append(head + 1)
        return len(self.words) - 1

    def _attach(self, first: int, head: int) -> None:
        """Make every word from `first` on that has no head yet a dependent of `head`, which keeps its own."""
        for index in range(first, len(self.words)):
            if self.heads[index] == 0 and index != head:
                self.heads[index] = head + 1

    def _phrase(self, phrase: Phrase, label: str, head: int = -1) -> int:
        first = len(self.words)
        if phrase.noun is None:
            noun = self._add(phrase.name[0], label, head)
        else:
            assert phrase.determiner
            if phrase.determiner.form:
                phrase.at_determiner = self._add(phrase.determiner.form, phrase.determiner.label)
            phrase.at_adjectives = [self._adjective(pair, "amod") for pair in phrase.adjectives]
            noun = self._add(phrase.noun.forms[phrase.plural], label, head)
            self._attach(first, noun)
            if self.words[first] == "a" and self.words[first + 1][0] in "aeiou":
                self.words[first] = "an"
        phrase.at_noun = noun
        if phrase.post:
            phrase.at_post = self._place(phrase.post, noun)
        if phrase.relative:
            self._clause(phrase.relative, "relcl", noun)
        previous, phrase.at_others = noun, []
        for left, other in enumerate(phrase.others, start=1 - len(phrase.others)):
            phrase.at_others.append(
                self._add(",", "punct", previous) if left else self._add("and", "cc", previous)
            )
            previous = self._phrase(other, "conj", previous)
        return noun

    def _adjective(
        self, pair: tuple[Adverb | None, Adjective], label: str, head: int = -1
    ) -> tuple[int, int]:
        degree, adjective = pair
        at_degree = (
            self._add(degree.form, degree.label, len(self.words) + 1) if degree else -1
        )  # it depends on the next word
        return at_degree, self._add(adjective.form, label, head)

    def _place(self, place: tuple[Preposition, Phrase], head: int) -> int:
        preposition = self._add(place[0].form, "prep", head)
        self._phrase(place[1], "pobj", preposition)
        return preposition

    def _clause(self, clause: Clause, label: str, head: int) -> int:
        at, opening, plural = clause.at, clause.opening[0], clause.plural
        copula = clause.predicate is not None
        if label == "conj":
            at["opening"] = self._add(opening, "cc", head)
        first = len(self.words)  # from here on, words before the verb without a head depend on the verb
        if clause.gap:
            at["opening"] = self._add(opening, "nsubj" if clause.gap == "subject" else "dobj")
        elif opening and label != "conj":
            at["opening"] = self._add(opening, "advmod" if opening == "when" else "mark")
        if isinstance(clause.front, Clause):
            self._clause(clause.front, "advcl", -1)
            self._add(",", "punct")
        elif isinstance(clause.front, Adverb):
            at["front"] = self._add(clause.front.form, clause.front.label)
        elif clause.front:
            at["front"] = self._place(clause.front, -1)
        if clause.gap != "subject":
            self._phrase(clause.subject, "nsubj")
        # will often see; does not see; often sees; is often; is not
        if clause.modal:
            at["modal"] = self._add(clause.modal[0], "aux")
        elif clause.negated and not copula:
            self._add("do" if plural else "does", "aux")
            at["not"] = self._add("not", "neg")
        if copula:
            at["verb"] = self._add(clause.verb.forms[plural], label, head)
        if clause.before:
            at["before"] = self._add(clause.before.form, clause.before.label)
        if copula and clause.negated:
            at["not"] = self._add("not", "neg", at["verb"])
        if not copula:
            at["verb"] = self._add(
                clause.verb.forms[plural or bool(clause.modal) or clause.negated], label, head
            )
        self._attach(first, at["verb"])
        self._after_verb(clause, at["verb"])
        return at["verb"]

    def _after_verb(self, clause: Clause, verb: int) -> None:
        at = clause.at
        if clause.recipient and clause.recipient_first:
            self._phrase(clause.recipient, "dative", verb)
        if clause.object and clause.gap != "object":
            self._phrase(clause.object, "dobj", verb)
        if clause.recipient and not clause.recipient_first:
            self._phrase(clause.recipient, "pobj", self._add("to", "dative", verb))
        if clause.predicate:
            at["degree"], at["predicate"] = self._adjective(clause.predicate, "acomp", verb)
        if clause.after:
            at["after"] = self._add(clause.after.form, clause.after.label, verb)
        if clause.place:
            at["place"] = self._place(clause.place, verb)
        if clause.content:
            self._clause(clause.content, "ccomp", verb)
        if clause.adverbial:
            self._clause(clause.adverbial, "advcl", verb)
        if clause.joined:
            self._add(",", "punct", verb)
            self._clause(clause.joined, "conj", verb)


class German:
    """A sentence in German: its words, and for each the index of its source word (links), -1 for none.
    `English` must come first: it fills in the indices of the source words."""

    def __init__(self, sentence: Clause, *, period: int) -> None:
        self.words: list[str] = []
        self.links: list[int] = []
        self._clause(sentence, final=False)
        if self.words[-1] == ",":
            del self.words[-1], self.links[-1]
        self._add(".", period)
        self.words[0] = self.words[0][0].upper() + self.words[0][1:]

    def _add(self, word: str, link: int = -1) -> None:
        self.words.append(word)
        self.links.append(link)

    def _comma(self) -> None:
        if self.words[-1] != ",":
            self._add(",")

    def _phrase(self, phrase: Phrase, case: str) -> None:
        noun, determiner = phrase.noun, phrase.determiner
        if noun is None:
            self._add(phrase.name[1], phrase.at_noun)
        else:
            assert determiner
            column = phrase.column
            if form := decline_determiner(determiner, column=column, case=case):
                self._add(form, phrase.at_determiner)
            for (degree, adjective), (at_degree, at_adjective) in zip(
                phrase.adjectives, phrase.at_adjectives, strict=True
            ):
                if degree:
                    self._add(degree.german, at_degree)
                ending = ENDINGS[determiner.adjectives][case][column]
                self._add(adjective.stems.get(phrase.group, adjective.stems[""]) + ending, at_adjective)
            self._add(decline_noun(noun, plural=phrase.plural, case=case), phrase.at_noun)
        if phrase.post:
            self._place(phrase.post, phrase.at_post, motion=False)
        if phrase.relative:
            self._comma()
            self._clause(phrase.relative, final=True)
            self._comma()
        for other, at in zip(phrase.others, phrase.at_others, strict=True):
            self._add("und" if other is phrase.others[-1] else ",", at)
            self._phrase(other, case)

    def _place(self, place: tuple[Preposition, Phrase], at: int, *, motion: bool) -> None:
        preposition, phrase = place
        case = preposition.case if preposition.case != "two-way" else "acc" if motion else "dat"
        self._add(preposition.german or (phrase.noun.where if phrase.noun else ""), at)
        self._phrase(phrase, case)

    def _clause(self, clause: Clause, *, final: bool) -> None:
        """Write a clause. final: the finite verb stands last; otherwise it stands second."""
        verb, at, plural = clause.verb, clause.at, clause.plural
        decider = clause.subject if verb.decided_by == "subject" else clause.object
        sense = verb.senses.get(decider.group if decider else "", verb.senses[""])
        form = clause.modal[1][plural] if clause.modal else sense.forms[plural]
        infinitive = sense.prefix + sense.forms[1]
        at_finite = at["modal"] if clause.modal else at["verb"]
        subject_follows = final
        if clause.gap:
            head, case = (clause.subject, "nom") if clause.gap == "subject" else (clause.object, verb.case)
            assert head
            self._add(RELATIVE[case][head.column], at["opening"])
        elif clause.opening[1]:
            self._add(clause.opening[1], at["opening"])
        if clause.front:
            subject_follows = True
            self._front(clause)
        if not subject_follows:
            self._phrase(clause.subject, "nom")
        if not final:
            self._add(form, at_finite)
        if subject_follows and clause.gap != "subject":
            self._phrase(clause.subject, "nom")
        self._middle(clause)
        if final and clause.modal:
            self._add(infinitive, at["verb"])
            self._add(form, at_finite)
        elif final:
            self._add(sense.prefix + form, at_finite)
        elif clause.modal:
            self._add(infinitive, at["verb"])
        elif sense.prefix:
            self._add(sense.prefix, at["verb"])
        for inner in (clause.content, clause.adverbial, clause.joined):
            if inner:
                self._comma()
                self._clause(inner, final=inner is not clause.joined)

    def _front(self, clause: Clause) -> None:
        if isinstance(clause.front, Clause):
            self._clause(clause.front, final=True)
            self._comma()
        elif isinstance(clause.front, Adverb):
            self._add(clause.front.german, clause.at["front"])
        elif clause.front:
            self._place(clause.front, clause.at["front"], motion=False)  # where it happens, not where to

    def _middle(self, clause: Clause) -> None:
        """Write what stands between the finite verb (or the subject) and the end of the clause."""
        at = clause.at
        if clause.before:
            self._add(clause.before.german, at["before"])
        if clause.recipient:
            self._phrase(clause.recipient, "dat")
        if clause.object and clause.gap != "object":
            self._phrase(clause.object, clause.verb.case)
        if clause.negated:
            self._add("nicht", at["not"])
        if clause.predicate:
            degree, adjective = clause.predicate
            if degree:
                self._add(degree.german, at["degree"])
            self._add(adjective.stems.get(clause.subject.group, adjective.stems[""]), at["predicate"])
        if clause.after:
            self._add(clause.after.german, at["after"])
        if clause.place:
            self._place(clause.place, at["place"], motion=clause.verb.motion)
