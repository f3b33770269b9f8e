"""Which words of two sentences translate each other, by how often they stand in the same pairs: alignments
where nobody has written them down.

IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003; without its null word). With t(f | e), the
share of e's links that go to f, a target token f_j of a sentence pair is linked with its source token e_i as
often as t(f_j | e_i) / sum_k t(f_j | e_k); all t are equal at first, and after each step they are what these
links say.   Letters: M pairs of tokens that stand in one sentence pair, K kinds of them, by their ids."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from headgates.analysis.alignment import Links

TENSION = 1.0  # of the preference for the diagonal
EM_STEPS = 5  # later ones change little
IdPair = tuple[Sequence[int], Sequence[int]]  # ids of the source's and the target's tokens


class PairedTokens:
    """Every source token beside every target token of its sentence pair.

    pair, source, target: (M,) the number of the sentence pair, and of each token in the text of its side, and
    kind: (M,) what kind of pair it is. kinds: (K, 2) the ids of each kind."""

    def __init__(self, pairs: Sequence[IdPair]):
        sides = [[each[side] for each in pairs] for side in (0, 1)]
        lengths = [torch.tensor([*map(len, side)], dtype=torch.int64) for side in sides]
        ids = [torch.tensor([*chain(*side)], dtype=torch.int64) for side in sides]
        sizes = lengths[0] * lengths[1]
        self.pair = torch.arange(len(pairs)).repeat_interleave(sizes)
        place = torch.arange(len(self.pair)) - (sizes.cumsum(0) - sizes)[self.pair]
        self.begins = [each.cumsum(0) - each for each in lengths]
        self.lengths, width = lengths, lengths[1][self.pair]
        self.source = self.begins[0][self.pair] + place // width
        self.target = self.begins[1][self.pair] + place % width
        most = 1 + int(ids[1].max()) if len(ids[1]) else 1
        kinds, self.kind = (ids[0][self.source] * most + ids[1][self.target]).unique(return_inverse=True)
        self.kinds = torch.stack([kinds // most, kinds % most], 1)

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """(M,) each token's place in its sentence, of both sides."""
        source, target = (begin[self.pair] for begin in self.begins)
        return self.source - source, self.target - target

    @property
    def near(self) -> Tensor:
        """(M,) how near to the diagonal the two stand, in (0, 1]."""
        s, t = (
            (place + 0.5) / length[self.pair] for place, length in zip(self.places, self.lengths, strict=True)
        )
        return (-TENSION * (s - t).abs()).exp().double()


def expected_links(pairs: Sequence[IdPair]) -> tuple[Tensor, Tensor]:
    """The ids (K, 2) of a source and a target token that stand in one sentence pair, and how often (K,) the
    first is expected to be what the second is translated from."""
    text = PairedTokens(pairs)
    return text.kinds, model_1(text.kind, text.kinds[:, 0], text.target)[1]


def word_links(pairs: Sequence[IdPair]) -> list[Links]:
    """For each sentence pair the links between its tokens, by their places; the more pairs, the better.

    Links that the counts of both directions choose remain (Och & Ney 2003,
    https://aclanthology.org/J03-1002). A weak preference for the diagonal tells words apart that stand in a
    sentence twice; it has no part in the counting, so that languages of the other order lose nothing."""
    text = PairedTokens(pairs)
    near = text.near
    chosen = best_explained(text.kind, text.kinds[:, 0], text.target, near)
    chosen &= best_explained(text.kind, text.kinds[:, 1], text.source, near)
    found: list[list[tuple[int, int]]] = [[] for _ in pairs]
    for number, *link in torch.stack([text.pair, *text.places], 1)[chosen].tolist():
        found[number].append((link[0], link[1]))
    return list(found)


def best_explained(kind: Tensor, given: Tensor, token: Tensor, near: Tensor) -> Tensor:
    """True where a token is best explained, (M,) bool. near: (M,). The others are of `model_1`."""
    weight = model_1(kind, given, token)[0][kind] * near
    most = torch.zeros(size_of(token), dtype=torch.float64).scatter_reduce(0, token, weight, "amax")
    return weight == most[token]


def model_1(kind: Tensor, given: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """The chance (K,) of what is explained, given what explains it, and how often (K,) it is expected to.

    kind: (M,) which kind of pair. given: (K,) the id that explains in each kind. token: (M,) which token is
    explained."""
    chance = torch.ones(len(given), dtype=torch.float64)
    expected = torch.zeros_like(chance)
    for _ in range(EM_STEPS):
        weight = chance[kind]
        expected = sum_of_groups(weight / sum_of_groups(weight, token)[token], kind)
        chance = expected / sum_of_groups(expected, given)[given]
    return chance, expected


def sum_of_groups(values: Tensor, groups: Tensor) -> Tensor:
    return torch.zeros(size_of(groups), dtype=torch.float64).index_add(0, groups, values)


def size_of(groups: Tensor) -> int:
    return 1 + int(groups.max()) if len(groups) else 0
