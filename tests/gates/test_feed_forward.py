"""Which feed-forward layers are found, and that those which are left alone are named."""

import re
import warnings

import pytest
import torch
from torch import nn

from headgates.gates import SITE_RULES, HeadMap, SiteRule, attach, detach, find_sites, remove
from tests.gates.family_checks import close
from tests.worlds.families import BY_NAME, LENGTH, D, floats


class Gated(nn.Module):
    """An MLP with names of its own."""

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(D, 14), nn.Linear(7, D)

    def forward(self, x):
        gate, up = self.widen(x).chunk(2, -1)
        return self.narrow(gate.sigmoid() * up)


class Layer(nn.Module):
    def __init__(self, mlp: nn.Module):
        super().__init__()
        self.attn, self.mlp = nn.MultiheadAttention(D, 3, batch_first=True), mlp

    def forward(self, x):
        x = x + self.attn(x, x, x)[0]
        return x + self.mlp(x)


class Encoder(nn.Module):
    def __init__(self, *mlps: nn.Module):
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, mlps))
        self.head = nn.Sequential(nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, D))  # in no layer

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Plain(nn.Module):
    """An MLP of a layout, whose class has no rule."""

    def __init__(self, neurons: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, neurons), nn.Linear(neurons, D)

    def forward(self, x):
        return self.fc2(self.fc1(x).sigmoid())


def plain(neurons: int) -> nn.Module:
    return nn.Sequential(nn.Linear(D, neurons), nn.GELU(), nn.Dropout(0.1), nn.Linear(neurons, D))


def names(model: nn.Module) -> list[tuple[str, int]]:
    return [(site.name, site.heads) for site in find_sites(model, "ffn")]


def test_layers_in_sequence_are_found_in_layers_alone_and_cut():
    model, x = Encoder(plain(7), plain(11)).eval(), floats(2, LENGTH, D)
    assert names(model) == [("encoder.0.enc-ffn", 7), ("encoder.1.enc-ffn", 11)]
    closed = HeadMap({site: torch.arange(site.heads) % 2 == 0 for site in find_sites(model, "ffn")})
    with torch.no_grad():
        bank = attach(model, gate="mask", kinds="ffn", xi=closed.map(lambda row: (~row).double()))
        masked = model(x)
        for layer in model.layers:
            layer.mlp[3].weight[:, ::2] = 0
        bank.assign(closed.map(lambda row: torch.ones(len(row))))
        close(model(x), masked)
        remove(model, closed)
        close(model(x), masked)
    assert names(model) == [("encoder.0.enc-ffn", 3), ("encoder.1.enc-ffn", 5)]


@torch.no_grad()
def test_a_layer_of_a_layout_is_still_found_when_it_has_no_neuron_left():
    model, x = Encoder(Plain(7), Plain(11)).eval(), floats(2, LENGTH, D)
    model.layers[0].mlp.fc2.weight.zero_()
    expected = model(x)
    remove(model, HeadMap({next(iter(find_sites(model, "ffn"))): [True] * 7}), inputs=((x,), {}))
    assert names(model) == [("encoder.0.enc-ffn", 0), ("encoder.1.enc-ffn", 11)]
    close(model(x), expected)


def test_a_gate_that_shares_a_weight_is_cut_by_the_line_that_is_named(monkeypatch):
    model, x = Encoder(Gated(), plain(11)).eval(), floats(2, LENGTH, D)
    with pytest.warns(UserWarning, match="the neurons of Gated are left alone") as caught:
        attach(model, gate="mask", kinds="all")
    line = re.search(r'SITE_RULES\["Gated"\] = (SiteRule\(.*\))', str(caught[0].message))
    assert line is not None
    detach(model)
    monkeypatch.setitem(SITE_RULES, "Gated", eval(line[1], {"SiteRule": SiteRule}))
    assert names(model)[0] == ("encoder.0.enc-ffn", 7)
    closed = HeadMap({next(iter(find_sites(model, "ffn"))): torch.arange(7) < 2})
    with torch.no_grad():
        attach(model, kinds="ffn", gate="mask")
        model(x)
        model.layers[0].mlp.narrow.weight[:, :2] = 0
        expected = model(x)
        remove(model, closed)
        close(model(x), expected)
    assert model.layers[0].mlp.widen.weight.shape == (10, D)


def test_experts_are_named_where_neurons_are_asked_for_and_only_there():
    model = BY_NAME["Mixtral"].model()
    with pytest.raises(ValueError, match=r"no heads of the kinds.*neurons of MixtralExperts are left alone"):
        attach(model, kinds="ffn")
    with pytest.warns(UserWarning, match="MixtralExperts are left alone, as its experts are slices"):
        bank = attach(model, kinds="all")
    assert all(site.kind == "dec-self" for site, _ in bank.items())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_sites(BY_NAME["Mixtral"].model())
        attach(BY_NAME["BART"].model(), kinds="all")


def test_of_several_feed_forward_layers_in_a_layer_none_is_taken_for_the_layer_s_own():
    model = Encoder(plain(11), nn.Sequential(plain(7), plain(7)))
    assert names(model) == [("encoder.0.enc-ffn", 11)]
    with pytest.warns(UserWarning, match="neurons of Sequential are left alone, as a layer has several"):
        attach(model, kinds="all")


def test_gates_by_sentence_reach_the_neurons_of_torch_s_layers_whichever_axis_comes_first():
    x, xi = floats(5, 5, D), torch.rand(5, 17, generator=torch.Generator().manual_seed(2))
    for first in (True, False):
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 3, 17, 0.0, batch_first=first), 1).eval()
        attach(model, gate="mask", kinds="ffn", xi=xi)
        together = model(x if first else x.transpose(0, 1))
        together = together if first else together.transpose(0, 1)
        for row, sentence, found in zip(xi, x, together, strict=True):
            model.head_gates.assign({site: row for site in find_sites(model, "ffn")})
            one = sentence[None] if first else sentence[:, None]
            close(model(one).reshape(5, D), found)


def test_encoders_with_gates_on_neurons_take_padded_batches_and_nest_again_without():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 17, 0.0, batch_first=True), 2).eval()
    x, padding = floats(2, LENGTH, D), torch.arange(LENGTH)[None] >= torch.tensor([[5], [3]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        attach(model, gate="mask", kinds="ffn")
        close(model(x, src_key_padding_mask=padding)[~padding], expected[~padding])
        detach(model)
    assert model.use_nested_tensor
