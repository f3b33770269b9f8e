"""Fisher information of heads.   Kwon et al. 2022 (arXiv:2204.09656), sections 4.2 and 4.3.

With xi the gates of all heads at 1 and L(x) the summed loss of one sentence, closing the heads with m = 1
costs to second order

    1/2 m^T I m,   I = E_x[(dL/dxi) (dL/dxi)^T]

`fisher` takes the diagonal of I for the order. At a given count `rearranged` then looks at the blocks of I
that belong to one site each: closed heads change places with open ones of their site while that lowers m^T I
m. Letters: H heads of a site, B sentences.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.gate_gradients import gradient_means
from headgates.gates import HeadMap, HeadSite


def fisher(model: nn.Module, batches: Iterable[Any], **reading: Any) -> HeadMap:
    """Return E_x[(dL(x)/dxi_h)^2] of every head, in nats squared; arguments and errors are those of
    `gradient_means`."""
    blocks = fisher_blocks(model, batches, **reading)
    return HeadMap({site: block.diagonal() for site, block in blocks.items()})


def fisher_blocks(model: nn.Module, batches: Iterable[Any], **reading: Any) -> dict[HeadSite, Tensor]:
    """Return the block (H, H) of I for every site, float64. Arguments and errors are those of
    `gradient_means`."""
    return gradient_means(model, batches, lambda gradients: gradients.T @ gradients, **reading)


def rearranged(
    model: nn.Module, batches: Iterable[Any], closed: HeadMap, *, by_kind: bool = False, **reading: Any
) -> HeadMap:
    """Return `closed` with heads exchanged within their sites, so by_kind or not: what `Score.refine`
    calls."""
    blocks = fisher_blocks(model, batches, **{**reading, "kinds": closed.kinds})
    return HeadMap({site: swapped_mask(row, blocks[site]) for site, row in closed.items()})


def swapped_mask(closed: Tensor, block: Tensor) -> Tensor:
    """The mask (H,) after swaps of a closed head with an open one, each the best there is, until none lowers
    m^T I m."""
    m = closed.double()
    while True:
        # m + e_open - e_closed: what each pair changes, (H closed, H open)
        own, Im = block.diagonal(), block @ m
        change = (own + 2 * Im)[None, :] + (own - 2 * Im)[:, None] - 2 * block
        change[m == 0] = torch.inf
        change[:, m == 1] = torch.inf
        best = int(change.argmin())
        if not change.flatten()[best] < -1e-12 * float(
            block.diagonal().sum()
        ):  # a rounding error is no gain: no swap back and forth
            return m.bool()
        m[best // len(m)], m[best % len(m)] = 0.0, 1.0
