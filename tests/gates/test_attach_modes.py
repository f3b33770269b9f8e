"""Attach modes: slot, hook and weight scale the same columns of W_O, and let go without a trace. Where the
families have one rule of a mode each, here are gates by position, copies and what is refused."""

import copy

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import SITE_RULES, SiteRule, attach, detach, gate_heads, remove
from headgates.gates.attach_modes import scale_heads
from tests.worlds.plain_attention import PlainAttention, ReadAttention

D, HEADS, WIDTH = 11, (3, 5), 7  # two layers of uneven heads


class Attention(PlainAttention):
    def __init__(self, heads):
        super().__init__(D, heads, WIDTH)
        self.tap = None


class Slotted(Attention):
    def project(self, z):
        return super().project(z if self.tap is None else gate_heads(z, self.tap()))


class Called(Attention):
    pass


class CalledTimeFirst(Attention):
    def project(self, z):
        return self.out_proj(z.permute(2, 0, 1, 3).flatten(2)).transpose(0, 1)


class Read(Attention, ReadAttention):
    pass


RULES = {
    Slotted: SiteRule(heads="num_heads", slot="tap"),
    Called: SiteRule(heads="num_heads", mode="hook"),
    CalledTimeFirst: SiteRule(heads="num_heads", mode="hook", batch_axis=1),
    Read: SiteRule(heads="num_heads", mode="weight"),
}


class Stack(nn.Module):
    def __init__(self, attention_class):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(
            nn.ModuleDict({"self_attn": attention_class(heads)}) for heads in HEADS
        )

    def forward(self, x):
        for layer in self.encoder.layers:
            x = layer["self_attn"](x)
        return x


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    for cls, rule in RULES.items():
        monkeypatch.setitem(SITE_RULES, cls.__name__, rule)


def inputs(sentences: int = 2, length: int = 5) -> Tensor:
    return torch.randn(sentences, length, D, generator=torch.Generator().manual_seed(1))


def explicitly(x: Tensor, xi: list[Tensor]) -> Tensor:
    """The slow way: every sentence and position by its own W_O, whose columns are scaled by xi (B, H, L)."""
    for layer, factors in zip(Stack(Attention).encoder.layers, xi, strict=True):
        z, out = layer["self_attn"].z(x), layer["self_attn"].out_proj  # z (B, H, L, K)
        rows = [
            (out.weight * factors[b, :, t].repeat_interleave(WIDTH)) @ z[b, :, t].flatten() + out.bias
            for b in range(len(x))
            for t in range(x.shape[1])
        ]
        x = torch.stack(rows).view(len(x), x.shape[1], D)
    return x


@pytest.mark.parametrize("sentences", [2, 5], ids=["B < L", "B = L"])
@pytest.mark.parametrize("attention_class", [Slotted, Called, CalledTimeFirst])
def test_gates_by_position_scale_each_position_s_own_columns(attention_class, sentences):
    model, generator = Stack(attention_class), torch.Generator().manual_seed(3)
    xi = [torch.rand(sentences, heads, 5, generator=generator).requires_grad_() for heads in HEADS]
    bank = attach(model, gate="mask")
    bank.assign(dict(zip(bank.sites, xi, strict=True)))
    outputs = [model(inputs(sentences)), explicitly(inputs(sentences), xi)]
    torch.testing.assert_close(*outputs)
    slope = torch.randn(outputs[0].shape, generator=generator)
    gradients = [torch.autograd.grad(output, xi, slope) for output in outputs]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_gates_come_to_the_device_of_the_heads_that_they_scale():
    z = torch.ones(2, 5, 3 * WIDTH, device="meta")  # as on the second of two GPUs
    assert scale_heads(z, torch.ones(3), batch_axis=0).device == z.device
    assert gate_heads(z.unflatten(-1, (3, WIDTH)).transpose(1, 2), torch.ones(3)).device == z.device


def test_gates_of_a_model_within_data_parallel_learn():
    model = Stack(Called)
    bank = attach(model, log_alpha=0.0, beta=5.0)
    nn.DataParallel(model)(inputs()).sum().backward()
    assert all((gate.log_alpha.grad != 0).all() for _, gate in bank.items())


@pytest.mark.parametrize("attention_class", RULES)
def test_a_state_saved_while_attached_is_loaded_again(attention_class):
    model, other = Stack(attention_class).eval(), Stack(attention_class).eval()
    attach(model, log_alpha=-1.0)
    attach(other)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(inputs()), model(inputs()))


