"""Removal and repair of models of any tiny shape, with any heads closed: removed is masked, and a refit is
numpy's least squares."""

import copy

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.configs.schema import ModelConfig
from headgates.gates import HeadMap, attach, detach, find_sites, heads_left, remove, repair, zero_heads
from headgates.models.transformer import Transformer
from tests.worlds.small_model import stirred

few = settings(max_examples=8, deadline=None, derandomize=True, database=None)
VOCAB = 11


@st.composite
def models(draw, fewest_heads=1):
    """An encoder-decoder with random weights, one or two layers on each side."""
    own, width = draw(st.integers(fewest_heads, 4)), draw(st.integers(1, 5))
    config = ModelConfig(
        d_model=2 * own * width,
        heads=own,
        decoder_heads=draw(st.sampled_from([0, 2 * own])),
        ffn=draw(st.integers(1, 7)),
        encoder_layers=draw(st.integers(1, 2)),
        decoder_layers=draw(st.integers(1, 2)),
        norm=draw(st.sampled_from(["pre", "post"])),
        embeddings=draw(st.sampled_from(["tied", "separate"])),
        dropout=0.0,
    )
    torch.manual_seed(draw(st.integers(0, 99)))
    return stirred(Transformer(config, source_vocab=VOCAB, target_vocab=VOCAB), 0.3).double()


def batch(seed: int, sentences: int, source: int, target: int):
    """Sources and target inputs without padding."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randint(4, VOCAB, (sentences, length), generator=generator) for length in (source, target)
    )


BATCHES = st.builds(batch, st.integers(0, 99), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))


def some_heads(data, model) -> HeadMap:
    rows = {
        site: data.draw(st.lists(st.booleans(), min_size=site.heads, max_size=site.heads))
        for site in find_sites(model)
    }
    return HeadMap({site: torch.tensor(row, dtype=torch.bool) for site, row in rows.items()})


def forward(model, pair):
    return model(*pair)


@few
@given(models(), BATCHES, st.data())
def test_a_removed_head_is_a_masked_one_in_a_model_of_any_shape(model, pair, data):
    closed = some_heads(data, model)
    attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
    masked = model(*pair)
    detach(model)
    zeroed = copy.deepcopy(model)
    zero_heads(zeroed, closed)
    before = sum(parameter.numel() for parameter in model.parameters())
    removed = remove(model, closed)
    torch.testing.assert_close(model(*pair), masked, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(zeroed(*pair), masked, rtol=1e-9, atol=1e-9)
    assert before - sum(parameter.numel() for parameter in model.parameters()) == removed.parameters
    assert heads_left(model) == ~closed
    assert [site.heads for site in find_sites(model)] == [int((~row).sum()) for row in closed.values()]


@few
@given(models(), BATCHES)
def test_with_nothing_closed_removal_and_repair_change_nothing(model, pair):
    before, none = (
        copy.deepcopy(model.state_dict()),
        HeadMap({site: torch.zeros(site.heads, dtype=torch.bool) for site in find_sites(model)}),
    )
    assert repair(model, none, [pair], forward) == []
    assert remove(model, none).parameters == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def inputs_and_outputs(model, module, text) -> tuple[np.ndarray, np.ndarray]:
    """All inputs and outputs of an attention's W_O, a row a position."""
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []
    handle = module.out_proj.register_forward_hook(lambda _, inputs, output: rows.append((inputs[0], output)))
    with torch.no_grad():
        for pair in text:
            model(*pair)
    handle.remove()
    return tuple(torch.cat([row[i].flatten(0, -2) for row in rows]).numpy() for i in range(2))  # type: ignore[return-value]


@few
@given(models(fewest_heads=2), st.integers(0, 99), st.data())
def test_the_refit_of_the_first_site_is_numpys_least_squares_at_any_size(model, seed, data):
    site, module = next(iter(find_sites(model).items()))
    shut = data.draw(st.sets(st.integers(0, site.heads - 1), min_size=1))
    closed = HeadMap({site: torch.tensor([head in shut for head in range(site.heads)])})
    text = [batch(seed, 23, 7, 3), batch(seed + 1, 19, 5, 2)]
    x, y = inputs_and_outputs(model, module, text)
    kept = np.repeat([head not in shut for head in range(site.heads)], x.shape[1] // site.heads)
    ones = np.concatenate([x[:, kept], np.ones((len(x), 1))], 1)
    expected = ones @ np.linalg.lstsq(ones, y, rcond=None)[0]
    first, *_ = repair(model, closed, text, forward, ridge=0.0)
    out = module.out_proj
    ours = x @ out.weight.detach().numpy().T + out.bias.detach().numpy()
    np.testing.assert_allclose(
        ours, expected, rtol=1e-5, atol=1e-6
    )  # the outputs: the solution itself need not be the only one
    assert not out.weight[:, torch.tensor(~kept)].any()
    assert (first.site, first.positions) == (site, len(x))
    unexplained = np.square(y - expected).sum() / np.square(y).sum()
    np.testing.assert_allclose(first.error, unexplained, rtol=1e-4, atol=1e-9)


@few
@given(models(fewest_heads=2), st.integers(0, 99), st.data())
def test_a_head_that_is_anothers_copy_is_not_missed_after_repair(model, seed, data):
    site, module = data.draw(st.sampled_from(list(find_sites(model).items())))
    one, copied = data.draw(st.permutations(range(site.heads)))[:2]
    width = module.q_proj.out_features // site.heads
    with torch.no_grad():
        for projection in (module.q_proj, module.k_proj, module.v_proj):
            for parameter in (projection.weight, projection.bias):
                parameter[copied * width : (copied + 1) * width] = parameter[one * width : (one + 1) * width]
    closed = HeadMap({site: torch.tensor([head == copied for head in range(site.heads)])})
    text = [batch(seed, 23, 7, 5), batch(seed + 1, 29, 5, 7)]
    expected = [model(*pair) for pair in text]
    first, *_ = repair(model, closed, text, forward, ridge=0.0)
    assert first.error < 1e-8
    for pair, logits in zip(text, expected, strict=True):
        torch.testing.assert_close(model(*pair), logits, rtol=1e-4, atol=1e-4)
