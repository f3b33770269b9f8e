"""value_fit: the least of what it minimises, by autograd on matrices laid out in full; numpy's ridge where
heads are of full rank."""

import itertools

import numpy as np
import pytest
import torch

from headgates.gates.gram import RIDGES, Gram
from headgates.gates.value_fit import choose_value_ridge, products, value_fit

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


def objective(x, y, heads, old, ridge):
    M = products(*heads)
    return (x @ M - y).square().sum() + ridge * x.square().sum(0).mean() * (M - products(*old)).square().sum()


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


@pytest.mark.parametrize(("seed", "ridge"), [(0, 0.0), (1, 1e-4), (2, 0.1)])
def test_no_sweep_raises_what_is_minimised(seed, ridge):
    x, y, _ = planted(seed, noise=2.0)
    old = planted(seed + 50)[2]
    errors = [
        objective(x, y, value_fit(gram_of(x, y), *old, ridge, sweeps=n), old, ridge).item() for n in range(8)
    ]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(errors))
    assert errors[1] < errors[0]


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