@pytest.mark.parametrize("attention_class", RULES)
def test_a_copy_is_held_by_its_own_gates_and_lets_go_alone(attention_class):
    model, x = Stack(attention_class), inputs()
    plain = model(x)
    attach(model, gate="mask")
    other = copy.deepcopy(model)
    for _, gate in other.head_gates.items():
        gate.assign(torch.zeros(gate.heads))
    assert torch.equal(model(x), plain)
    assert not torch.allclose(other(x), plain)
    detach(other)
    assert torch.equal(other(x), plain)
    assert torch.equal(model(x), plain)  # torch shares a parametrised class between copies
    detach(model)
    assert torch.equal(model(x), plain)


@pytest.mark.parametrize("attention_class", RULES)
def test_a_gated_attention_is_not_gated_twice_and_loses_no_heads_from_outside(attention_class):
    model = Stack(attention_class)
    bank = attach(model)
    outer = nn.ModuleDict({"model": model})
    for act in (lambda: attach(model), lambda: attach(outer), lambda: remove(outer, bank.closed())):
        with pytest.raises(ValueError, match="already has gates; detach"):
            act()


@pytest.mark.parametrize(("attention_class", "shape"), [(Called, (3, 5)), (CalledTimeFirst, (2, 7))])
def test_gates_of_other_sentences_or_positions_are_refused(attention_class, shape):
    model = Stack(attention_class)
    bank = attach(model, gate="mask")
    bank.assign({site: torch.ones(shape[0], site.heads, shape[1]) for site in bank.sites})
    with pytest.raises(ValueError, match="does not fit the output projection's input"):
        model(inputs())


def test_packed_patches_of_images_are_not_taken_for_sentences_of_one_length():
    z, xi = torch.ones(12, 3 * WIDTH), torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    with pytest.raises(ValueError, match="run the images one at a time"):
        scale_heads(z, xi, batch_axis=0)  # of 4 patches and 8, say
    assert torch.equal(scale_heads(z, xi[:1], batch_axis=0), scale_heads(z, xi[0], batch_axis=0))
    assert (
        scale_heads(z, xi, batch_axis=0, flat=True).sum(1).tolist() == [2.0 * WIDTH] * 6 + [3.0 * WIDTH] * 6
    )


# ---------------------------------------------------------------- rules that do not fit


@pytest.mark.parametrize(
    ("attention_class", "changes", "message"),
    [
        (Slotted, {"slot": "tab"}, r"has no 'tab', .* as `slot`; did you mean 'tap'\?.*'hook'.*'weight'"),
        (Slotted, {"slot": "q_proj"}, "slot 'q_proj' of Slotted must hold None, it holds a Linear"),
        (Called, {"heads": "num_head"}, r"names as `heads`; did you mean 'num_heads'\?"),
        (Called, {"out": "out.dense"}, "Called has no 'out.dense', which its SiteRule names as a projection"),
        (Called, {"out": "q_proj"}, r"the 11 columns of q_proj do not divide into the 3 heads of Called"),
        (
            Called,
            {"heads": "", "head_width": "eleven", "out": "v_proj"},
            "names v_proj as W_O and as q, k or",
        ),
        (Called, {"out": "norm"}, "a LayerNorm is no projection"),
        (Called, {"out": "feed"}, "feed of Called has 42 columns and v_proj 21 rows: expected the inputs"),
        (Read, {"out": "made"}, "made of Read has no plain weight; undo"),
    ],
)
def test_a_wrong_rule_is_one_clear_error_and_changes_nothing(attention_class, changes, message, monkeypatch):
    model = Stack(attention_class)
    for layer in model.encoder.layers:
        attention = layer["self_attn"]
        attention.norm, attention.feed, attention.eleven = nn.LayerNorm(D), nn.Linear(42, D), 11
        attention.made = nn.utils.parametrizations.weight_norm(nn.Linear(21, D))
    monkeypatch.setitem(
        SITE_RULES, attention_class.__name__, SiteRule(**{**vars(RULES[attention_class]), **changes})
    )
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=message) as error:
        attach(model)
    assert error.value.__context__ is None  # no second traceback
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"heads": "heads", "mode": "hok"}, r"did you mean 'hook'\?"),
        ({"heads": "heads", "batch_axis": 2}, "expected batch_axis 0"),
        ({}, "names `heads`, the attribute with the number of heads, or `head_width`"),
        ({"heads": "n", "head_width": "k"}, "names `heads`, .*, or `head_width`"),
    ],
)
def test_a_rule_that_says_nothing_sensible_is_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        SiteRule(**rule)
