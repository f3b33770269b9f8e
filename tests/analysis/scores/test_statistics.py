"""Streamed second moments, and the scores made of them, against materialised inputs and gradients, one
sentence at a time: fluctuation by a loop over channels, the optimal brain surgeon and swaps by least squares
solved for every candidate."""

import copy

import numpy as np
import pytest
import torch

from headgates.analysis.batches import batch_loss, in_parts, sampled_targets, sites_of
from headgates.analysis.scores.fluctuation import fluctuation, standardised
from headgates.analysis.scores.loss_swaps import loss_swapped
from headgates.analysis.scores.obs import DAMPING, closing_costs, closing_places, obs
from headgates.analysis.scores.site_statistics import SiteStatistics, one_by_one, site_statistics
from headgates.analysis.scores.swaps import EVERY, promising, swapped
from headgates.gates import HeadMap, HeadSite, attach, detach, zero_heads
from headgates.models.transformer import Transformer
from tests.worlds.one_by_one import Pair, in_batches, random_model, random_pairs

PAIRS = random_pairs()[:7]
BATCHES = in_batches(PAIRS, 3)
K = 5  # the width of the model's heads
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def model() -> Transformer:
    return random_model()


def materialised(model: Transformer, pairs: list[Pair]) -> dict[HeadSite, tuple[np.ndarray, np.ndarray]]:
    """z (N, HK) and dL/dy (N, D) of every site, float64: a pass for each sentence alone, without padding."""
    model, seen = copy.deepcopy(model), {site: [] for site in sites_of(model, None)}
    for site, each in sites_of(model, None).items():
        keep = lambda _, inputs, y, site=site: y.retain_grad() or seen[site].append((inputs[0], y))  # noqa: E731
        each.out_proj.register_forward_hook(keep)
    for pair in pairs:
        batch_loss(model, in_batches([pair], 1)[0]).backward()
    both = {
        site: zip(*[(z.detach()[0], y.grad[0]) for z, y in each], strict=True) for site, each in seen.items()
    }
    return {site: tuple(torch.cat(parts).double().numpy() for parts in each) for site, each in both.items()}


def least_squares(
    z: np.ndarray, W: np.ndarray, b: np.ndarray, columns: list[int], damping: float = DAMPING
) -> tuple[np.ndarray, ...]:
    """[W b]^T of the heads that are left, nearest to the output W z + b, and its residuals; the damping is
    more rows of the problem."""
    ridge = np.sqrt(damping * np.mean(np.var(z, axis=0)) * len(z)) * np.eye(z.shape[1])
    X = np.concatenate(
        [np.c_[z[:, columns], np.ones(len(z))], np.c_[ridge[:, columns], np.zeros(len(ridge))]]
    )
    Y = np.concatenate([z @ W.T + b, ridge @ W.T])
    new = np.linalg.lstsq(X, Y, rcond=None)[0]
    return new, Y - X @ new


def columns_of(heads, width: int = K) -> list[int]:
    return [head * width + i for head in heads for i in range(width)]


# --- the moments, and fluctuation


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_moments_are_those_of_all_positions_whatever_the_batches_and_their_padding(model, size):
    found = site_statistics(model, in_batches(PAIRS, size), loss=batch_loss)
    for site, (z, g) in materialised(model, PAIRS).items():
        ours = found[site]
        assert (ours.heads, ours.count) == (site.heads, len(z))
        np.testing.assert_allclose(ours.mean, z.mean(0), **CLOSE)
        np.testing.assert_allclose(ours.gram, z.T @ z / len(z), **CLOSE)
        np.testing.assert_allclose(ours.covariance, np.cov(z.T, bias=True), **CLOSE)
        np.testing.assert_allclose(ours.fisher, g.T @ g / len(g), **CLOSE)
    assert not any(each.fisher.any() for each in site_statistics(model, BATCHES).values())


