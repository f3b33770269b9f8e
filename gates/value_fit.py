"""Least squares for W_V and W_O together: each head that stays has a product O_h V_h of rank K to change, not
its W_O alone.

y = sum_h O_h V_h f_h + b,   f_h(l) = sum_s a_h(l, s) x_s:  what head h takes in at position l, by its
attention weights, before W_V

Minimised is ||sum_h F_h M_h + 1 b - Y||^2 + r ||[M; b] - [M_old; b_old]||^2, M_h = (O_h V_h)^T, in turns: all
O_h and b given every V_h, then V_h head by head given all else. Each turn is exact, so the sum never grows.
Only Gram matrices are read (gates/gram.py). Letters: N positions, S heads that stay, K head width, I width of
x, D of y. P = S * I + 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .gram import Gram, least_ridge, ridge_unseen

SWEEPS = 5  # over all heads; ten gain less than the choice of another text


def value_fit(
    gram: Gram,
    V: Tensor,
    O: Tensor,
    bias: Tensor,
    ridge: float,
    sweeps: int = SWEEPS,
) -> tuple[Tensor, Tensor, Tensor]:
    """V (S, K, I), O (S, D, K) and b (D,) of less error than those given, in float64.

    gram: of [f_1 ... f_S 1] (N, P) and Y (N, D). ridge: a share of the mean diagonal of X^T X; it pulls to
    what is given. The products (P, D) of all heads are never multiplied by X^T X (P, P): A = X^T X inner is
    narrower, and one head of it changes at a time."""
    heads, width, _ = V.shape
    size = ridge * gram.xx.diagonal().mean()
    # the ridge as more positions: they say what the old products say
    xx = gram.xx.clone()
    xx.diagonal().add_(size)
    xy = gram.xy + size * products(V, O, bias)
    V, O, bias = V.double().clone(), O.double(), bias.double()
    rows = rows_of_heads(V)
    solvers = [solver(xx[own, own], positive=ridge > 0) for own in rows]
    A = times_inner(xx, V)
    for _ in range(sweeps):
        inner_xx, inner_xy = inner_times(V, A), inner_times(V, xy)
        new = solver(inner_xx, positive=ridge > 0)(inner_xy)  # (S * K + 1, D)
        O, bias = new[:-1].unflatten(0, (heads, width)).mT, new[-1]
        for head, own in enumerate(rows):
            columns = slice(head * width, (head + 1) * width)
            inverse = torch.linalg.pinv(O[head]).T  # (D, K)
            # F_h^T (Y - what the others say), in the K directions that O_h reads
            others = new @ inverse
            others[columns] = 0
            V[head] = solvers[head](xy[own] @ inverse - A[own] @ others).T
            A[:, columns] = xx[:, own] @ V[head].T
    return V, O, bias


def rows_of_heads(V: Tensor) -> list[slice]:
    """Each head's rows of the P."""
    heads, _, inputs = V.shape
    return [slice(head * inputs, (head + 1) * inputs) for head in range(heads)]


def times_inner(xx: Tensor, V: Tensor) -> Tensor:
    """xx inner (P, S * K + 1), where inner = blockdiag(V_1^T ... V_S^T 1)."""
    return torch.cat([*(xx[:, own] @ V[head].T for head, own in enumerate(rows_of_heads(V))), xx[:, -1:]], 1)


def inner_times(V: Tensor, x: Tensor) -> Tensor:
    """inner^T x (S * K + 1, ..) for x (P, ..)."""
    return torch.cat([*(V[head] @ x[own] for head, own in enumerate(rows_of_heads(V))), x[-1:]])


def value_error(gram: Gram, V: Tensor, O: Tensor, bias: Tensor) -> float:
    """The share of the squares of Y that is left unexplained: `gram.error` of the products, by their
    factors."""
    outer = torch.cat([O.mT.flatten(0, 1), bias[None]])  # (S * K + 1, D)
    small = Gram(inner_times(V, times_inner(gram.xx, V)), inner_times(V, gram.xy), gram.yy, gram.positions)
    return small.error(outer)


def solver(xx: Tensor, *, positive: bool) -> Callable[[Tensor], Tensor]:
    """What solves xx v = y for many y: one factorisation where xx is positive definite, else least
    squares."""
    if positive and (factor := torch.linalg.cholesky_ex(xx)).info == 0:
        return lambda y: torch.cholesky_solve(y, factor.L)
    return lambda y: torch.linalg.lstsq(xx, y).solution


def products(V: Tensor, O: Tensor, bias: Tensor) -> Tensor:
    """(P, D): the (O_h V_h)^T below each other, and b."""
    return torch.cat([(O.double() @ V.double()).mT.flatten(0, 1), bias.double()[None]])


def choose_value_ridge(fit: Gram, held_out: Gram, V: Tensor, O: Tensor, bias: Tensor) -> float:
    """The ridge of `gram.RIDGES` whose weights, fitted on one part of the text, have the least error on the
    other."""
    if not held_out.positions:
        return ridge_unseen(fit)
    return least_ridge(lambda ridge: value_error(held_out, *value_fit(fit, V, O, bias, ridge)))
