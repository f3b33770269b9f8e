"""repair: the refit is numpy's least squares on matrices that are laid out in full, in forward order; and what follows from that."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from gates import HeadMap, HeadSite, attach, detach, find_sites, fold_mean, remove, repair, rescale, zero_heads
from gates.gram import RIDGES, Gram, choose_ridge, ridge_fit
from gates.site_walk import SiteWalk
from tests.gates.families import BY_NAME

HEADS, WIDTH, D = 3, 7, 21
# as a pass of the small model reaches them
ORDER = ["encoder.0.enc-self", "encoder.1.enc-self", "decoder.0.dec-self", "decoder.0.cross", "decoder.1.dec-self", "decoder.1.cross"]
SOME = {"encoder.1.enc-self": [0], "decoder.0.cross": [1, 2], "decoder.1.dec-self": [2], "decoder.1.cross": [0, 1, 2]}


def closing(model, heads: dict[str, list[int]] = SOME) -> HeadMap:
    return HeadMap({site: torch.tensor([h in heads.get(site.name, []) for h in range(site.heads)]) for site in find_sites(model)})


def forward(model, batch):
    return model(*batch)


@pytest.fixture
def text():
    """Five batches of random pairs without padding, of different sizes: (sources, target inputs)."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(11, 7, 5), (13, 3, 9), (7, 6, 6), (5, 2, 3), (2, 8, 7)]
    return [(torch.randint(4, 23, (b, s), generator=generator), torch.randint(4, 19, (b, t), generator=generator)) for b, s, t in sizes]


@pytest.fixture
def model(make_model):
    return make_model().double()


def module_at(model, name: str) -> nn.Module:
    return next(module for site, module in find_sites(model).items() if site.name == name)


def laid_out(model, name: str, batches, where=None) -> tuple[np.ndarray, np.ndarray]:
    """All inputs and outputs of a site's W_O, one row a position, by whole forward passes."""
    inputs, outputs = [], []

    def keep(_, x, y):
        inputs.append(x[0])
        outputs.append(y)

    handle = module_at(model, name).out_proj.register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    handle.remove()
    rows = [torch.ones(x.shape[:2], dtype=torch.bool) for x in inputs] if where is None else [where(name, batch) for batch in batches]
    flat = [torch.cat([x[mask] for x, mask in zip(each, rows, strict=True)]).numpy() for each in (inputs, outputs)]
    return flat[0], flat[1]


def slowly_repaired(model, heads: dict[str, list[int]], batches, ridge: float, where=None) -> nn.Module:
    """What gates/repair.py says, with whole matrices: (X^T X + r I)^-1 (X^T Y + r old), site by site, each by whole passes."""
    dense, model = model, copy.deepcopy(model)
    first = next(i for i, name in enumerate(ORDER) if heads.get(name))
    for name in ORDER[first:]:
        out = module_at(model, name).out_proj
        kept = np.array([h not in heads.get(name, []) for h in range(HEADS) for _ in range(WIDTH)])
        z, _ = laid_out(model, name, batches, where)
        _, y = laid_out(dense, name, batches, where)
        x = np.concatenate([z[:, kept], np.ones((len(z), 1))], axis=1)
        old = np.concatenate([out.weight.detach().numpy()[:, kept], out.bias.detach().numpy()[:, None]], axis=1).T
        r = ridge * np.mean((x**2).sum(0)) if kept.any() else 0.0
        new = np.linalg.solve(x.T @ x + r * np.eye(x.shape[1]), x.T @ y + r * old) if r else np.linalg.lstsq(x, y, rcond=None)[0]
        with torch.no_grad():
            out.weight.zero_()
            out.weight[:, torch.tensor(kept)] = torch.tensor(new[:-1].T)
            out.bias.copy_(torch.tensor(new[-1]))
    return model


def equal_weights(model, expected, tolerance=1e-7):
    for (name, ours), theirs in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


# ---------------------------------------------------------------- the fit itself


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
    np.testing.assert_allclose(ridge_fit(gram_of(x, y), torch.tensor(old), 0.0), np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-9)


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
    np.testing.assert_allclose(found[[0, 1, 2, 4]], np.linalg.lstsq(x[:, [0, 1, 2, 4]], y, rcond=None)[0], rtol=1e-9)


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
            errors.append(((other @ np.linalg.solve(x.T @ x + r * np.eye(7), x.T @ y + r * old) - other_y) ** 2).sum())
        ridge = choose_ridge(gram_of(x, y), gram_of(other, other_y), torch.tensor(old))
        assert ridge == RIDGES[int(np.argmin(errors))]
        chosen.add(ridge)
    assert len(chosen) > 1


