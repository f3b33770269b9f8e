"""What one training or scoring step sees: a padded batch of sentence pairs.
Letters: B pairs, S source pieces + end of sentence, T target pieces + one special token. Padding is always on
the right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.data.padding import padded
from headgates.data.special_tokens import SpecialTokens


@dataclass
class Batch:
    """A padded batch. index: the pairs' numbers in their split, from 0, skipped pairs not counted;
    step_tokens: the target_out tokens of the whole optimiser step, over all micro-batches and ranks, without
    padding. The loss summed over this batch and divided by step_tokens is the batch's share of the step's
    loss. Forced first pieces of a target are read, and not asked for: target_out has padding there."""

    source: Tensor  # (B, S) int64: pieces, end
    target_in: Tensor  # (B, T) int64: beginning, pieces
    target_out: Tensor  # (B, T) int64: pieces, end; padding where target_in has it, and for forced ones
    index: Tensor  # (B,) int64
    step_tokens: int
    # of this batch alone; a number and not a sum of a tensor, for which a GPU would have to wait
    target_tokens: int

    def __len__(self) -> int:
        """B, the number of pairs."""
        return self.source.shape[0]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch on `device`."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory; torch's DataLoader calls this."""
        return self._each(lambda tensor: tensor.pin_memory())

    def square(self, source_specials: SpecialTokens, target_specials: SpecialTokens) -> "Batch":
        """The same batch with both sides padded to the longer one: (B, L), of which there are few."""
        length = max(self.source.shape[1], self.target_in.shape[1])

        def wide(ids: Tensor, padding: int) -> Tensor:
            return F.pad(ids, (0, length - ids.shape[1]), value=padding)

        return replace(
            self,
            source=wide(self.source, source_specials.padding),
            target_in=wide(self.target_in, target_specials.padding),
            target_out=wide(self.target_out, target_specials.padding),
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        tensors: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


def pad(
    sentences: Sequence[Sequence[int] | np.ndarray],
    specials: SpecialTokens,
    *,
    begin: bool = False,
    end: bool = False,
) -> Tensor:
    """`padded` as a tensor."""
    return torch.from_numpy(padded(sentences, specials, begin=begin, end=end))


def collate(
    pairs: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]],
    index: Sequence[int],
    step_tokens: int,
    source_specials: SpecialTokens = SpecialTokens(),
    target_specials: SpecialTokens = SpecialTokens(),
) -> Batch:
    """Return the `Batch` of some (source ids, target ids) without special tokens, which are added; index:
    their numbers in the split."""
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    target_out, forced = pad(targets, target_specials, end=True), len(target_specials.forced)
    target_out[:, :forced] = target_specials.padding
    return Batch(
        source=pad(sources, source_specials, end=True),
        target_in=pad(targets, target_specials, begin=True),
        target_out=target_out,
        index=torch.tensor(index, dtype=torch.int64),
        step_tokens=step_tokens,
        target_tokens=sum(len(each) + 1 - forced for each in targets),
    )
