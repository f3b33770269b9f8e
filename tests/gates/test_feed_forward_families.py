"""Neurons of the feed-forward layers of other libraries: closed by a gate, by zeroed columns and by removal
alike, saved and loaded."""

import copy

import pytest
import torch
from torch import nn

from headgates.gates import HeadMap, attach, detach, find_sites, load_pruned, remove, save_pruned
from headgates.gates.rules import rule_of
from tests.gates.family_checks import GENERATION, close
from tests.worlds.families import BY_NAME, LAYERS, D, Family

NEURONS = 17
# a family of each rule -> the last layers of its feed-forward layers, in the encoder and in the decoder
LAST = {
    **dict.fromkeys(
        ["BART", "FSMT"],
        ("model.encoder.layers.{}.fc2", "model.decoder.layers.{}.fc2"),
    ),
    "T5": ("encoder.block.{}.layer.1.DenseReluDense.wo", "decoder.block.{}.layer.2.DenseReluDense.wo"),
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
    """A third of the neurons, others in each layer, and all of the last site where its class can run so."""
    sites = list(find_sites(model, "ffn"))
    rows = {site: torch.arange(site.heads) % 3 == n % 3 for n, site in enumerate(sites)}
    if rule_of(find_sites(model, "ffn")[sites[-1]]).zero_heads:
        rows[sites[-1]] = torch.ones(sites[-1].heads, dtype=torch.bool)
    return HeadMap(rows)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", LAST)
@torch.no_grad()
def test_a_gate_at_0_zeroed_columns_removal_and_the_saved_model_give_the_same(name, tmp_path):
    family: Family = BY_NAME[name]
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
    removed = remove(model, closed)
    close(family.output(model, batch), expected)
    assert removed.parameters == size(zeroed) - size(model) >= closed.count() * 2 * D
    save_pruned(model, tmp_path / "pruned")
    loaded = load_pruned(tmp_path / "pruned")
    close(family.output(loaded, batch), expected)
    assert [site.heads for site in find_sites(loaded, "ffn")] == [int((~r).sum()) for r in closed.values()]
    if family.generates:
        inputs = {key: value for key, value in batch.items() if not key.startswith("decoder")}
        assert torch.equal(loaded.generate(**inputs, **GENERATION), zeroed.generate(**inputs, **GENERATION))


def test_gated_layers_of_t5_lose_the_rows_of_both_weights():
    import transformers

    config = transformers.T5Config(
        vocab_size=31, d_model=12, d_kv=4, num_heads=3, d_ff=17, num_layers=2, feed_forward_proj="gated-gelu"
    )
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    batch = {"input_ids": torch.arange(2, 12).view(2, 5), "decoder_input_ids": torch.arange(2, 8).view(2, 3)}
    closed = some_closed(model)
    bank = attach(model, gate="mask", kinds="ffn")
    bank.assign(closed.map(lambda row: (~row).double()))
    expected = model(**batch).logits
    remove(model, bank)
    close(model(**batch).logits, expected)
    block = model.encoder.block[0].layer[1].DenseReluDense
    left = int((~closed["encoder.0.enc-ffn"]).sum())
    assert [len(block.wi_0.weight), len(block.wi_1.weight), block.wo.weight.shape[1]] == [left] * 3


def test_where_a_class_cannot_run_without_any_neuron_one_stays_that_adds_nothing():
    family: Family = BY_NAME["GPT-2"]
    model, batch = family.model(), family.batch(2)
    closed = HeadMap({site: [True] * site.heads for site in find_sites(model, "ffn")})
    attach(model, gate="mask", kinds="ffn").assign(closed.map(lambda row: (~row).double()))
    expected = family.output(model, batch)
    with pytest.warns(UserWarning, match=r"a head stays at decoder\.0\.dec-ffn \(GPT2MLP\)"):
        remove(model, closed)
    close(family.output(model, batch), expected)
    assert [site.heads for site in find_sites(model, "ffn")] == [1, 1]
