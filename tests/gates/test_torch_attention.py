"""torch's own attention, nn.MultiheadAttention, which reads the weight of W_O in fused kernels: it is found
and gated."""

import copy
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import HeadMap, HeadSite, attach, detach, find_sites


@pytest.fixture
def torch_model() -> nn.Transformer:
    torch.manual_seed(0)
    return nn.Transformer(
        18, 6, 2, 3, 13, dropout=0.0, batch_first=True
    ).eval()  # its fused kernel needs an even number of heads


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 11, 18, generator=generator), torch.randn(3, 5, 18, generator=generator)


def test_the_attentions_of_torch_s_transformer_are_found_by_their_kind(torch_model):
    sites = find_sites(torch_model)
    assert {kind: sum(site.kind == kind for site in sites) for kind in ("enc-self", "dec-self", "cross")} == {
        "enc-self": 2,
        "dec-self": 3,
        "cross": 3,
    }
    assert sites[HeadSite.at("cross", 2, 6)] is torch_model.decoder.layers[2].multihead_attn


@pytest.mark.parametrize("fast", [False, True], ids=["with gradient", "fused kernels of evaluation"])
def test_gates_on_torch_s_attention_zero_the_columns_of_W_O(torch_model, pair, fast, monkeypatch):
    fused = Mock(wraps=torch._transformer_encoder_layer_fwd)
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", fused)
    xi = HeadMap({site: (torch.arange(6) + i) % 5 > 1 for i, site in enumerate(find_sites(torch_model))})
    zeroed = copy.deepcopy(torch_model)
    for site, module in find_sites(zeroed).items():
        module.out_proj.weight.data *= xi[site].float().repeat_interleave(3)
    with torch.set_grad_enabled(not fast):
        expected, plain = zeroed(*pair), torch_model(*pair)
        attach(torch_model, gate="mask", xi=xi)
        torch.testing.assert_close(torch_model(*pair), expected)
        detach(torch_model)
        assert torch.equal(torch_model(*pair), plain)
    assert fused.call_count == (4 * 2 if fast else 0)  # of every pass and encoder layer
