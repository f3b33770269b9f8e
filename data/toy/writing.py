"""Writes a sentence of the toy grammar down: in English with its dependency tree, and in German with its
alignment to the English words.

English labels are spaCy's (CLEAR style): a relative pronoun is nsubj or dobj of its clause, `is` heads its
adjective (acomp), joined phrases are a chain. German: the finite verb stands second in main clauses and last
in all others; prefixes and infinitives close the clause; before them stand, in this order, subject (where
something else is first),
`oft`, dative, accusative,
`nicht`, `langsam`, place."""

from headgates.data.toy.entries import ENDINGS, Adverb
from headgates.data.toy.grammar import At, Clause, Phrase, Place, Quality


def join_words(words: list[str]) -> str:
    """Join words to a line of text, without a space before commas and periods."""
    return " ".join(words).replace(" ,", ",").replace(" .", ".")


def both_languages(sentence: Clause) -> "tuple[English, German]":
    """A sentence in English, and in German with its alignment to the English words."""
    english = English(sentence)
    return english, German(sentence, period=len(english.words) - 1)


class English:
    """A sentence in English: its words, their heads (numbered from 1, 0 for the root) and labels. Methods
    count words from 0, and fill in the fields `at` of the clauses and phrases."""

    def __init__(self, sentence: Clause) -> None:
        self.words: list[str] = []
        self.heads: list[int] = []
        self.labels: list[str] = []
        root = self._clause(sentence, "ROOT")
        self._add(".", "punct", root)
        self.words[0] = self.words[0].capitalize()

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

    def _phrase(self, phrase: Phrase, label: str, head: int = -1) -> None:
        at, first = phrase.at, len(self.words)
        if phrase.determiner and phrase.determiner.form:
            at["determiner"] = self._add(phrase.determiner.form, phrase.determiner.label)
        for quality in phrase.adjectives:
            self._quality(at, quality, "amod")
        noun = at["noun"] = self._add(phrase.noun.forms[phrase.plural], label, head)
        self._attach(first, noun)
        if self.words[first] == "a" and self.words[first + 1][0] in "aeiou":
            self.words[first] = "an"
        self._adverbial(at, "post", phrase.post, noun)
        if phrase.relative:
            self._clause(phrase.relative, "relcl", noun)
        for other in phrase.others:
            word, label = ("and", "cc") if other is phrase.others[-1] else (",", "punct")
            other.at["joint"] = self._add(word, label, noun)
            self._phrase(other, "conj", noun)
            noun = other.at["noun"]

    def _quality(self, at: At, quality: Quality, label: str, head: int = -1) -> None:
        degree, adjective = quality
        if degree:  # it depends on the next word
            at[quality] = self._add(degree.form, degree.label, len(self.words) + 1)
        at[adjective] = self._add(adjective.form, label, head)

    def _adverbial(self, at: At, role: str, said: Adverb | Place | None, head: int = -1) -> None:
        if isinstance(said, Adverb):
            at[role] = self._add(said.form, said.label, head)
        elif said:
            at[role] = self._add(said[0].form, "prep", head)
            self._phrase(said[1], "pobj", at[role])

    def _clause(self, clause: Clause, label: str, head: int = -1) -> int:
        at, opening, plural = clause.at, clause.opening[0], clause.plural
        first = len(self.words)  # from here on, words before the verb without a head depend on the verb
        if label == "conj":
            at["opening"] = self._add(opening, "cc", head)
        elif opening:
            mark = "advmod" if opening == "when" else "mark"
            at["opening"] = self._add(opening, clause.gap or mark)
        if isinstance(clause.front, Clause):
            self._clause(clause.front, "advcl")
            self._add(",", "punct")
        else:
            self._adverbial(at, "front", clause.front)
        if clause.gap != "nsubj":
            self._phrase(clause.subject, "nsubj")
        # will often see; does not see; often sees; is often; is not
        if clause.modal:
            at["modal"] = self._add(clause.modal[0], "aux")
        if clause.predicate:
            at["verb"] = self._add(clause.verb.forms[plural], label, head)
        elif clause.negated:
            self._add("do" if plural else "does", "aux")
        if clause.negated:
            at["not"] = self._add("not", "neg")
        self._adverbial(at, "before", clause.before)
        if not clause.predicate:
            infinitive = plural or clause.negated or clause.modal is not None
            at["verb"] = self._add(clause.verb.forms[infinitive], label, head)
        verb = at["verb"]
        self._attach(first, verb)
        if clause.recipient and clause.recipient_first:
            self._phrase(clause.recipient, "dative", verb)
        if clause.object and clause.gap != "dobj":
            self._phrase(clause.object, "dobj", verb)
        if clause.recipient and not clause.recipient_first:
            self._phrase(clause.recipient, "pobj", self._add("to", "dative", verb))
        if clause.predicate:
            self._quality(at, clause.predicate, "acomp", verb)
        self._adverbial(at, "after", clause.after, verb)
        self._adverbial(at, "place", clause.place, verb)
        if clause.content:
            self._clause(clause.content, "ccomp", verb)
        if clause.adverbial:
            self._clause(clause.adverbial, "advcl", verb)
        if clause.joined:
            self._add(",", "punct", verb)
            self._clause(clause.joined, "conj", verb)
        return verb


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
        self.words[0] = self.words[0].capitalize()

    def _add(self, word: str, link: int = -1) -> None:
        """Add a word, unless it is empty."""
        if word:
            self.words.append(word)
            self.links.append(link)

    def _comma(self) -> None:
        if self.words[-1] != ",":
            self._add(",")

    def _phrase(self, phrase: Phrase, case: str) -> None:
        at, determiner, form = phrase.at, phrase.determiner, phrase.noun.german[phrase.plural]
        if determiner:
            key = case, phrase.column
            self._add(determiner.stem + ENDINGS[determiner.pattern][key], at.get("determiner", -1))
            for quality in phrase.adjectives:
                self._quality(at, quality, phrase.group, ENDINGS[determiner.adjectives][key])
        # of nouns the dative plural alone has an ending, unless the plural ends in n or s
        self._add(form + "n" * (phrase.plural and case == "dat" and form[-1] not in "ns"), at["noun"])
        self._adverbial(at, "post", phrase.post)
        if phrase.relative:
            self._comma()
            self._clause(phrase.relative, final=True)
            self._comma()
        for other in phrase.others:
            self._add("und" if other is phrase.others[-1] else ",", other.at["joint"])
            self._phrase(other, case)

    def _quality(self, at: At, quality: Quality, group: str, ending: str = "") -> None:
        degree, adjective = quality
        if degree:
            self._add(degree.german, at[quality])
        self._add(adjective.stems.get(group, adjective.stems[""]) + ending, at[adjective])

    def _adverbial(self, at: At, role: str, said: Adverb | Place | None, *, motion: bool = False) -> None:
        if isinstance(said, Adverb):
            self._add(said.german, at[role])
        elif said:
            preposition, phrase = said
            self._add(preposition.german or phrase.noun.where, at[role])
            two_way = "acc" if motion else "dat"
            self._phrase(phrase, two_way if preposition.case == "two-way" else preposition.case)

    def _clause(self, clause: Clause, *, final: bool) -> None:
        """Write a clause. final: the finite verb stands last; otherwise it stands second."""
        verb, at, subject = clause.verb, clause.at, clause.subject
        decider = subject if verb.decided_by == "subject" else clause.object
        sense = verb.senses.get(decider.group if decider else "", verb.senses[""])
        if clause.modal:
            form, at_finite, rest = clause.modal[1][clause.plural], at["modal"], sense.prefix + sense.forms[1]
        else:
            form, at_finite, rest = sense.forms[clause.plural], at["verb"], sense.prefix
        opening = clause.opening[1]
        if clause.gap == "nsubj":
            opening = ENDINGS["relative"]["nom", subject.column]
        elif clause.gap and clause.object:
            opening = ENDINGS["relative"][verb.case, clause.object.column]
        self._add(opening, at.get("opening", -1))
        if isinstance(clause.front, Clause):
            self._clause(clause.front, final=True)
            self._comma()
        else:
            self._adverbial(at, "front", clause.front)  # where it happens, not where to
        subject_first = not (final or clause.front)
        if subject_first:
            self._phrase(subject, "nom")
        if not final:
            self._add(form, at_finite)
        if not subject_first and clause.gap != "nsubj":
            self._phrase(subject, "nom")
        self._adverbial(at, "before", clause.before)
        if clause.recipient:
            self._phrase(clause.recipient, "dat")
        if clause.object and clause.gap != "dobj":
            self._phrase(clause.object, verb.case)
        if clause.negated:
            self._add("nicht", at["not"])
        if clause.predicate:
            self._quality(at, clause.predicate, subject.group)
        self._adverbial(at, "after", clause.after)
        self._adverbial(at, "place", clause.place, motion=verb.motion)
        if final and not clause.modal:
            self._add(rest + form, at_finite)
        else:
            self._add(rest, at["verb"])
            self._add(form * final, at_finite)
        for inner in (clause.content, clause.adverbial, clause.joined):
            if inner:
                self._comma()
                self._clause(inner, final=inner is not clause.joined)
