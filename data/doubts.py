"""What in a text makes one doubt that it is the text that was meant: said, not refused."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from headgates.configs.fields import shortened
from headgates.data.splits import Corpus

LOOKED_AT = 2**20  # training pairs, the first: a second of work
SHARED = 0.05  # of the test pairs; short sentences come again in any text
VALIDATION = 1000  # pairs


def doubts(corpus: Corpus) -> Iterator[str]:
    """Yield a sentence for each, with a count and an example."""
    signs = {"\0": "NUL bytes, which no vocabulary knows"}
    if corpus.tgt:  # a classifier's two sentences have one between them
        signs["\t"] = "tabs; two columns in one file are read as pairs if its name ends in .tsv"
    test = set(zip(corpus.test.sources, corpus.test.targets, strict=True))
    shared, counts, examples = set[tuple[str, str]](), Counter[str](), dict[str, tuple[str, str]]()
    for pair in islice(zip(corpus.train.sources, corpus.train.targets, strict=True), LOOKED_AT):
        if pair in test:
            shared.add(pair)
        for sign in signs:
            if sign in pair[0] or sign in pair[1]:
                counts[sign] += 1
                examples.setdefault(sign, pair)
    if len(shared) > SHARED * len(test):
        yield (
            f"{corpus.name}: {len(shared):,} of {len(test):,} test pairs are training pairs too, such as "
            f"{shortened(min(shared)[0])}; results on these say nothing about new text"
        )
    for sign, count in counts.items():
        example = shortened(" ||| ".join(examples[sign]))
        yield f"{corpus.name}: {count:,} training pairs, such as {example}, have {signs[sign]}"
    valid = corpus.valid.first(VALIDATION)
    if 2 * sum(map(str.__eq__, valid.sources, valid.targets)) > len(valid):
        yield (
            f"{corpus.name}: most validation lines are the same on the source and the target side; is one "
            "file a copy of the other?"
        )
