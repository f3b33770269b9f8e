"""Ways to hold an attention: slot, hook and weight scale the same columns of W_O, and let go without a
trace."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import (
    SITE_RULES,
    HeadMap,
    HeadSite,
    SiteRule,
    attach,
    detach,
    find_sites,
    gate_heads,
    remove,
)

D, HEADS, WIDTH = 11, (3, 5), 7  # two layers of uneven heads


class Conv1D(nn.Module):
    """GPT-2's linear layer: a weight of (inputs, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs) * 0.3),
            nn.Parameter(torch.randn(outputs)),
        )

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    """Self-attention of x (B, L, D) but for the output projection."""

    output: type[nn.Module] = nn.Linear

    def __init__(self, heads):
        super().__init__()
        self.num_heads = heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(D, heads * WIDTH) for _ in range(3))
        self.out_proj = self.output(heads * WIDTH, D)

    def z(self, x: Tensor) -> Tensor:  # (B, H, L, K)
        q, k, v = (
            project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return nn.functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        return self.project(self.z(x).transpose(1, 2).flatten(2))

    def project(self, z: Tensor) -> Tensor:
        return self.out_proj(z)


class Slotted(Attention):
    def __init__(self, heads):
        super().__init__(heads)
        self.tap = None

    def z(self, x):
        return super().z(x) if self.tap is None else gate_heads(super().z(x), self.tap())


class Called(Attention):
    pass


class CalledTimeFirst(Attention):
    def project(self, z):
        return self.out_proj(z.transpose(0, 1)).transpose(0, 1)


class CalledTurned(Attention):
    output = Conv1D


class Read(Attention):
    def project(self, z):
        return nn.functional.linear(z, self.out_proj.weight, self.out_proj.bias)


class ReadTurned(Attention):
    output = Conv1D

    def project(self, z):
        return z @ self.out_proj.weight + self.out_proj.bias


RULES = {
    Slotted: SiteRule(heads="num_heads", slot="tap"),
    Called: SiteRule(heads="num_heads", mode="hook"),
    CalledTimeFirst: SiteRule(heads="num_heads", mode="hook", batch_axis=1),
    CalledTurned: SiteRule(heads="num_heads", mode="hook", transposed=True),
    Read: SiteRule(heads="num_heads", mode="weight"),
    ReadTurned: SiteRule(heads="num_heads", mode="weight", transposed=True),
}
ANY_SHAPE = [cls for cls, rule in RULES.items() if rule.mode != "weight"]


class Stack(nn.Module):
    def __init__(self, attention_class):
        super().__init__()
        layers = nn.ModuleList([nn.ModuleDict({"self_attn": attention_class(heads)}) for heads in HEADS])
        self.encoder = nn.ModuleDict({"layers": layers})

    def forward(self, x):
        for attention in self.attentions():
            x = attention(x)
        return x

    def attentions(self):
        return [layer["self_attn"] for layer in self.encoder["layers"]]


@pytest.fixture(autouse=True)
def rules(monkeypatch):
    for cls, rule in RULES.items():
        monkeypatch.setitem(SITE_RULES, cls.__name__, rule)


def made(attention_class) -> Stack:
    """The same weights for every class."""
    torch.manual_seed(0)
    state = Stack(Attention).state_dict()
    model = Stack(attention_class).eval()
    turned = attention_class.output is Conv1D
    model.load_state_dict(
        {
            name: tensor.T if turned and name.endswith("out_proj.weight") else tensor
            for name, tensor in state.items()
        }
    )
    return model


def some_xi(shape_of) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.rand(shape_of(heads), generator=generator) for heads in HEADS]
    for row in rows:
        row.view(-1)[::3] = 0.0  # closed heads too
    return [row.requires_grad_() for row in rows]


