"""Attentions of other libraries: unknown ones are named with the line to add, kinds are told by rules and
paths, key heads are not parted."""

import re
import warnings

import pytest
import torch
from torch import nn

from headgates.gates import SITE_RULES, HeadMap, HeadSite, SiteRule, attach, find_sites, remove
from tests.gates.family_checks import close
from tests.worlds.families import BY_NAME, HEADS, WIDTH, D


class NewAttention(nn.Module):
    """As somebody else would write one: a number of heads, q, k, v, and a `wo`."""

    def __init__(self):
        super().__init__()
        self.n_head = HEADS
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.wo(z.transpose(1, 2).flatten(2))


def test_the_line_that_an_error_says_to_add_is_right(monkeypatch):
    model, x = nn.ModuleDict({"encoder": nn.ModuleDict({"attn": NewAttention()})}), torch.randn(2, 5, D)
    with pytest.raises(ValueError, match="NewAttention") as error:
        find_sites(model)
    line = re.search(r'SITE_RULES\["NewAttention"\] = (SiteRule\(.*?\))[.;]', str(error.value))
    monkeypatch.setitem(SITE_RULES, "NewAttention", eval(line[1], {"SiteRule": SiteRule}))
    attention = model["encoder"]["attn"]
    plain = attention(x)
    attach(model, gate="mask", xi=torch.tensor([1.0, 0.0, 1.0]))
    gated = attention(x)
    assert not torch.allclose(gated, plain)
    with torch.no_grad():
        attention.wo.weight[:, WIDTH : 2 * WIDTH] = 0
    close(gated, attention(x))


def test_an_unknown_attention_beside_known_ones_is_named_in_a_warning():
    model = BY_NAME["our own Transformer"].model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_sites(model)  # what is inside and around a known attention is no unknown one
    model.extra = NewAttention()
    with pytest.warns(UserWarning, match=r'NewAttention are left alone.*SiteRule\(heads="n_head"'):
        assert len(find_sites(model)) == 6


def test_the_attribute_of_a_rule_tells_the_kind_where_the_path_does_not(monkeypatch):
    rule = SiteRule(heads="n_head", mode="hook", out="wo")
    monkeypatch.setitem(SITE_RULES, "NewAttention", rule)
    model = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleDict({"attn": NewAttention()})])})
    with pytest.raises(ValueError, match=r"'h.0.attn' is an encoder's or a decoder's: .*causal='is_causal'"):
        find_sites(model)
    monkeypatch.setitem(SITE_RULES, "NewAttention", SiteRule(**{**vars(rule), "causal": "is_causal"}))
    for causal, kind in ((True, "dec-self"), (False, "enc-self")):
        model["h"][0]["attn"].is_causal = causal
        assert [site.kind for site in find_sites(model)] == [kind]


def test_torch_s_layers_alone_are_found_and_a_class_of_the_same_name_elsewhere_is_not():
    options = dict(d_model=D, nhead=HEADS, batch_first=True)
    layer = nn.TransformerEncoderLayer(**options)
    assert [site.name for site in find_sites(layer)] == ["encoder.0.enc-self"]
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)
    names = [f"decoder.{i}.{kind}" for kind in ("dec-self", "cross") for i in range(2)]
    assert [site.name for site in find_sites(decoder)] == names

    for name in ("MultiheadAttention", "MultiHeadAttention"):  # torch's, and our own
        layer.self_attn = type(name, (nn.Module,), {})()
        with pytest.raises(ValueError, match="no attention in TransformerEncoderLayer has a rule"):
            find_sites(layer)


def test_heads_of_one_key_head_are_not_parted_and_a_shared_gate_closes_them_together():
    model = BY_NAME["Llama"].model()
    closed = HeadMap({HeadSite.at("dec-self", 1, 6): torch.tensor([True, True, False, True, False, False])})
    with pytest.raises(
        ValueError,
        match=r"decoder\.1\.dec-self has 2 heads to a key head, and of 2 to 3 only 3 would go.*share='group'",
    ):
        remove(model, closed)
    bank = attach(model, log_alpha=-5.0)
    assert [gate.heads for _, gate in bank.items()] == [3, 3]
    with torch.no_grad():
        for _, gate in bank.items():
            gate.log_alpha[1] = 5.0
    assert [row.tolist() for row in bank.open().values()] == [[False, False, True, True, False, False]] * 2
    assert all(len(rows) == 6 for rows in bank.to_json()["sites"].values())
    penalty = float(bank.penalty().detach())
    assert float(bank.open_prob().sum()) == pytest.approx(penalty, rel=1e-5)  # in heads, not groups


def test_a_decoder_s_bert_is_a_decoder_and_two_berts_are_told_apart():
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    small = dict(vocab_size=31, hidden_size=12, num_hidden_layers=1, num_attention_heads=3)
    config = transformers.BertConfig(**small, is_decoder=True, add_cross_attention=True)
    encoder = transformers.BertModel(transformers.BertConfig(**small))
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=transformers.BertLMHeadModel(config))
    names = ["encoder.0.enc-self", "decoder.0.dec-self", "decoder.0.cross"]
    assert [site.name for site in find_sites(model)] == names
    assert [site.name for site in find_sites(model.decoder)] == names[1:]


def test_t5_keeps_one_bias_table_which_all_its_layers_train():
    family = BY_NAME["T5"]
    model, batch = family.model(), family.batch(2)
    first = model.encoder.block[0].layer[0].SelfAttention
    closes = {HeadSite.at("enc-self", layer, 3): torch.arange(3) == layer for layer in range(2)}
    remove(model, HeadMap(closes))
    assert len([name for name in model.state_dict() if "relative_attention_bias" in name]) == 2  # one a stack
    table = first.relative_attention_bias.weight
    assert table.shape[1] == 3  # every head is left in one of the layers
    family.output(model, batch).square().sum().backward()
    assert (table.grad.abs().sum(0) > 0).all()  # also the column that the first layer no longer has
    again = {HeadSite.at("enc-self", layer, 2): torch.tensor([True, False]) for layer in range(2)}
    remove(model, HeadMap(again))
    assert first.relative_attention_bias.weight.shape[1] == 1
