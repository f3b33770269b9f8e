"""The optimal brain surgeon against least squares solved for every candidate, on materialised inputs."""

import numpy as np
import pytest
import torch

from headgates.analysis.batches import batch_loss, sampled_targets
from headgates.analysis.scores.obs import DAMPING, closing_costs, closing_places, obs
from headgates.analysis.scores.site_statistics import SiteStatistics, site_statistics
from headgates.gates import HeadSite, find_sites
from tests.analysis.scores.test_site_statistics import batches, materialised, model, pairs  # noqa: F401 - fixtures

H, K, D, N = 4, 3, 5, 211


def site(seed: int, *, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z (N, HK) of heads that have something in common, gradients (N, D), W (D, HK)."""
    rng = np.random.default_rng(seed)
    mix = np.eye(H * K) + 0.5 * rng.normal(size=(H * K, H * K))
    z = rng.normal(size=(N, H * K)) @ mix + mean * rng.normal(size=H * K)
    return z, rng.normal(size=(N, D)) @ rng.normal(size=(D, D)), rng.normal(size=(D, H * K))


def streamed(z: np.ndarray, g: np.ndarray, W: np.ndarray, parts: int = 5) -> SiteStatistics:
    found = SiteStatistics(H, torch.tensor(W))
    for some in np.array_split(np.arange(len(z)), parts):
        found.add(torch.tensor(z[some]), torch.tensor(g[some]))
    return found


def error(z: np.ndarray, g: np.ndarray, W: np.ndarray, left: tuple[int, ...]) -> float:
    """N tr(F E[r r^T]) of the residuals r of the best W and b on the heads that are left; the damping is more
    rows of the problem."""
    ridge = np.sqrt(DAMPING * np.mean(np.var(z, axis=0)) * len(z)) * np.eye(H * K)
    columns = [head * K + i for head in left for i in range(K)]
    X = np.concatenate([np.c_[z[:, columns], np.ones(len(z))], np.c_[ridge[:, columns], np.zeros(H * K)]])
    Y = np.concatenate([z @ W.T, ridge @ W.T])
    residuals = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
    F = g.T @ g / len(g)
    return sum(float(r @ F @ r) for r in residuals)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_costs_are_those_of_least_squares_and_the_order_is_greedy(seed, mean):
    z, g, W = site(seed, mean=mean)
    left, total = tuple(range(H)), 0.0
    for head, cost in closing_costs(streamed(z, g, W)):
        errors = {each: error(z, g, W, tuple(other for other in left if other != each)) for each in left}
        assert errors[head] == min(errors.values())
        total += cost
        assert total == pytest.approx(errors[head], rel=1e-8)
        left = tuple(other for other in left if other != head)
    assert left == ()


def test_a_head_that_duplicates_another_closes_for_next_to_nothing():
    _, g, W = site(7)
    z = np.random.default_rng(7).normal(size=(N, H * K))
    z[:, :K] = z[:, 2 * K : 3 * K]  # head 0 is head 2
    (head, cost), *others = closing_costs(streamed(z, g, W))
    assert head in (0, 2)
    assert cost < 0.01 * min(cost for _, cost in others)  # what is left is the damping's


def test_a_head_whose_output_never_changes_closes_for_nothing_as_the_bias_takes_its_place():
    z, g, W = site(11)
    z[:, K : 2 * K] = 5.0
    (head, cost), *others = closing_costs(streamed(z, g, W))
    assert head == 1
    assert cost < 0.01 * min(cost for _, cost in others)  # what is left is the damping's


def test_a_head_that_writes_nothing_costs_nothing_and_a_site_without_any_input_has_an_order():
    z, g, W = site(3)
    W[:, 2 * K : 3 * K] = 0
    assert closing_costs(streamed(z, g, W))[0] == (2, pytest.approx(0, abs=1e-12))
    silent = closing_costs(streamed(0 * z, g, W, parts=1))
    assert sorted(head for head, _ in silent) == list(range(H))
    assert all(np.isfinite(cost) for _, cost in silent)


def test_the_site_whose_next_head_is_cheapest_closes_it():
    one, two = HeadSite.at("enc-self", 0, 3), HeadSite.at("cross", 0, 2)
    places = closing_places({one: [(2, 1.0), (0, 4.0), (1, 2.0)], two: [(1, 3.0), (0, 5.0)]})
    assert places[one].tolist() == [2, 3, 0]  # 4.0 is not cheaper than 3.0, and 2.0 is only open after it
    assert places[two].tolist() == [4, 1]


def references(model, batch, generator):  # noqa: F811
    """Targets as they are, so that gradients are those of `materialised`."""
    return batch


def test_its_gradients_are_of_targets_drawn_from_the_model_always_the_same_by_seed(model, pairs):  # noqa: F811
    drawn = []

    def recorded(*arguments):
        drawn.append(sampled_targets(*arguments))
        return drawn[-1]

    found = obs(model, batches(pairs, 3), draw=recorded)
    assert found == obs(model, batches(pairs, 3)) == obs(model, drawn, draw=references)
    assert any(
        (new.target_out != old.target_out).any() for new, old in zip(drawn, batches(pairs, 3), strict=True)
    )


def test_the_order_of_a_model_is_the_greedy_order_over_all_its_sites(model, pairs):  # noqa: F811
    places = obs(model, batches(pairs, 3), draw=references)
    order = places.flat().argsort().tolist()
    assert sorted(places.flat().tolist()) == list(range(places.heads_total))
    flat = [(each, head) for each in places for head in range(each.heads)]
    expected = materialised(model, pairs)
    closed = {each: [] for each in places}
    width = 5

    def cost(each, head):
        """What the loss's second moments make of the residuals of least squares, without `head` and those
        closed before."""
        (z, g), W = expected[each], find_sites(model)[each].out_proj.weight.detach().double().numpy()
        z, g = z.numpy(), g.numpy()
        ridge = np.sqrt(DAMPING * np.mean(np.var(z, axis=0)) * len(z)) * np.eye(z.shape[1])

        def left_over(gone):
            columns = [h * width + i for h in range(each.heads) if h not in gone for i in range(width)]
            X = np.concatenate(
                [np.c_[z[:, columns], np.ones(len(z))], np.c_[ridge[:, columns], np.zeros(z.shape[1])]]
            )
            Y = np.concatenate([z @ W.T, ridge @ W.T])
            r = Y - X @ np.linalg.lstsq(X, Y, rcond=None)[0]
            return np.trace(g.T @ g / len(g) @ r.T @ r)

        return left_over([*closed[each], head]) - left_over(closed[each])

    for position in order:
        each, head = flat[position]
        costs = {(s, h): cost(s, h) for s in places for h in range(s.heads) if h not in closed[s]}
        assert costs[each, head] <= min(costs.values()) * (1 + 1e-3) + 1e-9
        closed[each].append(head)


def test_the_heads_of_one_kind_close_in_the_same_order_with_and_without_the_others(model, pairs):  # noqa: F811
    alone = site_statistics(model, batches(pairs, 3), loss=batch_loss, kinds=["enc-self"])
    order = closing_places({each: closing_costs(found) for each, found in alone.items()})
    together = obs(model, batches(pairs, 3), draw=references).select(["enc-self"])
    assert together.flat().argsort().tolist() == order.flat().argsort().tolist()
