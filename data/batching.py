"""Batches of about equal work: as many pairs of about equal length as fit a budget of tokens, padding
counted.

Pairs are sorted by their longer side and cut greedily. Where batches are cut depends on the longer sides
alone, so every epoch has the same number of batches and of optimiser steps (a trainer may count them once),
while pairs whose longer sides are equal are mixed anew in each epoch.

An optimiser step takes accumulate * world batches: micro-batch j of rank r is number j * world + r of the
step's group. So the steps of N ranks are those of one that accumulates N times as many batches."""

from collections.abc import Iterator, Sequence

import numpy as np

# Among equal longer sides pairs are sorted by target length + U(0, MIXING): 0 pads least, much more mixes
# best. Measured on Multi30k en-de at 4096 tokens, share of tokens that are not padding: 0.943 with 1, 0.937
# with 4, 0.931 without sorting.
MIXING = 4.0


class TokenBatches:
    """Yields (numbers of the pairs, step_tokens), step_tokens being the target tokens of the batch's whole
    optimiser step, over all ranks.

    Lengths are those of the model's input: end of sentence included. A batch of n pairs has n * (its longest
    source or target) <= max_tokens; a pair longer than max_tokens is a batch of its own. Over all ranks an
    epoch has every pair exactly once, in an order that depends on seed and epoch alone (`set_epoch`;
    Lightning calls it where this is a DataLoader's `sampler`). Without `shuffle`: longest first, the same in
    every epoch.

    The last step of an epoch may have fewer micro-batches. Every rank gets the same number of batches: one
    for which none is left gets an empty one, ([], step_tokens), to keep pace. unasked: how many tokens of
    each target have no loss, and so do not count in step_tokens."""

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        *,
        max_tokens: int,
        seed: int,
        unasked: int = 0,
        accumulate: int = 1,
        world: int = 1,
        rank: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.source_lengths, self.target_lengths = np.asarray(source_lengths), np.asarray(target_lengths)
        assert 0 <= rank < world  # set by the trainer, never by the user
        self.max_tokens, self.accumulate, self.world, self.rank = max_tokens, accumulate, world, rank
        self.seed, self.shuffle, self.epoch, self.unasked = seed, shuffle, 0, unasked
        self.first_step = 0  # of the next iteration alone, where an epoch goes on in its middle
        self._longer = np.maximum(self.source_lengths, self.target_lengths)
        self._cuts = self._cut()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, whose batches the next iteration gives."""
        self.epoch = epoch

    @property
    def steps(self) -> int:
        """Optimiser steps in an epoch, the same in every epoch."""
        return -(-(len(self._cuts) - 1) // (self.accumulate * self.world))

    def __len__(self) -> int:
        """Batches of this rank in an epoch, the same in every epoch and rank."""
        return -(-(len(self._cuts) - 1) // self.world)

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        rng = np.random.default_rng([abs(self.seed), self.epoch])
        order = self._order(rng)
        batches = np.split(order, self._cuts[1:-1])
        if self.shuffle:
            batches = [batches[i] for i in rng.permutation(len(batches))]
        group = self.accumulate * self.world
        first, self.first_step = self.first_step, 0
        for start in range(first * group, len(batches), group):
            step = batches[start : start + group]
            step_tokens = sum(
                int(self.target_lengths[each].sum()) - self.unasked * len(each) for each in step
            )
            for turn in range(0, len(step), self.world):
                batch = step[turn + self.rank].tolist() if turn + self.rank < len(step) else []
                yield batch, step_tokens

    def _order(self, rng: np.random.Generator) -> np.ndarray:
        """Return the numbers of all pairs, longest first."""
        if not self.shuffle:
            return np.lexsort((~self.target_lengths, ~self._longer))  # complements: the largest first
        order = np.arange(len(self._longer), dtype=np.min_scalar_type(len(self._longer)))
        rng.shuffle(order)
        order = order[np.argsort(~self._longer[order], kind="stable")]
        mixed = rng.uniform(0, MIXING, size=len(order))
        mixed += self.target_lengths
        # views: each is sorted in place
        for equal in np.split(order, np.flatnonzero(np.diff(self._longer[order])) + 1):
            equal[:] = equal[np.argsort(-mixed[equal], kind="stable")]
        return order

    def _cut(self) -> np.ndarray:
        """Return the positions (batches + 1,) in the sorted pairs at which batches begin, and the end."""
        longest_first = np.sort(self._longer)[::-1]
        cuts = [0]
        while cuts[-1] < len(longest_first):
            size = max(1, self.max_tokens // int(longest_first[cuts[-1]]))
            cuts.append(min(cuts[-1] + size, len(longest_first)))
        return np.array(cuts)
