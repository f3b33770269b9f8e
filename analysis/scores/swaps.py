"""Swaps after an order has chosen: a closed head and an open one change places where the loss itself says so.

An order looks at the heads before any is closed, or at each site alone. Here the model runs with the choice,
W_O at every site refitted to the heads that are left (W_S = Y G_S^-1 on the unpruned model's outputs, as in
obs.py), and says its loss on sentences that the refit has not seen: first with each single head the other way
round, then with the swaps that these losses put first, each kept where the loss falls. Letters: H heads, K
head width, D model width, S the heads that stay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, batch_loss
from headgates.analysis.scores.obs import damping
from headgates.analysis.scores.site_statistics import Projection, site_statistics
from headgates.analysis.without_heads import heads_at
from headgates.gates import HeadMap, HeadSite
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.headmap import Head
from headgates.gates.on_device import on_device
from headgates.gates.outputs import outputs_of
from headgates.gates.sites import device_of

SWAPS = 8  # tried at most; another round over all heads gained a tenth of the first (LOG.md)
EVERY = 3  # one batch of so many gives the loss, the others make the statistics


@torch.no_grad()
def swapped(
    model: nn.Module,
    batches: Iterable[Any],
    closed: HeadMap,
    *,
    loss: Loss = batch_loss,
    by_kind: bool = False,
    draw: object = None,
    seed: object = None,
    kinds: object = None,
) -> HeadMap:
    """Return `closed` (True: closed) with heads that changed places, as many closed in all, or with by_kind
    of each kind, as before.

    loss (model, batch): summed over units. draw, seed, kinds: not needed; they are what the order's
    function (`obs`) takes beside. The model is left as it was. It runs once for each head. Raises ValueError
    without any batch."""
    device = device_of(model)
    text = [on_device(batch, device) for batch in batches]
    held_out = text[EVERY - 1 :: EVERY] or text  # longest first: both parts have sentences of all lengths
    fitted = [batch for number, batch in enumerate(text) if (number + 1) % EVERY] or text
    statistics = site_statistics(model, fitted, forward=loss, kinds=closed.kinds)
    outputs = outputs_of(model, closed)
    unpruned = {site: Projection.of(output) for site, output in outputs.items()}
    # of all heads, as in obs.py: the same whichever are open
    ridges = {site: damping(each.moments(unpruned[site].bias)) for site, each in statistics.items()}
    placed = dict(closed.map(torch.zeros_like))  # what W_O is fitted to now

    def losses(*choices: HeadMap) -> Iterator[float]:
        """Of each choice the loss with W_O fitted to the heads that it leaves open."""
        for choice in choices:
            for site, row in choice.items():
                if not row.equal(placed[site]):
                    own, placed[site] = unpruned[site], row
                    fitted = statistics[site].refit(~row, own.bias, ridges[site]) if row.any() else own
                    fitted.place(outputs[site])
            yield sum(float(loss(model, batch)) for batch in held_out)

    try:
        with evaluation_mode(model):
            return improved(closed, losses, by_kind=by_kind)
    finally:
        for site, own in unpruned.items():
            own.place(outputs[site])


def improved(
    closed: HeadMap, losses: Callable[..., Iterable[float]], *, by_kind: bool, rounds: int = 1
) -> HeadMap:
    """`closed` (True: closed) after so many rounds of swaps, each kept where the loss falls. losses
    (*choices): of each choice."""
    heads = heads_at(closed)
    (best,) = losses(closed)
    for _ in range(rounds):
        alone = dict(zip(heads, losses(*(turned(closed, head) for head in heads)), strict=True))
        before = closed
        for pair in promising(alone, closed, by_kind=by_kind):
            other = turned(closed, *pair)
            (after,) = losses(other)
            if after < best:
                best, closed = after, other
        if closed is before:
            break
    return closed


def turned(closed: HeadMap, *heads: Head) -> HeadMap:
    """The choice with these heads the other way round."""
    rows = {site: row.clone() for site, row in closed.items()}
    for site, head in heads:
        rows[site][head] = ~rows[site][head]
    return HeadMap(rows)


def promising(
    alone: dict[Head, float], choice: Mapping[HeadSite, Tensor], *, by_kind: bool
) -> list[tuple[Head, Head]]:
    """(closed head, open head) pairs to try: the one that helps most when opened with the one that is missed
    least, and so on."""
    pairs: list[tuple[Head, Head]] = []
    ranked = sorted(alone, key=alone.__getitem__)
    for kind in sorted({site.kind if by_kind else "" for site in choice}):
        to_open, to_close = (
            [(s, h) for s, h in ranked if kind in ("", s.kind) and bool(choice[s][h]) is shut]
            for shut in (True, False)
        )
        pairs += zip(to_open[:SWAPS], to_close, strict=False)
    return sorted(pairs, key=lambda pair: alone[pair[0]] + alone[pair[1]])[:SWAPS]
