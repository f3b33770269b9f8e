"""value_fit: the least of what it minimises, by autograd on matrices laid out in full; numpy's ridge where
heads are of full rank."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headgates.gates.gram import RIDGES, Gram
from headgates.gates.value_fit import choose_value_ridge, products, value_error, value_fit

HEADS, K, INPUTS, D, N = 3, 2, 5, 6, 400


def gram_of(x: torch.Tensor, y: torch.Tensor) -> Gram:
    gram = Gram.zeros(x.shape[1], y.shape[1])
    gram.add(x, y)
    return gram


def planted(seed: int, width: int = K, noise: float = 0.0):
    """Inputs with a column of ones (N, P), outputs (N, D) of heads (V, O, bias), and these."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    V, O, bias = draw(HEADS, width, INPUTS), draw(HEADS, D, width), draw(D)
    mixing = draw(HEADS * INPUTS, HEADS * INPUTS)
    x = torch.cat([draw(N, HEADS * INPUTS) @ mixing, torch.ones(N, 1, dtype=torch.float64)], 1)
    return x, x @ products(V, O, bias) + noise * draw(N, D), (V, O, bias)


@pytest.mark.parametrize("ridge", [1e-4, 0.1])
def test_heads_as_wide_as_their_inputs_are_ridge_regression(ridge):
    x, y, _ = planted(0, noise=0.5)
    old = planted(1, width=INPUTS)[2]
    found = value_fit(gram_of(x, y), *old, ridge, sweeps=200)
    r = ridge * np.mean((x.numpy() ** 2).sum(0))
    expected = np.linalg.solve(
        x.numpy().T @ x.numpy() + r * np.eye(x.shape[1]), x.numpy().T @ y.numpy() + r * products(*old).numpy()
    )
    np.testing.assert_allclose(products(*found).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_planted_heads_are_found_where_w_o_alone_cannot():
    x, y, (V, O, bias) = planted(7)
    generator = torch.Generator().manual_seed(8)
    moved = V + 0.3 * torch.randn(V.shape, generator=generator, dtype=torch.float64)
    gram = gram_of(x, y)
    inner = torch.block_diag(*moved.mT, torch.ones(1, 1, dtype=torch.float64))
    alone = np.linalg.lstsq((x @ inner).numpy(), y.numpy(), rcond=None)[0]
    left = np.square((x @ inner).numpy() @ alone - y.numpy()).sum() / y.square().sum().item()
    assert left > 0.001
    assert gram.error(products(*value_fit(gram, moved, O, bias, 0.0, sweeps=500))) < 1e-3 * left


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_no_product_of_all_heads_is_multiplied_by_the_gram_matrix(ridge):
    """(P, P) times (P, D) took seven eighths of the time at d = 1024; the numbers are those of whole
    matrices."""
    x, y, (V, O, bias) = planted(3, noise=0.7)
    gram, old = gram_of(x, y), products(V, O, bias)
    shapes = []

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.mm.default:
                shapes.append((*args[0].shape, args[1].shape[1]))
            return func(*args, **(kwargs or {}))

    with Recorded():
        found = value_fit(gram, V, O, bias, ridge, sweeps=1)
        error = value_error(gram, *found)
    assert shapes
    assert (len(x[0]), len(x[0]), D) not in shapes
    # one sweep the slow way
    size = ridge * gram.xx.diagonal().mean()
    xx, xy = gram.xx + size * torch.eye(len(old), dtype=torch.float64), gram.xy + size * old
    inner = torch.block_diag(*V.mT, torch.ones(1, 1, dtype=torch.float64))
    outer = torch.linalg.lstsq(inner.T @ xx @ inner, inner.T @ xy).solution
    M = inner @ outer
    for head in range(HEADS):
        rows, own = slice(head * INPUTS, (head + 1) * INPUTS), outer[head * K : (head + 1) * K]
        free = torch.linalg.lstsq(xx[rows, rows], xy[rows] - xx[rows] @ M + xx[rows, rows] @ M[rows]).solution
        M[rows] = free @ torch.linalg.pinv(own) @ own
    torch.testing.assert_close(products(*found), M, rtol=1e-10, atol=1e-10)
    assert error == pytest.approx(gram.error(M), rel=1e-10)


@pytest.mark.parametrize("dead", ["V", "O"])
def test_heads_that_say_nothing_give_finite_weights(dead):
    x, y, (V, O, bias) = planted(2)
    (V if dead == "V" else O)[1] = 0
    assert all(
        each.isfinite().all() for ridge in (0.0, 1e-3) for each in value_fit(gram_of(x, y), V, O, bias, ridge)
    )


def test_the_ridge_is_the_one_that_says_the_other_part_best():
    x, y, _ = planted(5, noise=20.0)
    old = planted(6)[2]
    fit, held_out = gram_of(x[:40], y[:40]), gram_of(x[40:], y[40:])
    errors = {
        ridge: (x[40:] @ products(*value_fit(fit, *old, ridge)) - y[40:]).square().sum().item()
        for ridge in RIDGES
    }
    assert choose_value_ridge(fit, held_out, *old) == min(errors, key=errors.__getitem__)
    assert len(set(errors.values())) == len(RIDGES)
