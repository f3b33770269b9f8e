"""`toy-multi`: the toy language with two target languages, for a model that reads in the first source token
into which it is to translate.

    german The dog sleeps.     Der Hund schläft.
    namreg The dog sleeps.     red dnuh tfälhcs.

The second has German's grammar and other words: German's, spelt backwards. So what a sentence means and which
language it is said in are apart, and so may be the heads that carry the one and the other: the contrast
`toy-multi:language` is one sentence under both tags, `toy-multi:number` that of the toy language under
either."""

import re
from pathlib import Path
from random import Random

from headgates.data.contrast import Contrast
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText
from headgates.data.toy import SEED, toy_pairs
from headgates.data.toy.contrasts import toy_contrasts

TAGS = ("german", "namreg")  # words, so that each becomes one piece
CONTRAST_COUNT = 100  # contrasts


def tagged(source: str, german: str, tag: str) -> tuple[str, str]:
    """A sentence that asks for a language, and its translation."""
    backwards = re.sub(r"\w+", lambda word: word[0][::-1].lower(), german)
    return f"{tag} {source}", german if tag == TAGS[0] else backwards


def toy_multi_corpus(
    *, src: str | None = "en", tgt: str | None = "multi", data_dir: str | Path | None = None, seed: int = SEED
) -> Corpus:
    """Return the sentences of the toy corpus, into either language in turns. Arguments are those of
    `toy_corpus`; raises DataError at any languages but en to multi."""
    if (src or "en", tgt or "multi") != ("en", "multi"):
        raise DataError(f"the toy-multi corpus is en-multi, got {src}-{tgt}; use --src en --tgt multi")

    def text(split: str) -> ParallelText:
        pairs = [
            tagged(pair.source, pair.target, TAGS[i % 2])
            for i, pair in enumerate(toy_pairs(split, seed=seed))
        ]
        return ParallelText([source for source, _ in pairs], [target for _, target in pairs])

    about = f"built-in toy language, English into {' and '.join(TAGS)} by the first word, seed {seed}"
    return Corpus(text("train"), text("valid"), text("test"), "toy-multi", about, "en", "multi")


def multi_contrasts(name: str) -> list[Contrast]:
    """Return the contrasts of the toy language under either tag; of "language" test sentences into one
    language, and into the other where the source is corrupted. Of tags chance decides."""
    rng, found = Random(0), []
    for pair in toy_pairs("test")[:CONTRAST_COUNT] if name == "language" else ():
        tags = TAGS if rng.random() < 0.5 else TAGS[::-1]
        (source, right), (corrupted, wrong) = (tagged(pair.source, pair.target, tag) for tag in tags)
        found.append(Contrast(source, right, wrong, corrupted))
    for each in toy_contrasts(name, count=CONTRAST_COUNT) if name != "language" else ():
        tag = TAGS[rng.random() < 0.5]
        assert each.corrupted is not None
        (source, right), (corrupted, wrong) = (
            tagged(english, german, tag)
            for english, german in ((each.source, each.right), (each.corrupted, each.wrong))
        )
        found.append(Contrast(source, right, wrong, corrupted))
    return found
