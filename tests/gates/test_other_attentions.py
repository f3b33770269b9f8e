"""Attentions of other libraries: unknown ones are named with the line to add, wrong tensors are refused, key
heads are not parted."""

import re
import warnings

import pytest
import torch
from torch import nn

from headgates.gates import SITE_RULES, HeadMap, HeadSite, SiteRule, attach, detach, find_sites, remove
from tests.gates.families import BY_NAME
from tests.gates.family_checks import close

D, HEADS, WIDTH = 21, 3, 7


class NewAttention(nn.Module):
    """As somebody else would write one: a number of heads, q, k, v, and a `wo`."""

    def __init__(self):
        super().__init__()
        self.n_head = HEADS
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D) for _ in range(4))

    def z(self, x):  # (B, L, H * K)
        q, k, v = (
            project(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
            for project in (self.wq, self.wk, self.wv)
        )
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x):
        return self.wo(self.z(x))


class Model(nn.Module):
    def __init__(self, attention=NewAttention):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList([nn.ModuleDict({"self_attn": attention()})])

    def forward(self, x):
        return self.encoder.layers[0]["self_attn"](x)

    @property
    def attention(self):
        return self.encoder.layers[0]["self_attn"]


@pytest.fixture
def new_rule(monkeypatch) -> SiteRule:
    rule = SiteRule(heads="n_head", mode="hook", q="wq", k="wk", v="wv", out="wo")
    monkeypatch.setitem(SITE_RULES, "NewAttention", rule)
    return rule


def test_the_line_that_an_error_says_to_add_is_right(monkeypatch):
    model, x = Model(), torch.randn(2, 5, D)
    with pytest.raises(ValueError, match="NewAttention") as error:
        find_sites(model)
    line = re.search(r'SITE_RULES\["NewAttention"\] = (SiteRule\(.*?\))[.;]', str(error.value))
    monkeypatch.setitem(SITE_RULES, "NewAttention", eval(line[1], {"SiteRule": SiteRule}))
    plain = model(x)
    attach(model, gate="mask", xi=torch.tensor([1.0, 0.0, 1.0]))
    gated = model(x)
    detach(model)
    with torch.no_grad():
        model.attention.wo.weight[:, WIDTH : 2 * WIDTH] = 0
    close(gated, model(x))
    assert not torch.allclose(gated, plain)


def test_an_unknown_attention_beside_known_ones_is_named_in_a_warning():
    model = BY_NAME["our own Transformer"].model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        find_sites(model)  # what is inside and around a known attention is no unknown one
    model.extra = NewAttention()
    with pytest.warns(
        UserWarning,
        match=r'NewAttention are left alone.*SITE_RULES\["NewAttention"\] = SiteRule\(heads="n_head"',
    ):
        assert len(find_sites(model)) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": "wv"}, "names wv as W_O and as q, k or v"),
        ({"out": "norm"}, "a LayerNorm is no projection"),
        (
            {"out": "feed"},
            r"feed of NewAttention has 42 columns and wv 21 rows: expected the inputs of W_O to be the "
            r"heads' outputs",
        ),
    ],
)
def test_a_hook_on_another_tensor_than_the_heads_outputs_is_refused(new_rule, changes, message, monkeypatch):
    model = Model()
    model.attention.norm, model.attention.feed = nn.LayerNorm(D), nn.Linear(2 * D, D)
    monkeypatch.setitem(SITE_RULES, "NewAttention", SiteRule(**{**vars(new_rule), **changes}))
    with pytest.raises(ValueError, match=message):
        attach(model)
    assert "head_gates" not in dict(model.named_modules())


@pytest.mark.parametrize("options", [{}, {"heads": "n_head", "head_width": "width"}])
def test_a_rule_names_the_heads_or_their_width(options):
    with pytest.raises(ValueError, match="`heads`, the attribute with the number of heads, or `head_width`"):
        SiteRule(**options)


def test_a_path_without_encoder_or_decoder_asks_for_the_attribute_that_tells(new_rule):
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"attn": NewAttention()})])})
    with pytest.raises(
        ValueError, match=r"'layers.0.attn' is an encoder's or a decoder's; .*causal='is_causal'"
    ):
        find_sites(model)


@pytest.mark.parametrize(("causal", "kind"), [(True, "dec-self"), (False, "enc-self")])
def test_the_attribute_of_a_rule_tells_the_kind(new_rule, causal, kind, monkeypatch):
    monkeypatch.setitem(SITE_RULES, "NewAttention", SiteRule(**{**vars(new_rule), "causal": "is_causal"}))
    model = nn.ModuleDict({"h": nn.ModuleList([nn.ModuleDict({"attn": NewAttention()})])})
    model["h"][0]["attn"].is_causal = causal
    assert [site.kind for site in find_sites(model)] == [kind]


