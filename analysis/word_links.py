"""Which words of two sentences translate each other, by how often they stand in the same pairs: alignments
where nobody has written them down.

IBM model 1 (Brown et al. 1993, https://aclanthology.org/J93-2003; without its null word) in both directions;
links that both choose remain (Och & Ney 2003, https://aclanthology.org/J03-1002). A weak preference for the
diagonal tells words apart that stand in a sentence twice; it has no part in the counting, so that languages
of the other order lose nothing.   Letters: M pairs of tokens that stand in one sentence pair, K kinds of
them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headgates.analysis.alignment import Links

TENSION = 1.0  # of the preference for the diagonal
EM_STEPS = 5
IdPair = tuple[Sequence[int], Sequence[int]]  # ids of the source's and the target's tokens


def word_links(pairs: Sequence[IdPair]) -> list[Links]:
    """For each sentence pair the links between its tokens, by their places; the more pairs, the better."""
    beside = [pairs_of_tokens(pair, number) for number, pair in enumerate(pairs)]
    if not beside:
        return []
    pair, s, t, source, target, near = map(torch.cat, zip(*beside, strict=True))
    width = int(target.max()) + 1 if len(target) else 1
    kinds, kind = (source * width + target).unique(return_inverse=True)
    places = max([1, *(max(map(len, each)) for each in pairs)])
    chosen = best_explained(kind, kinds // width, pair * places + t, near)
    chosen &= best_explained(kind, kinds % width, pair * places + s, near)
    found: list[list[tuple[int, int]]] = [[] for _ in pairs]
    for number, *link in torch.stack([pair, s, t], 1)[chosen].tolist():
        found[number].append((link[0], link[1]))
    return list(found)


def pairs_of_tokens(pair: IdPair, number: int) -> tuple[Tensor, ...]:
    """Every token of the source beside every one of the target: the pair's number, both places, both ids, and
    how near to the diagonal they stand, in (0, 1]."""
    source, target = (torch.tensor(ids, dtype=torch.int64) for ids in pair)
    s = torch.arange(len(source)).repeat_interleave(len(target))
    t = torch.arange(len(target)).repeat(len(source))
    apart = (s + 0.5) / max(1, len(source)) - (t + 0.5) / max(1, len(target))
    near = (-TENSION * apart.abs()).exp().double()
    return torch.full_like(s, number), s, t, source[s], target[t], near


def best_explained(kind: Tensor, given: Tensor, token: Tensor, near: Tensor) -> Tensor:
    """True where a token is best explained, (M,) bool.

    kind: (M,) which kind of pair. given: (K,) the id that explains in each kind. token: (M,) which token is
    explained. near: (M,)."""
    _, token = token.unique(return_inverse=True)
    chance = torch.ones(len(given), dtype=torch.float64)  # of what is explained, given what explains

    def summed(values: Tensor, groups: Tensor) -> Tensor:
        size = int(groups.max()) + 1 if len(groups) else 0
        return torch.zeros(size, dtype=torch.float64).index_add(0, groups, values)

    for _ in range(EM_STEPS):
        weight = chance[kind]
        expected = torch.zeros_like(chance).index_add(0, kind, weight / summed(weight, token)[token])
        chance = expected / summed(expected, given)[given]
    weight = chance[kind] * near
    most = torch.zeros(int(token.max()) + 1 if len(token) else 0, dtype=torch.float64)
    return weight == most.scatter_reduce(0, token, weight, "amax")[token]
