"""The ridge regression of a reconstruction, from summed Gram matrices: numpy's, on whole matrices."""

import numpy as np
import pytest
import torch

from headgates.gates.gram import RIDGES, Gram, choose_ridge, ridge_fit


def matrices(positions=53, columns=5, outputs=3, seed=0):
    """x, y and old weights not far from those that made y."""
    rng = np.random.default_rng(seed)
    x, true = rng.normal(size=(positions, columns)), rng.normal(size=(columns, outputs))
    y = x @ true + rng.normal(size=(positions, outputs))
    return x, y, true + 0.3 * rng.normal(size=true.shape)


def gram_of(x, y, parts=3) -> Gram:
    gram = Gram.zeros(x.shape[1], y.shape[1])
    for rows in np.array_split(np.arange(len(x)), parts):
        gram.add(torch.tensor(x[rows]), torch.tensor(y[rows]))
    return gram


def closed_form(x, y, old, ridge):
    r = ridge * np.mean((x**2).sum(0))
    return np.linalg.solve(x.T @ x + r * np.eye(x.shape[1]), x.T @ y + r * old)


def test_directions_that_never_vary_keep_the_old_weights():
    x, y, old = matrices()
    x[:, 3] = 0.0
    found, others = ridge_fit(gram_of(x, y), torch.tensor(old), 0.0), [0, 1, 2, 4]
    np.testing.assert_allclose(found[3], old[3])
    np.testing.assert_allclose(found[others], np.linalg.lstsq(x[:, others], y, rcond=None)[0], rtol=1e-9)


def test_columns_that_are_always_zero_stay_out_of_the_decomposition(monkeypatch):
    """LAPACK did not converge on the inputs of a layer of which 240 of 256 ReLUs were dead."""
    x, y, old = matrices()
    x[:, [1, 3]] = 0.0
    pinv = torch.linalg.pinv

    def strict(xx, hermitian):
        assert xx.diagonal().all()
        return pinv(xx, hermitian=hermitian)

    monkeypatch.setattr(torch.linalg, "pinv", strict)
    found = ridge_fit(gram_of(x, y), torch.tensor(old), 0.0)
    np.testing.assert_allclose(found, ridge_fit(gram_of(x, y), torch.tensor(old), 1e-12), rtol=1e-6)
    np.testing.assert_allclose(found[[1, 3]], old[[1, 3]])
    for ridge in (1e-12, 0.1):
        fitted = ridge_fit(gram_of(x, y), torch.tensor(old), ridge)
        np.testing.assert_allclose(fitted, closed_form(x, y, old, ridge), rtol=1e-6)
    x[:] = 0.0
    np.testing.assert_allclose(ridge_fit(gram_of(x, y), torch.tensor(old), 0.1), old)


def test_the_ridge_is_the_one_of_least_error_on_the_held_out_rows():
    chosen = set()
    for seed, rows in enumerate((8, 17, 31, 201)):  # few rows ask for a large ridge, many for a small one
        x, y, old = matrices(rows + 97, columns=7, seed=seed)
        fit, other = (x[:rows], y[:rows]), (x[rows:], y[rows:])
        errors = [((other[0] @ closed_form(*fit, old, ridge) - other[1]) ** 2).sum() for ridge in RIDGES]
        ridge = choose_ridge(gram_of(*fit), gram_of(*other), torch.tensor(old))
        assert ridge == RIDGES[int(np.argmin(errors))]
        chosen.add(ridge)
    assert len(chosen) > 1


def test_the_unexplained_share_is_that_of_the_residuals_and_sums_add_up():
    x, y, old = matrices()
    expected = ((y - x @ old) ** 2).sum() / (y**2).sum()
    both = gram_of(x[:20], y[:20])
    both += gram_of(x[20:], y[20:])
    assert both.positions == len(x)
    assert both.error(torch.tensor(old)) == pytest.approx(expected)
    less = both.without_ones()
    np.testing.assert_allclose(less.xx, x[:, :-1].T @ x[:, :-1])
    np.testing.assert_allclose(less.xy, x[:, :-1].T @ y)