def test_torch_s_layers_alone_are_found():
    options = dict(d_model=D, nhead=HEADS, batch_first=True)
    assert [site.name for site in find_sites(nn.TransformerEncoderLayer(**options))] == ["encoder.0.enc-self"]
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)
    assert [site.name for site in find_sites(decoder)] == [
        f"decoder.{i}.{kind}" for kind in ("dec-self", "cross") for i in range(2)
    ]


def test_a_class_of_the_same_name_elsewhere_is_not_taken_for_torch_s():
    class MultiheadAttention(nn.Module):
        pass

    model = nn.ModuleDict(
        {
            "encoder": nn.ModuleDict(
                {"layers": nn.ModuleList([nn.ModuleDict({"self_attn": MultiheadAttention()})])}
            )
        }
    )
    with pytest.raises(ValueError, match="no attention in ModuleDict has a rule"):
        find_sites(model)


# ---------------------------------------------------------------- heads that share a key head


def test_heads_of_one_key_head_are_not_parted():
    family = BY_NAME["Llama"]
    model, batch = family.model(), family.batch(2)
    plain = family.output(model, batch)
    closed = HeadMap({HeadSite.at("dec-self", 1, 6): torch.tensor([True, True, False, True, False, False])})
    with pytest.raises(
        ValueError,
        match=r"decoder\.1\.dec-self has 2 heads to a key head, and of 2 to 3 only 3 would go.*share='group'",
    ):
        remove(model, closed)
    assert torch.equal(family.output(model, batch), plain)


def test_a_shared_gate_closes_the_heads_of_a_key_head_together():
    family = BY_NAME["Llama"]
    model, batch = family.model(), family.batch(2)
    bank = attach(model, share="group", log_alpha=-5.0)
    assert [gate.heads for _, gate in bank.items()] == [3, 3]
    assert 0 < float(bank.penalty().detach()) < 12
    with torch.no_grad():
        for _, gate in bank.items():
            gate.log_alpha[1] = 5.0
    assert [row.tolist() for row in bank.open().values()] == [[False, False, True, True, False, False]] * 2
    assert all(len(rows) == 6 for rows in bank.to_json()["sites"].values())
    gated, closed = family.output(model, batch), bank.closed()
    assert float(bank.open_prob().sum()) == pytest.approx(
        float(bank.penalty().detach()), rel=1e-5
    )  # in heads, not groups
    detach(model)
    remove(model, closed)
    close(family.output(model, batch), gated)


def test_an_unknown_way_to_share_is_named():
    with pytest.raises(ValueError, match=r"expected share='head'.*got 'layer'"):
        attach(BY_NAME["our own Transformer"].model(), share="layer")


# ---------------------------------------------------------------- Hugging Face


def test_a_decoder_s_bert_is_a_decoder_and_two_berts_are_told_apart():
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    shape = dict(
        vocab_size=31, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=17
    )
    decoder = transformers.BertConfig(**shape, is_decoder=True, add_cross_attention=True)
    model = transformers.EncoderDecoderModel(encoder=transformers.BertModel(transformers.BertConfig(**shape)),
                                             decoder=transformers.BertLMHeadModel(decoder))  # fmt: skip
    assert [site.name for site in find_sites(model)] == [
        "encoder.0.enc-self",
        "decoder.0.dec-self",
        "decoder.0.cross",
    ]
    assert [site.name for site in find_sites(model.decoder)] == ["decoder.0.dec-self", "decoder.0.cross"]


def test_t5_keeps_one_bias_table_which_all_its_layers_train():
    family = BY_NAME["T5"]
    model, batch = family.model(), family.batch(2)
    closes = [[True, False, False], [False, True, False]]
    remove(
        model,
        HeadMap({HeadSite.at("enc-self", layer, 3): torch.tensor(row) for layer, row in enumerate(closes)}),
    )
    names = [name for name in model.state_dict() if "relative_attention_bias" in name]
    assert len(names) == 2  # one a stack, as before
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert table.shape[1] == 3  # every head is left in one of the layers
    family.output(model, batch).square().sum().backward()
    assert (table.grad.abs().sum(0) > 0).all()  # also the column that the first layer no longer has
    remove(
        model, HeadMap({HeadSite.at("enc-self", layer, 2): torch.tensor([True, False]) for layer in range(2)})
    )
    assert model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.shape[1] == 1
