"""Head-wise optimal brain surgeon: what closing a head costs once W_O of the other heads makes up for it as
well as it can.

After Hassibi & Stork 1993 (optimal brain surgeon), by heads: at a site y = W z + b, whose inputs have the
covariance G (the second moments where there is no b to make up for the mean) and whose output's gradients
have the second moments F (site_statistics.py). Closing head h, with the best refit of b and of the heads that
stay, adds

    e_h = N tr(F W_h [(G^-1)_hh]^-1 W_h^T)

to the squared error of y, each output direction weighed by what it does to the loss, so that sites can be
compared. The head with the smallest e over all sites closes first; then its site has the heads that stay, W
refitted to y on them (W_S = Y G_S^-1), and new e. Costs add up exactly: their sum is the error that the refit
of all leaves. F is the Fisher information: its gradients are of targets that are sampled from the model's own
distribution, not of the references. At the references the gradients of a converged model are almost 0
wherever it is sure of them, whatever a change of y would do. Letters: H heads, K head width, D model width, N
positions, S the heads that stay.
"""

from collections.abc import Iterable
from heapq import merge
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import (
    Draw,
    Loss,
    Queries,
    batch_loss,
    frozen,
    in_parts,
    query_tokens,
    sampled_targets,
    sites_of,
)
from headgates.analysis.scores.site_statistics import SiteStatistics, one_by_one
from headgates.gates import HeadMap, HeadSite
from headgates.gates.called import called
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of, warn_of_neurons

DAMPING = 1e-3  # times the mean of G's diagonal, added to the diagonal
# of a pass with gradients, which keep some 30 d numbers a layer for each of them, beside 12 d^2 weights
POSITIONS_AT_ONCE = 250
CLOSING_STEPS = 128  # of a site at most: of more heads, which are neurons, several close at a step


@torch.no_grad()
def obs(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    draw: Draw = sampled_targets,
    seed: int = 0,
    kinds: Iterable[str] | None = None,
    queries: Queries = query_tokens,
) -> HeadMap:
    """Return the place of every head in the order of closing, from 0.

    Sites do not depend on each other, so the heads of some sites alone close in the same order. loss (model,
    batch): summed over units. draw (model, batch, generator): the batch with targets sampled from what the
    model says. seed: of the targets. kinds: of attention unless named. queries: as `site_statistics` takes
    them. Raises ValueError without any batch."""
    generator, device = torch.Generator().manual_seed(seed), device_of(model)
    sites = sites_of(model, kinds)
    warn_of_neurons(model, kinds)
    parts = (part for batch in batches for part in in_parts(batch, POSITIONS_AT_ONCE))
    with called(model), frozen(model):
        drawn = [draw(model, on_device(part, device), generator) for part in parts]
    statistics = one_by_one(model, drawn, sites=sites, loss=loss, queries=queries)
    return closing_places({site: closing_costs(each) for site, each in statistics})


def closing_places(costs: dict[HeadSite, list[tuple[int, float]]]) -> HeadMap:
    """The place of each head where the site whose next head is cheapest always closes that head. costs:
    (head, e) in each site's order."""
    places = {site: torch.zeros(site.heads, dtype=torch.float64) for site in costs}
    orders = ([(e, site, head) for head, e in order] for site, order in costs.items())
    for place, (_, site, head) in enumerate(merge(*orders, key=itemgetter(0))):
        places[site][head] = place
    return HeadMap(places)


def closing_costs(statistics: SiteStatistics) -> list[tuple[int, float]]:
    """(head, e) of one site's heads, in the order in which they close: always the one with the smallest e, or
    of more than CLOSING_STEPS the few with the smallest. The statistics are used up.

    When the columns C close, (G_S)^-1 and the refitted W lose what they owe to C: with L L^T = (G^-1)_CC and
    U = L^-1 (G^-1)_C, G^-1 -= U^T U and W -= W_C L^-T U. Of G^-1 only the blocks of heads are kept up to
    date; the rows C are made of the first G^-1 and of all U when C closes, as in a Cholesky decomposition, so
    that no step rewrites the whole matrix."""
    G = statistics.take()
    G.diagonal().add_(damping(G))
    L = torch.linalg.cholesky(G.mT, out=G.mT)  # in columns, so that nothing is copied
    inverse = torch.cholesky_inverse(L)
    values, vectors = torch.linalg.eigh(statistics.fisher)
    root = vectors * values.clamp_min(0).sqrt()
    # of the heads that are left, in their rows
    left, at_once = torch.arange(statistics.heads), -(-statistics.heads // CLOSING_STEPS)
    columns = torch.arange(len(G)).view(statistics.heads, -1)  # (S, K)
    blocks = inverse[columns[:, :, None], columns[:, None]]  # (S, K, K)
    W = (statistics.weight.T @ root)[columns]  # (S, K, D), refitted, so weighed that e is a sum of squares
    U, closed = G, 0  # in the memory of G: a row for each column that closed
    order: list[tuple[int, float]] = []
    while len(left):
        both = torch.linalg.solve(blocks, W @ W.mT)  # (S, K, K)
        costs = both.diagonal(dim1=1, dim2=2).sum(1) * statistics.count
        cheapest = costs.argsort(stable=True)[:at_once]
        order += zip(left[cheapest].tolist(), costs[cheapest].tolist(), strict=True)
        gone = columns[cheapest].flatten()
        rows = inverse[gone] - U[:closed, gone].T @ U[:closed]  # (C, HK)
        L = torch.linalg.cholesky(rows[:, gone])
        new = torch.linalg.solve_triangular(L, rows, upper=False)
        W_gone = torch.linalg.solve_triangular(L, W[cheapest].flatten(0, 1), upper=False)  # (C, D)
        U[closed : closed + len(gone)] = new
        closed += len(gone)
        stays = torch.ones(len(left), dtype=torch.bool)
        stays[cheapest] = False
        left, columns = left[stays], columns[stays]
        lost = new[:, columns].transpose(0, 1)  # (S, C, K)
        blocks = blocks[stays] - lost.mT @ lost
        W = W[stays] - lost.mT @ W_gone
    return order


def damping(G: Tensor) -> Tensor:
    """DAMPING of G's mean diagonal; 1 where G is 0."""
    mean = DAMPING * G.diagonal().mean()
    return mean if mean > 0 else torch.ones(())
