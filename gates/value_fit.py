"""Least squares for W_V and W_O together: each head that stays has a product O_h V_h of rank K to change, not
its W_O alone.

y = sum_h O_h V_h f_h + b,   f_h(l) = sum_s a_h(l, s) x_s:  what head h takes in at position l, by its
attention weights, before W_V

Minimised is ||sum_h F_h M_h + 1 b - Y||^2 + r ||[M; b] - [M_old; b_old]||^2, M_h = (O_h V_h)^T, in turns: all
O_h and b given every V_h, then V_h head by head given all else. Each turn is exact, so the sum never grows.
Only Gram matrices are read (gates/gram.py). Letters: N positions, S heads that stay, K head width, I width of
x, D of y. P = S * I + 1.
"""

import torch
from torch import Tensor

from .gram import RIDGES, Gram, ridge_unseen

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
    what is given."""
    heads, width, inputs = V.shape
    V, O, start = V.double().clone(), O.double(), products(V, O, bias)
    size = ridge * gram.xx.diagonal().mean()
    # the ridge as more positions: they say what the old products say
    xx = gram.xx + size * torch.eye(len(gram.xx), dtype=torch.float64, device=gram.xx.device)
    xy = gram.xy + size * start
    for _ in range(sweeps):
        inner = torch.block_diag(*V.mT, V.new_ones(1, 1))  # (P, S * K + 1)
        new = torch.linalg.pinv(inner.T @ xx @ inner, hermitian=True) @ (inner.T @ xy)
        O, bias = new[:-1].unflatten(0, (heads, width)).mT, new[-1]
        both = products(V, O, bias)
        for head in range(heads):
            rows = slice(head * inputs, (head + 1) * inputs)
            # F_h^T (Y - what the others say)
            missing = xy[rows] - xx[rows] @ both + xx[rows, rows] @ both[rows]
            if ridge:
                free = torch.linalg.solve(xx[rows, rows], missing)
            else:
                free = torch.linalg.lstsq(xx[rows, rows], missing).solution
            V[head] = (free @ torch.linalg.pinv(O[head]).T).T
            both[rows] = (O[head] @ V[head]).T
    return V, O, bias


def products(V: Tensor, O: Tensor, bias: Tensor) -> Tensor:
    """(P, D): the (O_h V_h)^T below each other, and b."""
    return torch.cat([(O.double() @ V.double()).mT.flatten(0, 1), bias.double()[None]])


def choose_value_ridge(fit: Gram, held_out: Gram, V: Tensor, O: Tensor, bias: Tensor) -> float:
    """The ridge of RIDGES whose weights, fitted on one part of the text, have the least error on the
    other."""
    if not held_out.positions:
        return ridge_unseen(fit)
    return min(RIDGES, key=lambda ridge: held_out.error(products(*value_fit(fit, V, O, bias, ridge))))
