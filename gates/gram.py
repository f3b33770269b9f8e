"""Ridge regression from Gram matrices that are summed batch by batch: memory depends on the width of a site,
not on the text.

(W, b) = argmin ||X [W b]^T - Y||^2 + r ||[W b] - [W_old b_old]||^2,  so  [W b]^T = old + (X^T X + r I)^-1
(X^T Y - X^T X old). Letters: N positions, P columns of X, D columns of Y. r is given as a share of the mean
diagonal of X^T X, so that it has no unit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # tried on held-out sentences


class Ranks(Protocol):
    """Processes that share the calibration text out: batch i is read by the rank i % world, and sums are made
    over all."""

    def rank(self) -> int: ...
    def world(self) -> int: ...
    def all_sum(self, tensor: Tensor) -> Tensor: ...


@dataclass
class Gram:
    """Sums over positions, in float64."""

    xx: Tensor  # X^T X (P, P)
    xy: Tensor  # X^T Y (P, D)
    yy: float = 0.0  # of the squares of Y
    positions: int = 0

    @classmethod
    def zeros(cls, columns: int, outputs: int, device: torch.device | str = "cpu") -> "Gram":
        """Raises ValueError on a Mac's GPU."""
        if torch.device(device).type == "mps":
            raise ValueError(
                "statistics and refits are summed in float64, which a Mac's GPU (mps) lacks: model.to('cpu')"
            )
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        return cls(zeros(columns, columns), zeros(columns, outputs))

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take in x (N, P) and y (N, D)."""
        x, y = x.double(), y.double()
        self.xx.addmm_(x.T, x)
        self.xy.addmm_(x.T, y)
        self.yy += float(y.square().sum())
        self.positions += len(x)

    def __iadd__(self, other: "Gram") -> "Gram":
        """The sums of both."""
        self.xx += other.xx
        self.xy += other.xy
        self.yy += other.yy
        self.positions += other.positions
        return self

    def without_ones(self) -> "Gram":
        """The sums without the last column of X."""
        return Gram(self.xx[:-1, :-1], self.xy[:-1], self.yy, self.positions)

    def with_ones_of_zeros(self) -> "Gram":
        """The sums where the last column of X is 0, so that its row of a fit is what the ridge pulls to."""
        xx, xy = self.xx.clone(), self.xy.clone()
        xx[-1], xx[:, -1], xy[-1] = 0, 0, 0
        return Gram(xx, xy, self.yy, self.positions)

    def summed(self, ranks: Ranks) -> "Gram":
        """The sums of all ranks."""
        numbers = torch.tensor([self.yy, self.positions], dtype=torch.float64)
        xx, xy, (yy, positions) = map(ranks.all_sum, (self.xx, self.xy, numbers))
        return Gram(xx, xy, float(yy), int(positions))

    def residual(self, old: Tensor) -> Tensor:
        """X^T (Y - X old) (P, D) for weights old (P, D)."""
        return self.xy - self.xx @ old

    def error(self, weights: Tensor) -> float:
        """The share of the squares of Y that weights (P, D) leave unexplained, 0 where Y is 0."""
        left = self.yy - float((weights * (self.xy + self.residual(weights))).sum())
        return max(left, 0.0) / self.yy if self.yy else 0.0


def ridge_fit(gram: Gram, old: Tensor, ridge: float) -> Tensor:
    """The weights (P, D) of least error, shrunk to old (P, D) by `ridge` times the mean diagonal of X^T X; at
    0 the nearest to old."""
    return old + change(gram, gram.residual(old), ridge)


def ridge_unseen(fit: Gram) -> float:
    """The ridge of a text of which nothing is held out."""
    return 1e-3 if fit.positions >= len(fit.xx) else 1e-1


def choose_ridge(fit: Gram, held_out: Gram, old: Tensor) -> float:
    """The ridge of `RIDGES` whose weights, fitted on one part of the text, have the least error on the other.

    The error of old + delta on the held-out part is a quadratic form in its Gram matrices, so the text is not
    read again."""
    if not held_out.positions:
        return ridge_unseen(fit)
    residual, unseen = fit.residual(old), held_out.residual(old)

    def error(ridge: float) -> float:
        delta = change(fit, residual, ridge)
        return float((delta * (held_out.xx @ delta - 2 * unseen)).sum())

    return least_ridge(error)


def least_ridge(error: Callable[[float], float]) -> float:
    """The ridge of `RIDGES` of least error, which falls to it and rises behind it: every second one is tried,
    then those on both sides of the best."""
    tried = {ridge: error(ridge) for ridge in RIDGES[1::2]}
    at = RIDGES.index(min(tried, key=tried.__getitem__))
    tried |= {ridge: error(ridge) for ridge in (RIDGES[at - 1], RIDGES[at + 1])}
    return min(tried, key=tried.__getitem__)


def change(gram: Gram, residual: Tensor, ridge: float) -> Tensor:
    """What is added to weights (P, D) with this residual."""
    damped, info = gram.xx.clone(), torch.zeros((), dtype=torch.int32, device=gram.xx.device)
    damped.diagonal().add_(ridge * gram.xx.diagonal().mean())
    L = damped.mT  # in columns, so that nothing below copies a matrix of this size
    torch.linalg.cholesky_ex(L, out=(L, info))
    if ridge and not info:
        half = torch.linalg.solve_triangular(L, residual, upper=False)
        return torch.linalg.solve_triangular(L.mT, half, upper=True)
    # without a ridge, directions in which X does not vary change nothing; nor does a column that is always 0,
    # as of a dead ReLU: LAPACK may not converge on many of them
    live, found = gram.xx.diagonal() > 0, torch.zeros_like(residual)
    found[live] = torch.linalg.pinv(gram.xx[live][:, live], hermitian=True) @ residual[live]
    return found
