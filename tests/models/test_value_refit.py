"""Repair of W_V and W_O towards the residual stream: what the heads take in is laid out by whole passes, and
the rest is value_fit's."""

import copy

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
    refit,
    small_text,
    streamed,
    streams,
    sublayers_by_hand,
)

NORMS = {"pre": {}, "post": {"norm": "post"}}


def refitted(model, closed, text, **options):
    return streamed(model, closed, text, values=True, **options)


@torch.no_grad()
def taken_in(model, name: str, batches, where=None) -> np.ndarray:
    """(N, H * I): the inputs of W_V by the weights that the model itself tells of."""
    rows = []
    for batch in batches:
        inputs, weights = [], {}
        handle = module_at(model, name).v_proj.register_forward_hook(
            lambda _, given, __, inputs=inputs: inputs.append(given[0])
        )
        model(*batch, weights)
        handle.remove()
        mixed = torch.einsum("bhls,bsi->blhi", weights[name], inputs[0]).flatten(2)
        rows.append(
            mixed[torch.ones(mixed.shape[:2], dtype=torch.bool) if where is None else where(name, batch)]
        )
    return torch.cat(rows).numpy()


def slowly_refitted(model, heads: dict[str, list[int]], batches, ridge: float, where=None):
    dense, model = model, copy.deepcopy(model)
    outs = sublayers_by_hand(model)
    first = next(i for i, name in enumerate(outs) if heads.get(name))
    for name in list(outs)[first:]:
        z, before, _ = streams(model, batches, name, where)
        y = streams(dense, batches, name, where)[2] - before
        stays = [h for h in range(HEADS) if h not in heads.get(name, [])]
        if name.endswith("ffn") or not stays:
            refit(outs[name], np.full(z.shape[1], name.endswith("ffn")), z, y, ridge)
            continue
        attention = module_at(model, name)
        x = taken_in(model, name, batches, where).reshape(len(y), HEADS, -1)[:, stays].reshape(len(y), -1)
        gram = Gram.zeros(x.shape[1] + 1, y.shape[1])
        gram.add(torch.tensor(np.concatenate([x, np.ones((len(x), 1))], 1)), torch.tensor(y))
        with torch.no_grad():
            V, b = (
                attention.v_proj.weight.unflatten(0, (HEADS, -1)),
                attention.v_proj.bias.unflatten(0, (HEADS, -1)),
            )
            O = outs[name].weight.unflatten(1, (HEADS, -1)).transpose(0, 1)
            constant = sum(O[h] @ b[h] for h in stays)
            new = value_fit(gram, V[stays], O[stays], outs[name].bias + constant, ridge)
            outs[name].weight.zero_()
            for place, h in enumerate(stays):
                V[h], O[h] = new[0][place], new[1][place]
            outs[name].bias.copy_(new[2] - sum(O[h] @ b[h] for h in stays))
    return model


@pytest.mark.parametrize("settings", NORMS.values(), ids=NORMS)
def test_what_is_refitted_at_every_sublayer_in_forward_order(make_model, settings):
    model, text = make_model(**settings).double(), small_text()
    expected = slowly_refitted(model, SOME, text, 0.1)
    done = refitted(model, closing(model), text, ridge=0.1)
    equal_weights(model, expected, 1e-6)
    assert [each.site.name for each in done] == list(sublayers_by_hand(model))[2:]


def test_every_site_of_a_model_has_a_mixer(make_model):
    model = make_model()
    assert {each.site for each in sublayers(model) if each.mixer is not None} == set(find_sites(model))