def test_the_unexplained_share_is_that_of_the_residuals():
    x, y, old = matrices()
    expected = ((y - x @ old) ** 2).sum() / (y**2).sum()
    assert gram_of(x, y).error(torch.tensor(old)) == pytest.approx(expected)


# ---------------------------------------------------------------- the walk over the sites


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1])
def test_the_refit_is_numpys_at_every_site_in_forward_order(model, text, ridge):
    expected = slowly_repaired(model, SOME, text, ridge)
    done = repair(model, closing(model), text, forward, ridge=ridge)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == ORDER[1:]  # nothing is closed before
    assert {each.positions for each in done if each.site.kind == "enc-self"} == {sum(len(s) * s.shape[1] for s, _ in text)}


def test_the_sites_of_another_order_of_closing_are_refitted_too(model, text):
    heads = {"decoder.0.dec-self": [0, 2]}
    expected = slowly_repaired(model, heads, text, 1e-3)
    done = repair(model, closing(model, heads), text, forward, ridge=1e-3)
    equal_weights(model, expected)
    assert [each.site.name for each in done] == ORDER[2:]


def test_padding_positions_do_not_matter(model, batch):
    source, target_in = batch
    many = [(source, target_in)] * 3
    where = lambda name, pair: (pair[0] if "encoder" in name else pair[1]) != 0  # noqa: E731

    def positions(_, site, pair):
        return where(site.name, pair)

    expected = slowly_repaired(model, SOME, many, 1e-3, where)
    longer = [(nn.functional.pad(source, (0, 4)), nn.functional.pad(target_in, (0, 3)))] * 3
    for each in (many, longer):
        repaired = copy.deepcopy(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few positions are warned of
            repair(repaired, closing(model), each, forward, ridge=1e-3, positions=positions)
        equal_weights(repaired, expected)


def test_nothing_closed_changes_nothing(model, text):
    before = copy.deepcopy(model.state_dict())
    assert repair(model, closing(model, {}), text, forward) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_head_that_duplicates_another_is_not_missed(model, text):
    attention = module_at(model, "encoder.0.enc-self")
    with torch.no_grad():
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight[WIDTH : 2 * WIDTH] = projection.weight[:WIDTH]
            projection.bias[WIDTH : 2 * WIDTH] = projection.bias[:WIDTH]
    expected = [model(*each) for each in text]
    closed = closing(model, {"encoder.0.enc-self": [1]})
    (first, *_) = repair(model, closed, text, forward, ridge=0.0)
    assert first.error < 1e-12
    for each, logits in zip(text, expected, strict=True):
        torch.testing.assert_close(model(*each), logits, rtol=1e-6, atol=1e-6)


def test_a_site_without_any_head_gives_the_mean(model, text):
    _, y = laid_out(model, "decoder.0.dec-self", text)
    repair(model, closing(model, {"decoder.0.dec-self": [0, 1, 2]}), text, forward)
    out = module_at(model, "decoder.0.dec-self").out_proj
    np.testing.assert_allclose(out.bias.detach().numpy(), y.mean(0), rtol=1e-9)
    assert not out.weight.any()


@pytest.mark.parametrize("way", [repair, rescale, fold_mean])
def test_masked_and_removed_are_the_repaired_model(model, text, way):
    closed = closing(model)
    way(model, closed, text, forward)
    logits = model(*text[0])
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    assert torch.equal(model(*text[0]), logits)  # the closed heads add nothing already
    detach(model)
    count = sum(p.numel() for p in model.parameters())
    removed = remove(model, closed)
    torch.testing.assert_close(model(*text[0]), logits, rtol=1e-9, atol=1e-9)
    assert sum(p.numel() for p in model.parameters()) == count - removed.parameters < count


def test_the_refit_comes_nearer_to_the_dense_outputs_than_the_cheap_forms(model, text):
    dense, distance = [model(*each) for each in text], {}
    ways = {"zero": lambda m, closed, *_: zero_heads(m, closed), "mean": fold_mean, "rescale": rescale, "repair": repair}
    for name, way in ways.items():
        changed = copy.deepcopy(model)
        way(changed, closing(model), text, forward)
        distance[name] = sum(float((changed(*each) - logits).detach().square().sum()) for each, logits in zip(text, dense, strict=True))
    assert min(distance, key=distance.__getitem__) == "repair"
    assert distance["mean"] < distance["zero"]


# ---------------------------------------------------------------- the cheap forms


def test_the_folded_mean_is_that_of_a_slow_loop(model, text):
    expected = {}
    for name, heads in SOME.items():
        z, _ = laid_out(model, name, text)
        out = module_at(model, name).out_proj
        weight, bias = out.weight.detach().numpy().copy(), out.bias.detach().numpy().copy()
        for head in heads:
            for column in range(head * WIDTH, (head + 1) * WIDTH):
                bias += weight[:, column] * z[:, column].mean()
                weight[:, column] = 0.0
        expected[name] = weight, bias
    fold_mean(model, closing(model), text, forward)
    for name, (weight, bias) in expected.items():
        out = module_at(model, name).out_proj
        np.testing.assert_allclose(out.weight.detach().numpy(), weight, rtol=1e-9)
        np.testing.assert_allclose(out.bias.detach().numpy(), bias, rtol=1e-9)


def test_the_factors_are_those_of_a_slow_loop(model, text):
    dense, slow = model, copy.deepcopy(model)
    for name in ORDER[1:]:
        out, kept = module_at(slow, name).out_proj, [h for h in range(HEADS) if h not in SOME.get(name, [])]
        z, _ = laid_out(slow, name, text)
        _, y = laid_out(dense, name, text)
        weight, bias = out.weight.detach().numpy(), out.bias.detach().numpy()
        columns = [slice(h * WIDTH, (h + 1) * WIDTH) for h in kept]
        with torch.no_grad():
            new = torch.zeros_like(out.weight)
            if kept:
                contributions = np.stack([(z[:, c] @ weight[:, c].T).ravel() for c in columns], axis=1)  # (N * D, heads)
                factors = np.linalg.lstsq(contributions, (y - bias).ravel(), rcond=None)[0]
                for c, factor in zip(columns, factors, strict=True):
                    new[:, c] = out.weight[:, c] * factor
            out.weight.copy_(new)
    rescale(model, closing(model), text, forward)
    equal_weights(model, slow)


# ---------------------------------------------------------------- how it walks


class Counted:
    """A text that counts how often it is read, and holds nothing of a batch that was read."""

    def __init__(self, batches):
        self.batches, self.read = batches, 0

    def __iter__(self):
        self.read += 1
        return iter(self.batches)


def test_every_layer_runs_about_once_for_each_batch(model, text):
    calls = dict.fromkeys(["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"], 0)
    for path in calls:
        inner = model.get_submodule(path).feed_forward
        inner.register_forward_hook(lambda *_, path=path: calls.__setitem__(path, calls[path] + 1))
    counted = Counted(text)
    repair(model, closing(model), counted, forward)
    # for each batch in the model and in its dense copy; one pass more finds out the order, and the last layer never ends
    once = 2 * len(text) + 1
    assert calls == {"encoder.layers.0": once, "encoder.layers.1": once, "decoder.layers.0": once, "decoder.layers.1": 0}
    assert counted.read == 1 + len(ORDER[1:])


def test_statistics_of_a_walk_are_those_of_whole_passes_and_it_leaves_nothing(model, text):
    expected = {name: [laid_out(model, name, [each]) for each in text] for name in ORDER}
    state = {name: dict(vars(module)) for name, module in model.named_modules()}
    with SiteWalk(model, forward, fixed=True) as walk:
        assert [site.name for site in walk.order(text[0])] == ORDER
        for site in walk.order(text[0]):
            for number, batch in enumerate(text):
                z, y = walk.see(site, number, batch)
                for ours, theirs in zip((z, y), expected[site.name][number], strict=True):
                    np.testing.assert_allclose(ours.flatten(0, 1).numpy(), theirs, rtol=1e-9)
            walk.leave(site)
        folder = walk.folder
        assert len(list(folder.iterdir())) < len(text) * 5  # layers that are behind leave one state a stack
    assert not folder.exists()
    assert {name: vars(module).keys() for name, module in model.named_modules()} == {name: each.keys() for name, each in state.items()}


def test_the_matrices_alone_are_kept(make_model, text, monkeypatch):
    """However often the text is repeated, tensors that live at a site's end have the size of the site."""
    seen = []
    monkeypatch.setattr("gates.gram.torch.linalg.eigh", lambda xx, eigh=torch.linalg.eigh: seen.append(living()) or eigh(xx))
    for repeats in (1, 5):
        model = make_model()
        repair(model, closing(model), text * repeats, forward, ridge=1e-3)
    half = len(seen) // 2
    assert seen[:half] == seen[half:]


def living() -> int:
    """Numbers in the living tensors that are no parameters."""
    import gc

    gc.collect()
    tensors = {id(each): each.numel() for each in gc.get_objects() if type(each) is torch.Tensor}
    return sum(tensors.values())


@pytest.mark.parametrize("name", ["Marian", "T5", "GPT-2", "Llama", "BERT", "FSMT", "Whisper"])
def test_other_libraries_models_are_repaired(name):
    family = BY_NAME[name]
    model = family.model().double()
    batches = [{key: tensor.double() if tensor.is_floating_point() else tensor for key, tensor in family.batch(b).items()} for b in (7, 5)]
    # whole groups of heads that share a key head, so that they can go
    closed = HeadMap({site: torch.tensor([h // 2 == site.layer for h in range(site.heads)]) for site in find_sites(model)})
    dense = [family.output(model, each) for each in batches]
    zeroed = copy.deepcopy(model)
    zero_heads(zeroed, closed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repair(model, closed, batches, lambda model, batch: model(**batch))
    repaired = [family.output(model, each) for each in batches]
    far, near = (
        sum(float((ours - theirs).detach().square().sum()) for ours, theirs in zip(each, dense, strict=True))
        for each in ([family.output(zeroed, each) for each in batches], repaired)
    )
    assert near < far
    if family.removable:
        remove(model, closed)
        torch.testing.assert_close(family.output(model, batches[0]), repaired[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["Marian", "GPT-2", "FSMT"])
def test_the_refit_of_their_first_site_is_numpys(name):
    family = BY_NAME[name]
    model, batch = family.model().double(), family.batch(11)
    site_name, path = next(iter(family.outs.items()))
    site = next(site for site in find_sites(model) if site.name == site_name)
    closed = HeadMap({site: torch.tensor([True, False, False])})
    out, seen = model.get_submodule(path), []
    handle = out.register_forward_hook(lambda _, x, y: seen.append((x[0].flatten(0, 1), y.flatten(0, 1))))
    with torch.no_grad():
        model(**batch)
    handle.remove()
    z, y = (each.numpy() for each in seen[0])
    width = z.shape[1] // 3
    expected = np.linalg.lstsq(np.concatenate([z[:, width:], np.ones((len(z), 1))], axis=1), y, rcond=None)[0]
    repair(model, closed, [batch], lambda model, batch: model(**batch), ridge=0.0)
    weight = out.weight.detach().numpy() if family.turned else out.weight.detach().numpy().T
    np.testing.assert_allclose(weight[width:], expected[:-1], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(out.bias.detach().numpy(), expected[-1], rtol=1e-6, atol=1e-9)
    assert not weight[:width].any()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("way", [repair, rescale, fold_mean])
def test_an_empty_text_is_refused_and_nothing_changes(model, way):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="no positions; give at least one sentence"):
        way(model, closing(model), [], forward)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_fewer_positions_than_columns_are_warned_of_and_the_ridge_rises(model, text):
    with pytest.warns(UserWarning, match=r"decoder.1.cross: 3 positions of calibration text for 15 columns"):
        (done,) = repair(model, closing(model, {"decoder.1.cross": [0]}), [(text[3][0][:1], text[3][1][:1])], forward)
    assert done.ridge == 0.1


@pytest.mark.parametrize(
    ("closed", "error"),
    [
        (HeadMap({HeadSite.at("enc-self", 0, 3): [1.0, 0.0, 0.0]}), "closed must hold bools"),
        (HeadMap({HeadSite.at("enc-self", 5, 3): torch.tensor([True, False, False])}), "no attention encoder.5.enc-self; did you mean"),
        (HeadMap({HeadSite.at("enc-self", 0, 5): torch.ones(5, dtype=torch.bool)}), "closed has 5 heads for encoder.0.enc-self"),
        ({}, "expected a HeadMap, got dict"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(model, text, closed, error):
    with pytest.raises(ValueError, match=error):
        repair(model, closed, text, forward)


def test_gates_on_the_model_are_refused(model, text):
    closed = closing(model)
    attach(model, gate="mask")
    with pytest.raises(ValueError, match="the model has gates"):
        repair(model, closed, text, forward)


def test_a_negative_ridge_is_refused(model, text):
    with pytest.raises(ValueError, match="expected a ridge of at least 0, got -1"):
        repair(model, closing(model), text, forward, ridge=-1)


def test_an_attention_that_does_not_call_its_projection_is_refused():
    family = BY_NAME["torch.nn.Transformer"]
    model = family.model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match=r"calls the output projection of encoder\.0\.enc-self 0 times; expected once"):
        repair(model, closed, [family.batch(2)], lambda model, batch: model(**batch))


def test_a_mean_without_a_bias_to_take_it_is_refused():
    family = BY_NAME["T5"]
    model = family.model()
    closed = HeadMap({site: torch.arange(site.heads) == 0 for site in find_sites(model)})
    with pytest.raises(ValueError, match="has no bias to take in the mean"):
        fold_mean(model, closed, [family.batch(2)], lambda model, batch: model(**batch))


def test_a_mask_of_other_positions_is_refused(model, text):
    with pytest.raises(ValueError, match=r"positions gave a mask of shape \(2, 2\)"):
        repair(model, closing(model), text, forward, positions=lambda *_: torch.ones(2, 2, dtype=torch.bool))
