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
    assert weight_norm(model, kinds=["cross"]) == norms.select(["cross"])
    layer = model.decoder.layers[0].feed_forward  # a neuron: a column of one weight, a row of the other
    by_hand = layer.outer.weight.norm(dim=0) * layer.inner.weight.norm(dim=1)
    torch.testing.assert_close(weight_norm(model, kinds="ffn")["decoder.0.dec-ffn"].float(), by_hand)
    with pytest.raises(ValueError, match="unknown kind of attention 'cros'; did you mean 'cross'"):
        weight_norm(model, kinds=["cros"])


# family -> the site's attention -> (W_V (D, heads * K), heads that share a value head, W_O (heads * K, D))
WEIGHTS = {
    "T5": lambda attention: (attention.v.weight.T, 1, attention.o.weight.T),
    "GPT-2": lambda attention: (
        attention.c_attn.weight[:, -attention.c_proj.weight.shape[0] :],
        1,
        attention.c_proj.weight,
    ),
    "Llama": lambda attention: (
        attention.v_proj.weight.T,
        attention.num_key_value_groups,
        attention.o_proj.weight.T,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_heads_of_other_libraries_are_measured_by_the_rule_of_their_attention(name):
    """x goes through the values and the output of one head at a time; the norm of the map is that of its
    images of the unit vectors."""
    model = BY_NAME[name].model()
    norms = weight_norm(model)
    for site, attention in find_sites(model).items():
        values, shared, outputs = WEIGHTS[name](attention)
        width = len(outputs) // site.heads
        for head in range(site.heads):
            z = torch.eye(len(values)) @ values[:, head // shared * width : (head // shared + 1) * width]
            y = z @ outputs[head * width : (head + 1) * width]
            assert float(norms[site][head]) == pytest.approx(y.norm().item(), rel=1e-5)


def test_an_attention_without_projections_of_its_own_is_refused():
    layer = torch.nn.TransformerEncoderLayer(12, 3, 7)
    with pytest.raises(ValueError, match="MultiheadAttention has no 'v_proj', which its SiteRule names"):
        weight_norm(torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
