"""Neurons of the feed-forward layers of other libraries: closed by a gate, by zeroed columns and by removal
alike, saved and loaded."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from headgates.gates import HeadMap, attach, detach, find_sites, load_pruned, remove, save_pruned
from headgates.gates.rules import rule_of
from tests.gates.family_checks import GENERATION, close
from tests.worlds.families import BY_NAME, LAYERS, T5, D, Family, hugging_face, pairs
from tests.worlds.families import GENERATION as TASK

NEURONS = 17
GATED_T5 = hugging_face(
    "T5, gated", "T5", TASK, pairs, *T5, d_kv=5, decoder_start_token_id=0, feed_forward_proj="gated-gelu"
)
# a family of each rule -> the last layers of its feed-forward layers, in the encoder and in the decoder
LAST = {
    **dict.fromkeys(["BART", "FSMT"], ("model.encoder.layers.{}.fc2", "model.decoder.layers.{}.fc2")),
    **dict.fromkeys(
        ["T5", "T5, gated"],
        ("encoder.block.{}.layer.1.DenseReluDense.wo", "decoder.block.{}.layer.2.DenseReluDense.wo"),
    ),
    "BERT": ("bert.encoder.layer.{}.output.dense", ""),
    "DistilBERT": ("distilbert.transformer.layer.{}.ffn.lin2", ""),
    "GPT-2": ("", "transformer.h.{}.mlp.c_proj"),
    "Llama": ("", "model.layers.{}.mlp.down_proj"),
}


def last_layers(model: nn.Module, name: str) -> dict[str, nn.Module]:
    """Site name -> the last layer."""
    paths = dict(zip((("encoder", "enc"), ("decoder", "dec")), LAST[name], strict=True))
    return {
        f"{stack}.{i}.{short}-ffn": model.get_submodule(path.format(i))
        for (stack, short), path in paths.items()
        if path
        for i in range(LAYERS)
    }


def some_closed(model: nn.Module) -> HeadMap:
    """A third of the neurons, others in each layer, and all of the last site."""
    sites = list(find_sites(model, "ffn"))
    rows = {site: torch.arange(site.heads) % 3 == n % 3 for n, site in enumerate(sites)}
    return HeadMap({**rows, sites[-1]: [True] * sites[-1].heads})


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", LAST)
@torch.no_grad()
def test_a_gate_at_0_zeroed_columns_removal_and_the_saved_model_give_the_same(name, tmp_path):
    family: Family = {**BY_NAME, GATED_T5.name: GATED_T5}[name]
    model, batch = family.model(), family.batch(2)
    lasts, before = last_layers(model, name), family.output(model, batch)
    neurons = 4 * D if name == "GPT-2" else NEURONS
    assert {site.name: site.heads for site in find_sites(model, "ffn")} == dict.fromkeys(lasts, neurons)
    closed = some_closed(model)
    zeroed = copy.deepcopy(model)
    for site, layer in last_layers(zeroed, name).items():
        columns = layer.weight if name == "GPT-2" else layer.weight.T  # (neurons, D)
        columns[closed[site]] = 0
    expected = family.output(zeroed, batch)
    assert (expected - before).abs().max() > 1e-3
    bank = attach(model, gate="mask", kinds="ffn")
    bank.assign(closed.map(lambda row: (~row).double()))
    close(family.output(model, batch), expected)
    both = {site: torch.stack([torch.ones(site.heads), 1.0 - row.float()]) for site, row in closed.items()}
    bank.assign(both)  # the first sentence whole, the second without
    found = family.output(model, batch)
    close(found[0], before[0])
    close(found[1], expected[1])
    detach(model)
    close(family.output(model, batch), before)
    zero_heads = rule_of(next(iter(find_sites(model, "ffn").values()))).zero_heads
    # GPT-2's cannot run without any neuron: one stays that adds nothing
    with contextlib.nullcontext() if zero_heads else pytest.warns(UserWarning, match="a head stays at decod"):
        removed = remove(model, closed)
    left = [max(int((~row).sum()), int(not zero_heads)) for row in closed.values()]
    close(family.output(model, batch), expected)
    assert removed.parameters == size(zeroed) - size(model) >= (neurons * len(left) - sum(left)) * 2 * D
    save_pruned(model, tmp_path / "pruned")
    loaded = load_pruned(tmp_path / "pruned")
    close(family.output(loaded, batch), expected)
    assert [site.heads for site in find_sites(loaded, "ffn")] == left
    if family.generates:
        inputs = {key: value for key, value in batch.items() if not key.startswith("decoder")}
        assert torch.equal(loaded.generate(**inputs, **GENERATION), zeroed.generate(**inputs, **GENERATION))


def test_gates_by_sentence_reach_an_expert_that_is_given_all_words_in_a_row():
    model, ids = BY_NAME["Qwen3-Next"].model(), torch.tensor([[3, 4, 5], [6, 7, 8]])
    bank = attach(model, gate="mask", kinds="ffn")
    assert len(bank.sites) == LAYERS
    masks = {
        site: torch.stack([torch.ones(site.heads), torch.arange(site.heads) % 2.0]) for site in bank.sites
    }
    bank.assign(masks)
    both = model(ids).logits
    for row in range(2):
        bank.assign({site: each[row] for site, each in masks.items()})
        torch.testing.assert_close(
            model(ids[row : row + 1]).logits, both[row : row + 1], rtol=1e-4, atol=1e-5
        )
