"""Attention classes of other libraries lose heads by a rule: other names, nested projections, one weight for
q, k and v, turned weights."""

import pytest
import torch
from torch import Tensor, nn

from headgates.gates import SITE_RULES, HeadMap, HeadSite, SiteRule, heads_left, remove

B, L, HEADS, WIDTH = 2, 5, 3, 7
D = HEADS * WIDTH


def attention(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """(B, L, H * K) of (B, L, H * K), without a word about H."""
    q, k, v = (x.unflatten(-1, (-1, width)).transpose(1, 2) for x in (q, k, v))
    return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class BiaslessAttention(nn.Module):
    """As T5's: no biases, a width that follows the heads."""

    def __init__(self):
        super().__init__()
        self.n_heads, self.inner_dim = HEADS, D
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x):
        assert self.inner_dim == self.n_heads * WIDTH == self.q.out_features
        return self.o(attention(self.q(x), self.k(x), self.v(x), WIDTH))


class NestedAttention(nn.Module):
    """As BERT's: the projections are in two parts, the number of heads in one of them."""

    def __init__(self):
        super().__init__()
        self.self, self.output = nn.Module(), nn.ModuleDict({"dense": nn.Linear(D, D)})
        self.self.count = HEADS
        self.self.query, self.self.key, self.self.value = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        part = self.self
        return self.output["dense"](attention(part.query(x), part.key(x), part.value(x), WIDTH))


class Conv1D(nn.Module):
    """GPT-2's linear layer: a weight of (inputs, outputs)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.2), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], self.nf)


class PackedAttention(nn.Module):
    """As GPT-2's: one weight for q, k and v, split by a width."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.split_size = HEADS, D
        self.c_attn, self.c_proj = Conv1D(3 * D, D), Conv1D(D, D)

    def forward(self, x):
        return self.c_proj(attention(*self.c_attn(x).split(self.split_size, dim=2), WIDTH))


class PackedRowsAttention(nn.Module):
    """One nn.Linear for q, k and v."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.in_proj, self.out_proj = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        return self.out_proj(attention(*self.in_proj(x).chunk(3, dim=2), WIDTH))


class WideValueAttention(nn.Module):
    """v and W_O have another head width than q and k."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj = nn.Linear(D, D), nn.Linear(D, D)
        self.v_proj, self.out_proj = nn.Linear(D, HEADS * 11), nn.Linear(HEADS * 11, D)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


RULES = {
    BiaslessAttention: SiteRule(
        heads="n_heads", slot="gate", q="q", k="k", v="v", out="o", widths=("inner_dim",)
    ),
    NestedAttention: SiteRule(
        heads="self.count", slot="gate", q="self.query", k="self.key", v="self.value", out="output.dense"
    ),
    PackedAttention: SiteRule(
        heads="num_heads",
        slot="gate",
        q="c_attn",
        k="c_attn",
        v="c_attn",
        out="c_proj",
        transposed=True,
        widths=("split_size",),
    ),
    PackedRowsAttention: SiteRule(heads="num_heads", slot="gate", q="in_proj", k="in_proj", v="in_proj"),
    WideValueAttention: SiteRule(heads="num_heads", slot="gate"),
}


def model_of(attention_class, monkeypatch, **changes) -> nn.Module:
    rule = RULES[attention_class]
    monkeypatch.setitem(SITE_RULES, attention_class.__name__, SiteRule(**{**vars(rule), **changes}))
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "encoder": nn.ModuleDict(
                {"layers": nn.ModuleList([nn.ModuleDict({"attention": attention_class()})])}
            )
        }
    )


def only(model) -> nn.Module:
    return model["encoder"]["layers"][0]["attention"]


def closing(*row: bool) -> HeadMap:
    return HeadMap({HeadSite.at("enc-self", 0, len(row)): torch.tensor(row)})


@pytest.mark.parametrize("attention_class", RULES)
@pytest.mark.parametrize("closed", [(True, False, False), (False, True, False), (True, False, True)])
def test_removing_heads_is_zeroing_their_columns_of_W_O(attention_class, closed, monkeypatch):
    model, rule = model_of(attention_class, monkeypatch), RULES[attention_class]
    x = torch.randn(B, L, D)
    xi = torch.tensor([0.25, 0.5, 1.0])
    whole = model_of(attention_class, monkeypatch)
    out = only(whole).get_submodule(rule.out)
    with torch.no_grad():
        columns = (xi * ~torch.tensor(closed)).repeat_interleave(
            out.weight.shape[0 if rule.transposed else 1] // HEADS
        )
        out.weight.mul_(columns[:, None] if rule.transposed else columns)
    before = sum(parameter.numel() for parameter in model.parameters())
    removed = remove(model, closing(*closed), fold=HeadMap({HeadSite.at("enc-self", 0, HEADS): xi}))
    torch.testing.assert_close(only(model)(x), only(whole)(x))
    assert before - removed.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert heads_left(model) == ~closing(*closed)


@pytest.mark.parametrize("attention_class", RULES)
def test_a_class_that_needs_a_head_is_not_left_without_any(attention_class, monkeypatch):
    model, x = model_of(attention_class, monkeypatch), torch.randn(B, L, D)
    with pytest.warns(UserWarning, match=f"a head stays at encoder.0.enc-self .{attention_class.__name__}."):
        remove(model, closing(True, True, True))
    assert heads_left(model).flat().tolist() == [True, False, False]
    bias = only(model).get_submodule(RULES[attention_class].out).bias
    out = only(model)(x)
    torch.testing.assert_close(out, torch.zeros_like(out) if bias is None else bias.expand_as(out))


@pytest.mark.parametrize(
    ("attention_class", "changes", "message"),
    [
        (
            BiaslessAttention,
            {"q": "q_proj"},
            "BiaslessAttention has no 'q_proj', which its SiteRule names as a projection",
        ),
        (PackedAttention, {"q": "c_proj"}, "two weights for q, k and v"),
        (WideValueAttention, {"q": "v_proj"}, "two weights for q, k and v"),
        (
            WideValueAttention,
            {"k": "v_proj", "v": "k_proj"},
            r"do not divide into its 3 heads \(q_proj 21, v_proj 33, k_proj 21",
        ),
        (PackedAttention, {"transposed": False}, r"do not divide into its 3 heads \(c_attn 21, c_proj 21\)"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(attention_class, changes, message, monkeypatch):
    with pytest.raises(ValueError, match=message):
        remove(model_of(attention_class, monkeypatch, **changes), closing(True, False, False))


def test_heads_that_share_keys_are_refused(monkeypatch):
    model = model_of(WideValueAttention, monkeypatch)
    only(model).k_proj = nn.Linear(D, WIDTH)
    with pytest.raises(ValueError, match=r"expected as many rows for q as for k"):
        remove(model, closing(True, False, False))
