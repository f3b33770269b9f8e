"""Rules that no test covers are proved before they are used; layouts tell unknown classes."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import SITE_RULES, HeadMap, SiteRule, attach, detach, find_sites, heads_left, remove
from headgates.gates.proof import differ
from tests.gates.family_checks import close, gated, opened, readme_lines, uneven
from tests.worlds.families import BY_NAME, HEADS, D, causal, masked
from tests.worlds.plain_attention import ReadAttention


class MixingAttention(nn.Module):
    """q, k and v of one head after the other in one weight, and a width that its forward asks for."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.inner = HEADS, D
        self.mix, self.back = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.back(z.transpose(1, 2).reshape(*x.shape[:2], self.inner))


RULE = dict(heads="num_heads", mode="hook", q="mix", k="mix", v="mix", out="back")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.ModuleDict({"mix": MixingAttention()}) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer["mix"](x)
        return x


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"widths": ("inner",)}, "not close"),  # runs, with rows of other heads
        ({"fused": "heads"}, "invalid for input"),  # fails at the width
        ({"widths": ("inner",), "fused": "heads"}, ""),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_and_the_model_with_its_gates_is_as_it_was(
    rule, said, monkeypatch
):
    monkeypatch.setitem(SITE_RULES, "MixingAttention", SiteRule(**{**RULE, **rule}))
    model, x = Encoder().eval(), torch.randn(2, 5, D)
    xi = HeadMap({site: torch.tensor([1.0, 0.0, 1.0]) for site in find_sites(model)})
    bank = attach(model, gate="mask", xi=xi)
    expected = model(x)
    if not said:
        remove(model, bank)
        assert heads_left(model).count() == 4
    else:
        with pytest.raises(ValueError, match=f"rule of MixingAttention does not fit: .*{said}.*as it was"):
            remove(model, bank)
        assert model.head_gates is bank
        assert [site.heads for site in find_sites(model)] == [HEADS, HEADS]
    close(model(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wrong", [0.0, 0.07])
def test_outputs_of_wrong_heads_are_told_from_rounding_in_every_precision(dtype, wrong):
    torch.manual_seed(0)
    x = torch.randn(4, 12, 64)
    other = (x + wrong * torch.randn_like(x)).to(dtype)
    x = (x * (1 + torch.finfo(dtype).eps)).to(dtype)  # the last digit
    if wrong:
        with pytest.raises(AssertionError):
            differ([x], [other])
    else:
        differ([x], [other])


def test_a_rule_that_no_forward_pass_proves_is_refused_until_inputs_are_given(monkeypatch):
    monkeypatch.setitem(SITE_RULES, "MixingAttention", SiteRule(**RULE, widths=("inner",), fused="heads"))
    model, x = Encoder().eval(), torch.randn(2, 5, D)
    closed = HeadMap({site: torch.tensor([True, False, False]) for site in find_sites(model)})
    with pytest.raises(ValueError, match=r"the rule of MixingAttention is not proved.* as inputs=\(\(\), "):
        remove(model, closed)
    assert heads_left(model).count() == 6
    bank = attach(model, gate="mask", xi=opened(closed))
    expected = model(x)
    detach(model)
    for proof in ({"inputs": ((x,), {})}, {}):  # given, or seen by gates that are taken off
        one = copy.deepcopy(model)
        remove(one, closed if proof else bank, **proof)
        close(one(x), expected)


@pytest.mark.parametrize("name", ["Wav2Vec2", "Whisper", "Speech2Text", "ViT"])
def test_a_wrong_rule_of_a_model_of_sound_or_images_is_refused_though_no_gates_are_attached(
    name, monkeypatch
):
    family = BY_NAME[name]
    model, batch = family.model(), family.batch(2)
    cls = family.classes
    monkeypatch.setitem(SITE_RULES, cls, replace(SITE_RULES[cls], widths=("head_dim",)))
    expected = gated(family, model, batch, {site: torch.ones(family.heads) for site in family.outs})
    with pytest.raises(ValueError, match=f"the rule of {cls} does not fit: without the heads"):
        remove(model, uneven(model))
    assert torch.equal(family.output(model, batch), expected)


XGLM = causal("XGLM", "XGLM", "model.layers.{}.self_attn.out_proj", ffn_dim=17)


def test_a_class_of_no_rule_is_read_by_its_layout_and_removal_is_proved_by_a_short_sentence():
    model, batch = XGLM.model(), XGLM.batch(2)
    assert "XGLMAttention" not in SITE_RULES
    closed = uneven(model)
    expected = gated(XGLM, model, batch, opened(closed))
    remove(model, closed)
    close(XGLM.output(model, batch), expected)
    assert readme_lines(XGLM) == "yes"


def test_a_layout_whose_output_projection_is_not_called_is_none():
    attention = ReadAttention(D, HEADS, D // HEADS)
    attention.embed_dim = D  # as BART's
    with pytest.raises(ValueError, match=r"no attention in ModuleDict has a rule.*ReadAttention"):
        find_sites(nn.ModuleDict({"encoder": attention}))


class LoraLinear(nn.Module):
    """As peft's: the layer inside, and its adapters."""

    def __init__(self, base_layer: nn.Linear):
        super().__init__()
        self.base_layer = base_layer
        self.out_features, self.in_features = base_layer.out_features, base_layer.in_features

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x)


def test_adapters_are_gated_and_to_be_merged_before_heads_go():
    family = BY_NAME["Llama"]
    model, batch = family.model(), family.batch(2)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LoraLinear(layer.self_attn.q_proj)
    bank = attach(model, log_alpha=-9.0)
    family.output(model, batch)
    with pytest.raises(ValueError, match=r"q_proj of LlamaAttention has an adapter.*merge_and_unload\(\)"):
        remove(model, bank)


def test_offloaded_weights_are_gated_where_they_run_and_not_removed():
    accelerate = pytest.importorskip("accelerate")
    family = BY_NAME["BART"]
    model, batch = accelerate.cpu_offload(family.model(), execution_device="cpu"), family.batch(2)
    plain = family.output(model, batch)
    bank = attach(model, gate="mask", xi=HeadMap({s: [1.0, 0.0, 1.0] for s in find_sites(model)}))
    expected = family.output(model, batch)
    assert not torch.equal(expected, plain)
    with pytest.raises(ValueError, match=r"offloaded: its heads .*remove_hook_from_module"):
        remove(model, bank)
    assert torch.equal(family.output(model, batch), expected)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    remove(model, bank)
    close(family.output(model, batch), expected)


def test_a_talking_head_is_gated_and_not_removed():
    path = "deberta.encoder.layer.{}.attention.output.dense"
    family = masked("DeBERTa", "Deberta", path, talking_head=True)
    with pytest.raises(ValueError, match="can be gated, not removed, with talking_head=True"):
        remove(model := family.model(), uneven(model))
