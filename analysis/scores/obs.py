"""Head-wise optimal brain surgeon: what closing a head costs once W_O of the other heads makes up for it as
well as it can.

After Hassibi & Stork 1993 (optimal brain surgeon), by heads: at a site y = W z + b, whose inputs have the
covariance G and whose output's gradients have the second moments F (site_statistics.py). Closing head h, with
the best refit of b and of the heads that stay, adds

    e_h = N tr(F W_h [(G^-1)_hh]^-1 W_h^T)

to the squared error of y, each output direction weighed by what it does to the loss, so that sites can be
compared. The head with the smallest e over all sites closes first; then its site has the heads that stay, W
refitted to y on them (W_S = Y G_S^-1), and new e. Costs add up exactly: their sum is the error that the refit
of all leaves. F is the Fisher information: its gradients are of targets that are drawn from the model's own
distribution, not of the references. At the references the gradients of a converged model are almost 0
wherever it is sure of them, whatever a change of y would do. Letters: H heads, K head width, D model width, N
positions, S the heads that stay.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Draw, Loss, batch_loss, sampled_targets
from headgates.analysis.scores.site_statistics import SiteStatistics, site_statistics
from headgates.gates import HeadMap, HeadSite

DAMPING = 1e-3  # times the mean of G's diagonal, added to the diagonal


@torch.no_grad()
def obs(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    draw: Draw = sampled_targets,
    seed: int = 0,
) -> HeadMap:
    """Return the place of every head in the order of closing, from 0.

    Sites do not depend on each other, so the heads of some sites alone close in the same order. loss (model,
    batch): summed over units. draw (model, batch, generator): the batch with targets drawn from what the
    model says. seed: of the targets. Raises ValueError without
    any batch."""
    generator = torch.Generator().manual_seed(seed)
    statistics = site_statistics(
        model, batches, loss=lambda model, batch: loss(model, draw(model, batch, generator))
    )
    return closing_places({site: closing_costs(each) for site, each in statistics.items()})


def closing_places(costs: dict[HeadSite, list[tuple[int, float]]]) -> HeadMap:
    """The place of each head where the site whose next head is cheapest always closes that head. costs:
    (head, e) in each site's order."""
    places = {site: torch.zeros(site.heads, dtype=torch.float64) for site in costs}
    done = dict.fromkeys(costs, 0)
    for place in range(sum(map(len, costs.values()))):
        site = min(
            (site for site in costs if done[site] < len(costs[site])),
            key=lambda site: costs[site][done[site]][1],
        )
        places[site][costs[site][done[site]][0]] = place
        done[site] += 1
    return HeadMap(places)


def closing_costs(statistics: SiteStatistics) -> list[tuple[int, float]]:
    """(head, e) of one site's heads, in the order in which they close: always the one with the smallest e."""
    G = damped(statistics.covariance)
    K = len(G) // statistics.heads
    Y = statistics.weight @ G  # (D, HK), the covariance of y and z
    left = list(range(statistics.heads))
    order = []
    while left:
        columns = torch.cat([torch.arange(head * K, head * K + K) for head in left])
        inverse = torch.linalg.inv(G[columns][:, columns])
        W = Y[:, columns] @ inverse  # (D, SK), refitted
        costs = head_costs(W, inverse, statistics.fisher, len(left)) * statistics.count
        cheapest = int(costs.argmin())
        order.append((left.pop(cheapest), float(costs[cheapest])))
    return order


def head_costs(W: Tensor, inverse: Tensor, F: Tensor, heads: int) -> Tensor:
    """(heads,) tr(F W_h [(G^-1)_hh]^-1 W_h^T), for W (D, heads * K) and G^-1."""
    W_h = W.unflatten(1, (heads, -1)).transpose(0, 1)  # (heads, D, K)
    blocks = (
        inverse.unflatten(0, (heads, -1)).unflatten(2, (heads, -1)).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    )  # (heads, K, K)
    return (torch.linalg.solve(blocks, W_h.mT @ F @ W_h)).diagonal(dim1=1, dim2=2).sum(1)


def damped(G: Tensor) -> Tensor:
    """G with DAMPING of its mean diagonal added to the diagonal; the identity where G is 0."""
    mean = G.diagonal().mean()
    return G + (DAMPING * mean if mean > 0 else torch.ones(())) * torch.eye(len(G), dtype=G.dtype)
