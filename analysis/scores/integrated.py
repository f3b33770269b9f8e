"""The loss's gradient to the gates, with its sign, at one point or over a path: what closing a head adds to
the loss.   Integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365) in the space of gates.

With g in [0, 1]^H, L(g) the summed loss of one sentence and 1 all gates open, in nats a sentence:

    gradient      -dL/dg_h at 1: attribution patching with zero ablation
    integrated    -integral over a in [0, 1] of dL/dg_h at g = (a, ..., a); over h they sum to L(0) - L(1)

The integrals are Gauss-Legendre's sums: exact for polynomials of degree 2 * points - 1, slower to
converge where ReLU bends the path. Above 0 the head helps. Michel's importance (importance.py) is the mean
size of the first, without its sign.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.gate_gradients import gradient_means
from headgates.gates import HeadMap

POINTS = 5


def gradient(model: nn.Module, batches: Iterable[Any], **reading: Any) -> HeadMap:
    """Return -E_x[dL(x)/dg_h] at open gates, in nats a sentence.

    Arguments and errors are those of `gradient_means`."""
    return HeadMap(gradient_means(model, batches, lambda slopes: -slopes.sum(0), per="batch", **reading))


def integrated(model: nn.Module, batches: Iterable[Any], *, points: int = POINTS, **reading: Any) -> HeadMap:
    """Return the mean over sentences of the integral of every head of the kinds, in nats a sentence, by so
    many passes over the batches.

    Other arguments and errors are those of `gradient_means`."""
    text, (nodes, weights) = list(batches), gauss_legendre(points)
    slopes = [gradient(model, text, at=node, **reading) for node in nodes]
    return slopes[0].like(weights @ torch.stack([each.flat() for each in slopes]))


def gauss_legendre(points: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (points,) of the rule on [0, 1], float64: eigenvalues of the polynomials' Jacobi
    matrix, and squares of the eigenvectors' first entries (Golub & Welsch 1969)."""
    k = torch.arange(1, points, dtype=torch.float64)
    beside = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return (nodes + 1) / 2, vectors[0] ** 2
