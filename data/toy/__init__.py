"""`toy`: a language pair generated from a seed, English into a small regular German, with gold dependency
trees and word alignments.

Built so that attention has known work: agreement in gender, case and number, verbs at the end of clauses,
words whose translation depends on a subject or object far away. The words are in lexicon.py, what is said in
grammar.py, how it is written in writing.py. The same seed gives the same pairs on every Python and
machine."""

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from headgates.data.atomic_file import atomic_file
from headgates.data.cache import cache_folder
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText
from headgates.data.toy.grammar import draw_sentence
from headgates.data.toy.writing import both_languages, join_words

LONGEST_SOURCE = 10  # source words, punctuation counted: what a small model learns in two minutes
# pairs of each split. Test and validation are drawn first, so they do not depend on how much is trained on
SPLITS = {"test": 1000, "valid": 500, "train": 16000}
SEED = 0  # of the language sample; data.load_corpus has the same default


@dataclass(frozen=True, slots=True)
class ToyPair:
    """A sentence and its translation, with the sentence's dependency tree and the word alignment.

    source, target: as one reads them. words, target_words: the same, with commas and periods as words of
    their own. heads: the number of each source word's head, from 1, or 0 for the root. labels: spaCy's.
    alignment: sorted (source word, target word), from 0."""

    source: str
    target: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    labels: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]


def draw_pair(rng: Random, longest: int = LONGEST_SOURCE) -> ToyPair:
    """Draw the next pair, of at most `longest` source words; the same sentence may come again."""
    while True:
        english, german = both_languages(draw_sentence(rng))
        if len(english.words) <= longest:
            break
    alignment = tuple(sorted((i, j) for j, i in enumerate(german.links) if i >= 0))
    tree = tuple(english.words), tuple(english.heads), tuple(english.labels)
    return ToyPair(join_words(english.words), join_words(german.words), *tree, tuple(german.words), alignment)


def generate(count: int, seed: int, longest: int = LONGEST_SOURCE) -> list[ToyPair]:
    """Return `count` pairs of at most `longest` source words, no two with the same source sentence; the first
    n of generate(m, seed) are generate(n, seed)."""
    rng, pairs = Random(seed), dict[str, ToyPair]()
    while len(pairs) < count:
        pair = draw_pair(rng, longest)
        pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def drawn_once(count: int, seed: int) -> list[ToyPair]:
    """`generate`, which takes seconds: what it drew is kept in the user's cache folder, under the code that
    drew it."""
    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    name = hashlib.sha256(repr((count, seed, code)).encode()).hexdigest()[:20]
    path = cache_folder() / f"toy/{name}.json"
    with suppress(OSError, ValueError, TypeError):  # none yet, or a damaged one
        pairs = [ToyPair(*map(as_tuples, row)) for row in json.loads(path.read_bytes())]
        if len(pairs) == count:
            return pairs
    pairs = generate(count, seed)
    with suppress(OSError):  # a cache that cannot be written is none
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as draft:
            rows = [[getattr(pair, name) for name in ToyPair.__slots__] for pair in pairs]
            draft.write(json.dumps(rows).encode())
    return pairs


def as_tuples(value: Any) -> Any:
    """The value with tuples in the place of JSON's lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=2)
def _splits(seed: int) -> dict[str, list[ToyPair]]:
    pairs = iter(drawn_once(sum(SPLITS.values()), seed))
    return {split: list(islice(pairs, count)) for split, count in SPLITS.items()}


def toy_pairs(split: str, *, seed: int = SEED) -> list[ToyPair]:
    """Return the pairs of a split, with trees and alignments, in the order of `toy_corpus`."""
    return _splits(seed)[split]


def toy_corpus(
    *, src: str | None = "en", tgt: str | None = "de", data_dir: str | Path | None = None, seed: int = SEED
) -> Corpus:
    """Return the toy corpus; no sentence is in two splits, or twice in one.

    seed: of the sentences, not of the training: another seed gives another corpus. src, tgt: None stands for
    en and de. data_dir is not used. Raises DataError at any languages but en to de."""
    if (src or "en", tgt or "de") != ("en", "de"):
        raise DataError(
            f"the toy corpus is en-de, got {src}-{tgt}; use --src en --tgt de, or --data with a folder of "
            "files of your own"
        )
    train, valid, test = (
        ParallelText([pair.source for pair in pairs], [pair.target for pair in pairs])
        for pairs in (toy_pairs(split, seed=seed) for split in ("train", "valid", "test"))
    )
    sizes = f"{len(train)} training, {len(valid)} validation and {len(test)} test sentences"
    about = f"built-in toy language pair en-de, seed {seed}: {sizes}"
    return Corpus(train, valid, test, "toy", about, "en", "de")
