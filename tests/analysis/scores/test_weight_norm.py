"""The norm of what a head writes, against heads made by hand and one product a head."""

import pytest
import torch

from headgates.analysis.batches import sites_of
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.gates import attach, find_sites
from tests.worlds.families import BY_NAME
from tests.worlds.one_by_one import random_model


def test_it_is_the_norm_of_output_times_value_weights_alone_head_by_head():
    model = random_model()
    attach(model, gate="mask", kinds=["cross"])  # neither gates nor biases count
    norms = weight_norm(model)
    assert list(norms) == list(sites_of(model, None))
    for site, attention in sites_of(model, None).items():
        for head in range(site.heads):
            rows = slice(head * 5, (head + 1) * 5)
            product = attention.out_proj.weight[:, rows] @ attention.v_proj.weight[rows]
            assert float(norms[site][head]) == pytest.approx(product.norm().item(), rel=1e-5)
    layer = model.decoder.layers[0].feed_forward  # a neuron: a column of one weight, a row of the other
    by_hand = layer.outer.weight.norm(dim=0) * layer.inner.weight.norm(dim=1)
    torch.testing.assert_close(weight_norm(model, kinds="ffn")["decoder.0.dec-ffn"].float(), by_hand)


# family -> its attention's W_V (heads * K, D) and W_O (heads * K, D)
WEIGHTS = {
    "GPT-2": lambda each: (each.c_attn.weight[:, -each.c_proj.weight.shape[0] :].T, each.c_proj.weight),
    "Llama": lambda each: (each.v_proj.weight, each.o_proj.weight.T),  # two heads share one of values
    "DeepSeek V3": lambda each: (  # a head's 6 rows of k come before those of v
        each.kv_b_proj.weight.unflatten(0, (-1, 6 + 4))[:, 6:].flatten(0, 1),
        each.o_proj.weight.T,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_heads_of_other_libraries_are_measured_by_the_rule_of_their_attention(name):
    model = BY_NAME[name].model()
    norms = weight_norm(model)
    for site, attention in find_sites(model).items():
        values, outputs = WEIGHTS[name](attention)
        values, outputs = (each.split(len(outputs) // site.heads) for each in (values, outputs))
        for head, ours in enumerate(norms[site].tolist()):
            product = outputs[head].T @ values[head * len(values) // site.heads]
            assert ours == pytest.approx(product.norm().item(), rel=1e-5)
