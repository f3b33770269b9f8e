"""The ridge regression of a reconstruction, from summed Gram matrices: numpy's, on whole matrices."""

import numpy as np
import pytest
import torch

from headgates.gates.gram import RIDGES, Gram, choose_ridge, ridge_fit


def matrices(positions=53, columns=5, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x, old = rng.normal(size=(positions, columns)), rng.normal(size=(columns, outputs))
    return x, x @ rng.normal(size=(columns, outputs)) + rng.normal(size=(positions, outputs)), old


def gram_of(x, y, parts=3) -> Gram:
    gram = Gram(x.shape[1], y.shape[1])
    for rows in np.array_split(np.arange(len(x)), parts):
        gram.add(torch.tensor(x[rows]), torch.tensor(y[rows]))
    return gram


def test_without_ridge_it_is_least_squares():
    x, y, old = matrices()
    np.testing.assert_allclose(
        ridge_fit(gram_of(x, y), torch.tensor(old), 0.0), np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-9
    )


def test_a_ridge_shrinks_to_the_old_weights_as_the_closed_form_does():
    x, y, old = matrices()
    r = 0.3 * np.mean((x**2).sum(0))
    closed_form = np.linalg.solve(x.T @ x + r * np.eye(5), x.T @ y + r * old)
    np.testing.assert_allclose(ridge_fit(gram_of(x, y), torch.tensor(old), 0.3), closed_form, rtol=1e-9)
    np.testing.assert_allclose(ridge_fit(gram_of(x, y), torch.tensor(old), 1e9), old, rtol=1e-6)


def test_directions_that_never_vary_keep_the_old_weights():
    x, y, old = matrices()
    x[:, 3] = 0.0
    found = ridge_fit(gram_of(x, y), torch.tensor(old), 0.0)
    np.testing.assert_allclose(found[3], old[3])
    np.testing.assert_allclose(
        found[[0, 1, 2, 4]], np.linalg.lstsq(x[:, [0, 1, 2, 4]], y, rcond=None)[0], rtol=1e-9
    )


def test_the_ridge_is_the_one_of_least_error_on_the_held_out_rows():
    # few rows and much noise ask for a large ridge, many for a small one
    chosen = set()
    for seed, rows in enumerate((8, 11, 17, 31, 61, 201)):
        rng = np.random.default_rng(seed)
        true = rng.normal(size=(7, 3))
        x, other = rng.normal(size=(rows, 7)), rng.normal(size=(97, 7))
        y, other_y = x @ true + rng.normal(size=(rows, 3)), other @ true + rng.normal(size=(97, 3))
        old = true + rng.normal(size=(7, 3)) * 0.3
        errors = []
        for ridge in RIDGES:
            r = ridge * np.mean((x**2).sum(0))
            errors.append(
                ((other @ np.linalg.solve(x.T @ x + r * np.eye(7), x.T @ y + r * old) - other_y) ** 2).sum()
            )
        ridge = choose_ridge(gram_of(x, y), gram_of(other, other_y), torch.tensor(old))
        assert ridge == RIDGES[int(np.argmin(errors))]
        chosen.add(ridge)
    assert len(chosen) > 1


def test_the_unexplained_share_is_that_of_the_residuals():
    x, y, old = matrices()
    expected = ((y - x @ old) ** 2).sum() / (y**2).sum()
    assert gram_of(x, y).error(torch.tensor(old)) == pytest.approx(expected)
