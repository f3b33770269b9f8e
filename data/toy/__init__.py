"""`toy`: a language pair generated from a seed, English into a small regular German, with gold dependency
trees and word alignments.

Built so that attention has known work: agreement in gender, case and number, verbs at the end of clauses,
words whose translation depends on a subject or object far away. The words are in lexicon.py, what is said in
grammar.py, how it is written in writing.py. The same seed gives the same pairs on every Python and
machine."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from headgates.configs.did_you_mean import did_you_mean
from headgates.data.parallel import Corpus
from headgates.data.text import DataError, ParallelText
from headgates.data.toy.grammar import draw_sentence
from headgates.data.toy.writing import LABELS, PUNCTUATION, English, German, join

__all__ = [
    "LABELS",
    "LONGEST",
    "SEED",
    "SPLITS",
    "ToyPair",
    "draw_pair",
    "generate",
    "to_conllu",
    "toy_corpus",
    "toy_pairs",
]

LONGEST = 28  # source words, punctuation counted
SPLITS = ("train", "valid", "test")
SEED = 0  # of the language sample; data.load_corpus has the same default


@dataclass(frozen=True, slots=True)
class ToyPair:
    """A sentence and its translation, with the sentence's dependency tree and the word alignment.

    source, target: as one reads them. words, target_words: the same, with commas and periods as words of
    their own. heads: the number of each source word's head, from 1, or 0 for the root. labels: of `LABELS`.
    alignment: sorted (source word,
    target word), from 0."""

    source: str
    target: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]


def draw_pair(rng: Random) -> ToyPair:
    """Draw the next pair, of at most LONGEST source words; the same sentence may come again."""
    while True:
        sentence = draw_sentence(rng)
        english = English(sentence)
        if len(english.words) <= LONGEST:
            break
    german = German(sentence, period=len(english.words) - 1)
    alignment = tuple(sorted((i, j) for j, i in enumerate(german.links) if i >= 0))
    tree = tuple(english.words), tuple(english.heads), tuple(english.labels)
    return ToyPair(join(english.words), join(german.words), *tree, tuple(german.words), alignment)


def generate(count: int, seed: int) -> list[ToyPair]:
    """Return `count` pairs, no two with the same source sentence; the first n of generate(m, seed) are
    generate(n, seed)."""
    rng, pairs = Random(seed), dict[str, ToyPair]()
    while len(pairs) < count:
        pair = draw_pair(rng)
        pairs.setdefault(pair.source, pair)
    return list(pairs.values())


@lru_cache(maxsize=2)
def _splits(seed: int, train: int, valid: int, test: int) -> dict[str, list[ToyPair]]:
    """Return the pairs of every split. Test and validation pairs are drawn first, so they do not depend on
    the size of the training set."""
    pairs = generate(test + valid + train, seed)
    return {"test": pairs[:test], "valid": pairs[test : test + valid], "train": pairs[test + valid :]}


def toy_pairs(
    split: str, *, seed: int = SEED, train: int = 16000, valid: int = 500, test: int = 1000
) -> list[ToyPair]:
    """Return the pairs of a split, with trees and alignments, in the order of `toy_corpus` with the same
    arguments.

    Raises DataError at an unknown split."""
    if split not in SPLITS:
        raise DataError(
            f"no split {split!r} in the toy corpus{did_you_mean(split, SPLITS)}; it has {', '.join(SPLITS)}"
        )
    return _splits(seed, train, valid, test)[split]


def toy_corpus(
    *,
    src: str | None = "en",
    tgt: str | None = "de",
    data_dir: str | Path | None = None,
    seed: int = SEED,
    train: int = 16000,
    valid: int = 500,
    test: int = 1000,
) -> Corpus:
    """Return the toy corpus; no sentence is in two splits, or twice in one.

    seed: of the sentences, not of the training: another seed gives another corpus. train, valid, test:
    numbers of pairs. src, tgt: None stands for en and de. data_dir is not used. Raises DataError at any
    languages but en to de."""
    if (src or "en", tgt or "de") != ("en", "de"):
        raise DataError(
            f"the toy corpus is en-de, got {src}-{tgt}; use --src en --tgt de, or --data with a folder of "
            "files of your own"
        )
    pairs = {split: toy_pairs(split, seed=seed, train=train, valid=valid, test=test) for split in SPLITS}
    texts: dict[str, Any] = {
        s: ParallelText([p.source for p in some], [p.target for p in some]) for s, some in pairs.items()
    }
    sizes = f"{train} training, {valid} validation and {test} test sentences"
    description = f"built-in toy language pair en-de, seed {seed}: {sizes}"
    return Corpus(**texts, name="toy", description=description, src="en", tgt="de")


def to_conllu(pair: ToyPair) -> str:
    """Return the source tree as a CoNLL-U sentence of 10 columns, with an empty line at its end; lemmas and
    tags are left out."""
    lines = [f"# text = {pair.source}", f"# translation = {pair.target}"]
    for i, (word, head, label) in enumerate(zip(pair.words, pair.heads, pair.labels, strict=True), start=1):
        closes_up = i < len(pair.words) and pair.words[i] in PUNCTUATION
        lines.append(
            "\t".join([str(i), word, *"____", str(head), label, "_", "SpaceAfter=No" if closes_up else "_"])
        )
    return "\n".join(lines) + "\n\n"
