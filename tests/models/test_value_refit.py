"""Repair of W_V and W_O towards the residual stream: what the heads take in is laid out by whole passes, and
the rest is value_fit's."""

from functools import partial

import numpy as np
import pytest
import torch

from headgates.gates import find_sites
from headgates.gates.gram import Gram
from headgates.gates.value_fit import value_fit
from headgates.models.sublayers import sublayers
from tests.worlds.slow_reconstruct import (
    HEADS,
    SOME,
    closing,
    equal_weights,
    module_at,
    slowly_streamed,
    small_text,
    streamed,
    sublayers_by_hand,
)

NORMS = {"pre": {}, "post": {"norm": "post"}}


@torch.no_grad()
def taken_in(model, name: str, batches) -> np.ndarray:
    """(N, H, I): the inputs of W_V by the weights that the model itself tells of."""
    rows = []
    for batch in batches:
        inputs, weights = [], {}
        handle = module_at(model, name).v_proj.register_forward_hook(
            lambda _, given, __, inputs=inputs: inputs.append(given[0])
        )
        model(*batch, weights)
        handle.remove()
        rows.append(torch.einsum("bhls,bsi->blhi", weights[name], inputs[0]).flatten(0, 1))
    return torch.cat(rows).numpy()


@torch.no_grad()
def refit_values(batches, ridge: float, model, name: str, stays: list[int], y: np.ndarray) -> None:
    attention = module_at(model, name)
    out = attention.out_proj
    x = taken_in(model, name, batches)[:, stays].reshape(len(y), -1)
    gram = Gram.zeros(x.shape[1] + 1, y.shape[1])
    gram.add(torch.tensor(np.concatenate([x, np.ones((len(x), 1))], 1)), torch.tensor(y))
    V, b = (each.unflatten(0, (HEADS, -1)) for each in (attention.v_proj.weight, attention.v_proj.bias))
    O = out.weight.unflatten(1, (HEADS, -1)).transpose(0, 1)
    constant = sum(O[h] @ b[h] for h in stays)
    new = value_fit(gram, V[stays], O[stays], out.bias + constant, ridge)
    out.weight.zero_()
    V[stays], O[stays] = new[:2]
    out.bias.copy_(new[2] - sum(O[h] @ b[h] for h in stays))


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_what_is_refitted_at_every_sublayer_in_forward_order(make_model, settings):
    model, text = make_model(**settings).double(), small_text()
    expected = slowly_streamed(model, SOME, text, 0.1, values=partial(refit_values, text, 0.1))
    done = streamed(model, closing(model), text, ridge=0.1, values=True)
    equal_weights(model, expected, 1e-6)
    assert [each.site.name for each in done] == list(sublayers_by_hand(model))[2:]


def test_every_site_of_a_model_has_a_mixer(make_model):
    model = make_model()
    assert {each.site for each in sublayers(model) if each.mixer is not None} == set(find_sites(model))
