"""Attention classes lose heads by a rule: values of another width, a class that needs a head. The families
have the rest: one weight for q, k and v, other names, nested projections, turned weights."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from headgates.gates import SITE_RULES, HeadMap, HeadSite, SiteRule, heads_left, remove
from tests.worlds.plain_attention import PlainAttention

HEADS, WIDTH = 3, 7
D = HEADS * WIDTH
SITE = HeadSite.at("enc-self", 0, HEADS)


class WideValueAttention(PlainAttention):
    """v and W_O have another head width than q and k."""


def model_of(monkeypatch, **changes) -> nn.Module:
    rule = SiteRule(heads="num_heads", mode="hook", **changes)
    monkeypatch.setitem(SITE_RULES, "WideValueAttention", rule)
    torch.manual_seed(0)
    attention = WideValueAttention(D, HEADS, WIDTH, 11)
    return nn.Sequential(OrderedDict(encoder=nn.Sequential(OrderedDict(attention=attention))))


def closing(*row: bool) -> HeadMap:
    return HeadMap({SITE: torch.tensor(row)})


@pytest.mark.parametrize("closed", [(True, False, False), (False, True, False), (True, False, True)])
def test_removing_heads_is_zeroing_their_columns_of_W_O(closed, monkeypatch):
    model, unpruned = (model_of(monkeypatch) for _ in range(2))
    x, xi = torch.randn(2, 5, D), torch.tensor([0.25, 0.5, 1.0])
    weight = unpruned.encoder.attention.out_proj.weight
    with torch.no_grad():
        weight.mul_((xi * ~torch.tensor(closed)).repeat_interleave(weight.shape[1] // HEADS))
    remove(model, closing(*closed), fold=HeadMap({SITE: xi}), inputs=((x,), {}))
    torch.testing.assert_close(model.encoder.attention(x), unpruned.encoder.attention(x))
    assert heads_left(model) == ~closing(*closed)


def test_a_class_that_needs_a_head_is_not_left_without_any(monkeypatch):
    model, x = model_of(monkeypatch), torch.randn(2, 5, D)
    with pytest.warns(UserWarning, match="a head stays at encoder.0.enc-self .WideValueAttention."):
        remove(model, closing(True, True, True), inputs=((x,), {}))
    assert heads_left(model).flat().tolist() == [True, False, False]
    attention = model.encoder.attention
    torch.testing.assert_close(attention(x), attention.out_proj.bias.expand(2, 5, D))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": "q"}, "has no 'q', which its SiteRule names as a projection"),
        ({"q": ""}, "can be gated, not removed: its rule names no projections"),
        ({"q": "v_proj"}, "two weights for q, k and v"),
        (
            {"k": "v_proj", "v": "k_proj"},
            r"do not divide into its 3 heads \(q_proj 21, v_proj 33, k_proj 21",
        ),
        ({"widths": ("inner",)}, "names as one of `widths`"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(changes, message, monkeypatch):
    with pytest.raises(ValueError, match=message):
        remove(model_of(monkeypatch, **changes), closing(True, False, False))


def test_heads_that_share_keys_are_refused_without_a_group(monkeypatch):
    model = model_of(monkeypatch)
    model.encoder.attention.k_proj = nn.Linear(D, WIDTH)
    with pytest.raises(ValueError, match=r"expected as many rows for q as for k"):
        remove(model, closing(True, False, False))
