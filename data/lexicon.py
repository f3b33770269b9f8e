"""Which target pieces a source piece is translated into, by counting: IBM's Model 1 of lexical translation
(Brown et al. 1993, section 4.2). Importing this needs no torch."""

from collections.abc import Sequence

import numpy as np

EM_ROUNDS = 4  # of expectation and maximisation; later ones change the order of few pieces


def expected_links(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs (n, 2) of a source piece and a target piece that come in one sentence pair, and how often
    (n,) the first is expected to be what the second is translated from.

    With t(f | e), the share of e's links that go to f, a target piece f_j of a sentence pair is linked with
    its source piece e_i as often as t(f_j | e_i) / sum_k t(f_j | e_k); all t are equal at first, and after
    each round they are what these links say.

    Takes some 16 bytes for each pair of positions, so 100,000 pairs of 25 pieces take a gigabyte."""
    pairs = [(s, t) for s, t in zip(sources, targets, strict=True) if s and t]
    if not pairs:
        return np.zeros((0, 2), np.int64), np.zeros(0)
    source = np.concatenate([np.repeat(s, len(t)) for s, t in pairs])
    target = np.concatenate([np.tile(t, len(s)) for s, t in pairs])
    width = 1 + int(target.max())
    known, link = np.unique(source * width + target, return_inverse=True)
    link = link.astype(np.int32)
    first = np.cumsum([0, *(len(t) for _, t in pairs)])[:-1]  # of all target positions, each sentence's
    position = np.concatenate(
        [
            np.tile(np.arange(begin, begin + len(t), dtype=np.int32), len(s))
            for begin, (s, t) in zip(first, pairs, strict=True)
        ]
    )
    chance = np.ones(len(known))
    for _ in range(1 + EM_ROUNDS):
        shares = chance[link]
        shares /= np.bincount(position, shares)[position]
        counts = np.bincount(link, shares)
        chance = counts / np.bincount(known // width, counts)[known // width]
    return np.stack([known // width, known % width], 1), counts
