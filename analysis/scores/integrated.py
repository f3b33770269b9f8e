"""The loss's gradient to the gates, with its sign, at one point or over a path: what closing a head adds to
the loss.   Integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365) in the space of gates.

With g in [0, 1]^H, L(g) the summed loss of one sentence and 1 all gates open, in nats a sentence:

    gradient          -dL/dg_h at 1: one step of the second line, attribution patching with zero ablation
    path "own"        -integral over a in [0, 1] of dL/dg_h at g_h = a, others at 1  =  L(g_h = 0) - L(1)
    path "diagonal"   -integral over a in [0, 1] of dL/dg_h at g = (a, ..., a); over h they sum to L(0) - L(1)

The integrals are Gauss-Legendre's sums: exact for polynomials of degree 2 * points - 1, slower to
converge where ReLU bends the path. Above 0 the head helps. Michel's importance (importance.py) is the mean
size of the first, without its sign.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headgates.analysis.batches import (
    Loss,
    Queries,
    batch_loss,
    on_device,
    query_tokens,
    shared,
    sites_of,
    summed,
)
from headgates.analysis.gate_gradients import head_factors
from headgates.gates import HeadMap, HeadSite
from headgates.gates.gram import Ranks

Path = Literal["diagonal", "own"]
SiteRows = Mapping[HeadSite, Tensor]  # (H,) for each site
POINTS = 5


def gradient(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return -E_x[dL(x)/dg_h] at open gates, in nats a sentence.

    Arguments and errors are those of `head_gradients`. Raises ValueError without any batch."""
    one = {site: torch.ones(site.heads, dtype=torch.float64) for site in sites_of(model, kinds)}
    return weighted([(one, one)], model, batches, loss, kinds, queries, ranks)


def integrated(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    path: Path = "diagonal",
    points: int = POINTS,
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> HeadMap:
    """Return the mean over sentences of the integral of every head of the kinds, in nats a sentence.

    path: "diagonal" takes `points` passes over each batch and closes all these heads together, "own" so many
    for each head. Other arguments and errors are those of `head_gradients`. Raises ValueError without any
    batch, at another path, and at fewer points than 1."""
    if path not in ("diagonal", "own") or points < 1:
        raise ValueError(
            f"expected path 'diagonal' or 'own' and points of at least 1, got {path!r}, {points}"
        )
    steps = list(steps_of(path, points, list(sites_of(model, kinds))))
    return weighted(steps, model, batches, loss, kinds, queries, ranks)


def steps_of(path: Path, points: int, sites: list[HeadSite]) -> Iterator[tuple[SiteRows, SiteRows]]:
    """The gates of each pass along the path, and the weight of each head's gradient in its integral."""
    for a, weight in zip(*gauss_legendre(points), strict=True):
        if path == "diagonal":
            alike = [{site: each.expand(site.heads) for site in sites} for each in (a, weight)]
            yield alike[0], alike[1]
            continue
        for place in sites:
            for head in range(place.heads):
                chosen = {site: (torch.arange(site.heads) == head) & (site == place) for site in sites}
                yield (
                    {site: torch.where(here, a, 1.0) for site, here in chosen.items()},
                    {site: torch.where(here, weight, 0.0) for site, here in chosen.items()},
                )


def gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (points,) of the rule on [0, 1], float64: eigenvalues of the polynomials' Jacobi
    matrix, and squares of the eigenvectors' first entries (Golub & Welsch 1969)."""
    k = torch.arange(1, points, dtype=torch.float64)
    beside = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (nodes + 1) / 2, vectors[0] ** 2


def weighted(
    steps: list[tuple[SiteRows, SiteRows]],
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    kinds: Iterable[str] | None,
    queries: Queries,
    ranks: Ranks | None,
) -> HeadMap:
    """-E_x of the sum over (point, weights) of the weights times dL(x)/dg at the point."""
    device, sites = next(model.parameters()).device, sites_of(model, kinds)
    sums = {site: torch.zeros(site.heads, dtype=torch.float64) for site in sites}
    sentences = torch.tensor(0)
    with head_factors(model, kinds=kinds) as factors:
        for batch in shared(batches, ranks):
            batch = on_device(batch, device)
            for point, weights in steps:
                factors.renew(batch, per="batch", queries=queries, at=point)
                with torch.enable_grad():
                    value = loss(model, batch)
                for site, slope in factors.gradients(value).items():
                    sums[site] -= weights[site] * slope.double().cpu()
            sentences += len(queries(model, next(iter(sites)), batch))
    if not (sentences := summed(sentences, ranks)):
        raise ValueError("gradients need at least one batch of sentence pairs, got none")
    return HeadMap({site: summed(total, ranks) / sentences for site, total in sums.items()})