def test_statistics_leave_the_model_as_it_was_and_refuse_what_they_cannot_see(model):
    model.train().encoder.layers[0].feed_forward.inner.weight.requires_grad_(False)
    before = [(each.requires_grad, each.grad) for each in model.parameters()]
    site_statistics(model, BATCHES, loss=batch_loss)
    with pytest.raises(ValueError, match="at least one batch of sentences, got none"):
        site_statistics(model, [], loss=batch_loss)
    attach(model, gate="mask", kinds=["enc-self"])
    with pytest.raises(ValueError, match=r"encoder\.0\.enc-self: .* does not call its output projection"):
        site_statistics(model, BATCHES, loss=batch_loss)
    detach(model)
    assert [(each.requires_grad, each.grad) for each in model.parameters()] == before
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_sites_in_turn_have_the_statistics_of_all_at_once_though_the_text_is_read_once(model, monkeypatch):
    sites, found, passes = [*sites_of(model, None)], {}, []

    def counted(model, batch):
        passes.append(batch)
        return batch_loss(model, batch)

    for _ in one_by_one(model, iter(BATCHES), sites=sites, loss=counted):
        pass
    assert len(passes) == len(BATCHES), "the sums of a small model share a pass"
    monkeypatch.setattr("headgates.analysis.scores.site_statistics.BYTES_AT_ONCE", 1)
    for site, each in one_by_one(model, iter(BATCHES), sites=sites, loss=batch_loss):
        found[site] = each
    for site, (z, g) in materialised(model, PAIRS).items():
        assert found[site].count == len(z)
        np.testing.assert_allclose(found[site].gram, z.T @ z / len(z), **CLOSE)
        np.testing.assert_allclose(found[site].fisher, g.T @ g / len(g), **CLOSE)
    assert len(found) == len(sites) > 1


def test_the_order_and_what_is_drawn_do_not_depend_on_how_many_positions_a_pass_has(model, monkeypatch):
    passes, generator = [], torch.Generator().manual_seed(3)

    def loss(model, batch):
        passes.append(batch.target_out.numel())
        return batch_loss(model, batch)

    found = []
    for positions in (10**6, 12, 1):
        monkeypatch.setattr("headgates.analysis.scores.obs.POSITIONS_AT_ONCE", positions)
        found.append(obs(model, BATCHES, loss=loss))
    assert found[0] == found[1] == found[2]
    widest = max(each.target_out.shape[1] for each in BATCHES)
    assert max(passes[-len(PAIRS) :]) <= widest < max(passes)
    (whole,) = in_batches(PAIRS, len(PAIRS))
    parts = [sampled_targets(model, part, generator).target_out for part in in_parts(whole, 30)]
    again = sampled_targets(model, whole, torch.Generator().manual_seed(3)).target_out
    assert len(parts) > 1
    assert torch.equal(torch.cat(parts), again)


def test_fluctuation_is_the_mean_of_standardised_variances_times_squared_columns_head_by_head(model):
    found = fluctuation(model, BATCHES)
    for site, (z, _) in materialised(model, PAIRS).items():
        W = sites_of(model, None)[site].out_proj.weight.detach().double().numpy()
        S = np.var(z, axis=0, ddof=1) * (W**2).sum(0)
        scaled = (S - S.mean()) / S.std(ddof=1)
        np.testing.assert_allclose(found[site], scaled.reshape(site.heads, K).mean(1), **CLOSE)
    assert standardised(torch.full((7,), 3.0)).tolist() == [0.0] * 7


# --- the optimal brain surgeon: four heads of width 3

H, WIDTH, D, N = 4, 3, 5, 211


