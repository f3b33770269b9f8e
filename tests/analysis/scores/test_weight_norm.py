"""The norm of what a head writes, against heads made by hand and one product a head."""

import pytest
import torch

from headgates.analysis.scores.weight_norm import weight_norm
from headgates.configs.schema import ModelConfig
from headgates.gates import HeadMap, attach, find_sites
from headgates.models.transformer import Transformer
from tests.gates.families import BY_NAME

HEADS, WIDTH = 3, 7


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=HEADS * WIDTH, ffn=11, heads=HEADS, encoder_layers=2, decoder_layers=1, positions="learned"
    )
    return Transformer(config, 13, 13)


def test_it_is_the_frobenius_norm_of_output_times_value_weights_head_by_head(model):
    norms = weight_norm(model)
    assert list(norms) == list(find_sites(model))
    for site, attention in find_sites(model).items():
        for head in range(HEADS):
            rows = slice(head * WIDTH, (head + 1) * WIDTH)
            product = attention.out_proj.weight[:, rows] @ attention.v_proj.weight[rows]
            torch.testing.assert_close(
                norms[site][head], torch.linalg.matrix_norm(product).double(), rtol=1e-5, atol=0
            )


def test_a_head_that_writes_nothing_has_norm_zero_and_one_twice_as_loud_twice_the_norm(model):
    before = weight_norm(model)
    site, attention = next(iter(find_sites(model).items()))
    with torch.no_grad():
        attention.out_proj.weight[:, :WIDTH] = 0
        attention.v_proj.weight[WIDTH : 2 * WIDTH] *= 2
    after = weight_norm(model)
    assert after[site][0] == 0
    torch.testing.assert_close(after[site][1], 2 * before[site][1])
    assert after[site][2] == before[site][2]


def test_biases_and_gates_do_not_count(model):
    before = weight_norm(model)
    for attention in find_sites(model).values():
        torch.nn.init.normal_(attention.v_proj.bias)
        torch.nn.init.normal_(attention.out_proj.bias)
    attach(model, gate="mask", xi=torch.zeros(HEADS))
    assert weight_norm(model) == before


def test_only_the_kinds_asked_for_are_measured(model):
    cross = weight_norm(model, kinds=["cross"])
    assert isinstance(cross, HeadMap)
    assert {site.kind for site in cross} == {"cross"}
    assert cross == weight_norm(model).select(["cross"])
    with pytest.raises(ValueError, match="unknown kind of attention 'cros'; did you mean 'cross'"):
        weight_norm(model, kinds=["cros"])


# family -> the site's attention -> (W_V as (D, heads * K), heads that share a value head)
VALUES = {
    "BERT": lambda attention: (attention.self.value.weight.T, 1),
    "T5": lambda attention: (attention.v.weight.T, 1),
    "GPT-2": lambda attention: (attention.c_attn.weight[:, -attention.c_proj.weight.shape[0] :], 1),
    "Llama": lambda attention: (attention.v_proj.weight.T, attention.num_key_value_groups),
}
OUTPUTS = {
    "BERT": lambda attention: attention.output.dense.weight.T,
    "T5": lambda attention: attention.o.weight.T,
    "GPT-2": lambda attention: attention.c_proj.weight,
    "Llama": lambda attention: attention.o_proj.weight.T,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_heads_of_other_libraries_are_measured_by_the_rule_of_their_attention(name):
    """x goes through the values and the output of one head at a time; the norm of the map is that of its
    images of the unit vectors."""
    model = BY_NAME[name].model()
    norms = weight_norm(model)
    assert list(norms) == list(find_sites(model))
    for site, attention in find_sites(model).items():
        (values, shared), outputs = VALUES[name](attention), OUTPUTS[name](attention)
        width = len(outputs) // site.heads
        for head in range(site.heads):
            z = torch.eye(len(values)) @ values[:, head // shared * width : (head // shared + 1) * width]
            y = z @ outputs[head * width : (head + 1) * width]
            assert float(norms[site][head]) == pytest.approx(y.square().sum().sqrt().item(), rel=1e-5)


def test_an_attention_without_projections_of_its_own_is_refused():
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(12, 3, 7), 1, enable_nested_tensor=False
    )
    with pytest.raises(ValueError, match="MultiheadAttention has no 'v_proj', which its SiteRule names"):
        weight_norm(model)