def explicitly(x: Tensor, xi: list[Tensor]) -> Tensor:
    """The slow way: every sentence and position by its own W_O, whose columns are scaled."""
    for attention, factors in zip(made(Attention).attentions(), xi, strict=True):
        z, out = attention.z(x), attention.out_proj  # (B, H, L, K)
        rows = []
        for b in range(len(x)):
            for t in range(x.shape[1]):
                own = (
                    factors if factors.dim() == 1 else factors[b] if factors.dim() == 2 else factors[b, :, t]
                )
                scaled = torch.cat(
                    [out.weight[:, h * WIDTH : (h + 1) * WIDTH] * own[h] for h in range(len(own))], dim=1
                )
                rows.append(scaled @ z[b, :, t].flatten() + out.bias)
        x = torch.stack(rows).view(len(x), x.shape[1], D)
    return x


def check_agreement(attention_class, x: Tensor, xi: list[Tensor]) -> None:
    model = made(attention_class)
    bank = attach(model, gate="mask")
    bank.assign(dict(zip(bank.sites, xi, strict=True)))
    got, expected = model(x), explicitly(x, xi)
    torch.testing.assert_close(got, expected)
    slope = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5))
    gradients = [torch.autograd.grad(output, xi, slope) for output in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def inputs(sentences: int, length: int) -> Tensor:
    return torch.randn(sentences, length, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("sentences", [2, 5], ids=["B < L", "B = L"])
@pytest.mark.parametrize("attention_class", ANY_SHAPE)
def test_gates_by_position_scale_each_position_s_own_columns(attention_class, sentences):
    check_agreement(attention_class, inputs(sentences, 5), some_xi(lambda heads: (sentences, heads, 5)))


@pytest.mark.parametrize("attention_class", RULES)
def test_a_state_saved_while_attached_is_loaded_again(attention_class):
    model, other = made(attention_class), Stack(attention_class).eval()
    attach(model, log_alpha=-1.0)
    attach(other)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(inputs(2, 5)), model(inputs(2, 5)))


@pytest.mark.parametrize("attention_class", RULES)
def test_a_copy_is_held_by_its_own_gates_and_lets_go_alone(attention_class):
    model, x = made(attention_class), inputs(2, 5)
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


@pytest.mark.parametrize("attention_class", ANY_SHAPE)
def test_a_pickled_model_is_held_by_its_own_gates(attention_class):
    model, x = made(attention_class), inputs(2, 5)
    plain = model(x)
    attach(model, gate="mask", xi=HeadMap({site: torch.zeros(site.heads) for site in find_sites(model)}))
    other = pickle.loads(pickle.dumps(model))
    detach(model)
    assert torch.equal(model(x), plain)
    assert not torch.allclose(other(x), plain)
    detach(other)
    assert torch.equal(other(x), plain)


@pytest.mark.parametrize("attention_class", RULES)
def test_learned_gates_get_a_gradient_from_the_loss_alone(attention_class):
    model = made(attention_class).train()
    bank = attach(model, log_alpha=0.0)
    model(inputs(2, 5)).square().sum().backward()
    assert all((gate.log_alpha.grad != 0).any() for _, gate in bank.items())


@pytest.mark.parametrize("attention_class", RULES)
def test_held_attention_is_not_held_twice_and_loses_no_heads_from_outside(attention_class):
    model = made(attention_class)
    bank = attach(model)
    for holder in (model, nn.ModuleDict({"model": model})):
        with pytest.raises(ValueError, match="already has gates; detach"):
            attach(holder)
    with pytest.raises(ValueError, match="already has gates"):
        remove(nn.ModuleDict({"model": model}), bank.closed())


@pytest.mark.parametrize("shape", [(2,), (2, 5)], ids=["by sentence", "by position"])
def test_a_weight_refuses_gates_that_differ_within_the_batch(shape):
    model = made(Read)
    bank = attach(model, gate="mask")
    bank.assign({site: torch.ones(shape[0], site.heads, *shape[1:]) for site in bank.sites})
    with pytest.raises(
        ValueError,
        match=r"takes gates of shape \(H,\).*one at a time, each with its own \(H,\) mask, or .*mode='hook'",
    ):
        model(inputs(2, 5))


@pytest.mark.parametrize(("sentences", "length"), [(3, 5), (2, 7)])
@pytest.mark.parametrize("attention_class", [Called, CalledTimeFirst])
def test_a_hook_refuses_gates_of_other_sentences_or_positions(attention_class, sentences, length):
    model = made(attention_class)
    bank = attach(model, gate="mask")
    bank.assign({site: torch.ones(2, site.heads, 5) for site in bank.sites})
    with pytest.raises(ValueError, match="does not fit the output projection's input"):
        model(inputs(sentences, length))


# ---------------------------------------------------------------- rules that do not fit


def changed(attention_class, monkeypatch, **changes) -> Stack:
    monkeypatch.setitem(
        SITE_RULES, attention_class.__name__, SiteRule(**{**vars(RULES[attention_class]), **changes})
    )
    return made(attention_class)


@pytest.mark.parametrize(
    ("attention_class", "changes", "message"),
    [
        (
            Slotted,
            {"slot": "tab"},
            r"Slotted has no 'tab', which its SiteRule names as `slot`; did you mean "
            r"'tap'\?.*'hook'.*'weight'",
        ),
        (Slotted, {"slot": "q_proj"}, "slot 'q_proj' of Slotted must hold None, it holds a Linear"),
        (Called, {"mode": "slot"}, "Called has no 'gate'.*mode='hook'"),
        (
            Called,
            {"heads": "num_head"},
            r"Called has no 'num_head', which its SiteRule names as `heads`; did you mean 'num_heads'\?",
        ),
        (Called, {"heads": "v_proj"}, "'v_proj', `heads` in the SiteRule of Called, is no number: Linear"),
        (Called, {"out": "out.dense"}, "Called has no 'out.dense', which its SiteRule names as a projection"),
        (
            Called,
            {"out": "num_heads"},
            "'num_heads', which the SiteRule of Called names as a projection, is a int",
        ),
        (Read, {"out": "o_proj"}, r"Read has no 'o_proj'.*did you mean '\w*_proj'"),
        (Called, {"out": "q_proj"}, r"the 11 columns of q_proj do not divide into the 3 heads of Called"),
        (
            ReadTurned,
            {"transposed": False},
            r"the 11 columns of out_proj do not divide into the 3 heads of ReadTurned",
        ),
    ],
)
def test_a_wrong_name_in_a_rule_is_one_clear_error_and_changes_nothing(
    attention_class, changes, message, monkeypatch
):
    model = changed(attention_class, monkeypatch, **changes)
    keys, output = list(model.state_dict()), model(inputs(2, 5))
    with pytest.raises(ValueError, match=message) as error:
        attach(model)
    assert error.value.__context__ is None  # no second traceback
    assert list(model.state_dict()) == keys
    assert torch.equal(model(inputs(2, 5)), output)


def test_a_wrong_width_in_a_rule_is_named_before_heads_are_removed(monkeypatch):
    model = changed(Called, monkeypatch, widths=("inner_dim",))
    with pytest.raises(
        ValueError, match=r"Called has no 'inner_dim', which its SiteRule names as one of `widths`"
    ):
        remove(model, HeadMap({HeadSite.at("enc-self", 0, 3): torch.tensor([True, False, False])}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"mode": "hok"}, r"did you mean 'hook'\?"), ({"batch_axis": 2}, "expected batch_axis 0")],
)
def test_a_rule_with_an_unknown_way_or_axis_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SiteRule(heads="heads", **changes)


def test_a_weight_that_is_parametrised_already_is_refused():
    model = made(Read)
    nn.utils.parametrize.register_parametrization(model.attentions()[1].out_proj, "weight", nn.Identity())
    with pytest.raises(ValueError, match="out_proj of Read has no plain weight; undo"):
        attach(model)