def planted(seed: int, *, mean: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z (N, HK) of heads that have something in common, gradients (N, D), W (D, HK)."""
    rng = np.random.default_rng(seed)
    mix = np.eye(H * WIDTH) + 0.5 * rng.normal(size=(H * WIDTH, H * WIDTH))
    z = rng.normal(size=(N, H * WIDTH)) @ mix + mean * rng.normal(size=H * WIDTH)
    return z, rng.normal(size=(N, D)) @ rng.normal(size=(D, D)), rng.normal(size=(D, H * WIDTH))


def costs(z: np.ndarray, g: np.ndarray, W: np.ndarray, *, biased: bool = True) -> list[tuple[int, float]]:
    found = SiteStatistics(H, torch.tensor(W), biased=biased)
    for some in np.array_split(np.arange(len(z)), 5):
        found.add(torch.tensor(z[some]), torch.tensor(g[some]))
    return closing_costs(found)


def error(z: np.ndarray, g: np.ndarray, W: np.ndarray, left: set[int]) -> float:
    """What least squares on the heads that are left leaves, weighed by the gradients."""
    _, r = least_squares(z, W, np.zeros(D), columns_of(sorted(left), WIDTH))
    return float(np.trace(g.T @ g / len(g) @ r.T @ r))


def test_no_bias_makes_up_for_a_head_that_always_gives_the_same():
    z, g, W = planted(1)
    z[:, :WIDTH] = 50 + 0.01 * z[:, :WIDTH]  # the first head
    (first, _), *_ = costs(z, g, W)
    (_, *_, (last, cost)) = costs(z, g, W, biased=False)
    assert (first, last) == (0, 0)
    W_h, G = W[:, :WIDTH], z[:, :WIDTH].T @ z[:, :WIDTH]  # with no other head left
    assert cost == pytest.approx(np.trace(g.T @ g / len(g) @ W_h @ G @ W_h.T), rel=1e-2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_costs_are_those_of_least_squares_and_the_order_is_greedy(seed, mean):
    given, left, total = planted(seed, mean=mean), {*range(H)}, 0.0
    for head, cost in costs(*given):
        errors = {each: error(*given, left - {each}) for each in left}
        assert errors[head] == min(errors.values())
        total += cost
        assert total == pytest.approx(errors[head], rel=1e-8)
        left -= {head}
    assert not left


def test_where_several_close_at_a_step_the_next_costs_what_least_squares_loses(monkeypatch):
    monkeypatch.setattr("headgates.analysis.scores.obs.CLOSING_STEPS", 2)
    given = planted(3)
    (a, first), (b, second), (c, third), (d, _) = costs(*given)
    expected = error(*given, {b, c, d}), error(*given, {a, c, d}), error(*given, {d}) - error(*given, {c, d})
    assert (first, second, third) == pytest.approx(expected, rel=1e-8)
    z, g, W = given
    assert sorted(head for head, _ in costs(0 * z, g, W)) == list(range(H)), "also of a site without input"


def test_the_site_whose_next_head_is_cheapest_closes_it():
    one, two = HeadSite.at("enc-self", 0, 3), HeadSite.at("cross", 0, 2)
    places = closing_places({one: [(2, 1.0), (0, 4.0), (1, 2.0)], two: [(1, 3.0), (0, 5.0)]})
    assert places[one].tolist() == [2, 3, 0]  # 4.0 is not cheaper than 3.0, and 2.0 is only open after it
    assert places[two].tolist() == [4, 1]


def test_obs_merges_the_orders_of_sites_by_gradients_of_sampled_targets_the_same_by_seed(model):
    sampled = []

    def recorded(*arguments):
        sampled.append(sampled_targets(*arguments))
        return sampled[-1]

    found = obs(model, BATCHES, draw=recorded)
    assert any((new.target_out != old.target_out).any() for new, old in zip(sampled, BATCHES, strict=True))
    assert found == obs(model, BATCHES) == obs(model, sampled, draw=lambda model, batch, generator: batch)
    assert found != obs(model, BATCHES, seed=1)
    each = site_statistics(model, sampled, loss=batch_loss)
    assert found == closing_places({site: closing_costs(own) for site, own in each.items()})


# --- swaps


def refitted_loss(model: Transformer, data, closed: HeadMap) -> float:
    """The loss on every third batch with W_O and b of least squares on the other batches' inputs."""
    seen = materialised(model, [pair for number, pair in enumerate(PAIRS) if (number + 1) % EVERY])
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for site, module in sites_of(changed, None).items():
            if closed[site].any():
                out = module.out_proj
                columns = columns_of((~closed[site]).nonzero().flatten().tolist())
                W, b = (each.double().numpy() for each in (out.weight, out.bias))
                new = torch.tensor(least_squares(seen[site][0], W, b, columns)[0])
                out.weight.zero_()
                out.weight[:, columns] = new[:-1].T.float()
                out.bias.copy_(new[-1])
        return sum(float(batch_loss(changed, batch)) for batch in data[EVERY - 1 :: EVERY])


def test_a_swap_refits_with_the_ridge_of_all_heads_not_of_the_open_ones(model, monkeypatch):
    monkeypatch.setattr("headgates.analysis.scores.obs.DAMPING", 1.0)
    closed = HeadMap({site: torch.arange(site.heads) == 1 for site in sites_of(model, None)})
    seen = materialised(model, [pair for number, pair in enumerate(PAIRS) if (number + 1) % EVERY])
    weights, passes = {site: each.out_proj.weight for site, each in sites_of(model, None).items()}, []

    def loss(model, batch):
        passes.append({site: weight.detach().clone() for site, weight in weights.items()})
        return batch_loss(model, batch)

    swapped(model, in_batches(PAIRS, 1), closed, loss=loss)
    first = passes[sum(bool((number + 1) % EVERY) for number in range(len(PAIRS)))]  # after the statistics
    for site, each in sites_of(model, None).items():
        W, b = (own.detach().double().numpy() for own in (each.out_proj.weight, each.out_proj.bias))
        columns = columns_of((~closed[site]).nonzero().flatten().tolist())
        expected = least_squares(seen[site][0], W, b, columns, damping=1.0)[0][:-1].T
        np.testing.assert_allclose(first[site][:, columns], expected, **CLOSE)


@torch.no_grad()
def zeroed_loss(model: Transformer, data, closed: HeadMap) -> float:
    changed = copy.deepcopy(model)
    zero_heads(changed, closed)
    return sum(float(batch_loss(changed, batch)) for batch in data)


@pytest.mark.parametrize(("count", "by_kind"), [(4, True), (7, False)])
@pytest.mark.parametrize(
    ("swap", "loss", "size"),
    [(swapped, refitted_loss, 1), (loss_swapped, zeroed_loss, 5)],
    ids=["with a refit", "without"],
)
def test_a_swap_lowers_the_loss_and_keeps_the_numbers_and_the_model(model, count, by_kind, swap, loss, size):
    data, lowered, weights = in_batches(PAIRS, size), 0, copy.deepcopy(model.state_dict())
    for seed in range(2):
        torch.manual_seed(seed)
        closed = HeadMap({site: torch.rand(site.heads) for site in sites_of(model, None)}).lowest(count)
        found = swap(model, data, closed, by_kind=by_kind)
        assert found.count() == count
        assert not by_kind or found.by_kind() == closed.by_kind()
        before, after = (loss(model, data, each) for each in (closed, found))
        assert after <= before * (1 + 1e-6)
        lowered += after < before * (1 - 1e-4)
        assert (found == closed) is (after == pytest.approx(before, rel=1e-6)), "kept where nothing is gained"
    assert lowered, "or nothing would be tried"
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)


def test_a_misspelt_argument_of_a_swap_is_refused_and_those_of_the_order_are_not(model):
    closed = HeadMap({site: torch.arange(site.heads) == 1 for site in sites_of(model, None)})
    with pytest.raises(TypeError, match="by_kinds"):
        swapped(model, BATCHES, closed, by_kinds=True)
    swapped(model, BATCHES, closed.select(["cross"]), draw=sampled_targets, seed=1, kinds=["cross"])


def test_pairs_are_tried_from_the_most_promising_within_kinds_where_asked():
    sites = HeadSite.at("enc-self", 0, 2), HeadSite.at("cross", 0, 2)
    choice = {site: torch.tensor([True, False]) for site in sites}
    a, b, c, d = ((site, head) for site in sites for head in range(2))
    alone = {a: 1.0, b: 5.5, c: 2.0, d: 5.0}
    assert promising(alone, choice, by_kind=False) == [(a, d), (c, b)]
    assert promising(alone, choice, by_kind=True) == [(a, b), (c, d)]
