"""torch's attention without some of its heads: what torch's own gives with these heads' columns of W_O at 0,
in all ways it is called."""

import copy
import io
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from headgates.gates import HeadMap, HeadSite, attach, find_sites, heads_left, remove
from tests.gates.family_checks import close, uneven
from tests.worlds.families import BY_NAME

N, H, L, S, K = 2, 6, 5, 7, 3
D = H * K
KEEP = torch.tensor([True, False, True, True, False, False])
SITE = HeadSite.at("enc-self", 0, H)


def attention(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4)
    return module


def around(module: nn.Module) -> nn.Module:
    return nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": module})})


def without(module: nn.Module, keep: Tensor = KEEP) -> nn.Module:
    smaller = copy.deepcopy(module)
    remove(around(smaller), HeadMap({SITE: ~keep}))
    return smaller


def inputs(*, batch_first=False, kdim=D, vdim=D, **_) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((L, N, D), (S, N, kdim), (S, N, vdim))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    return [x.transpose(0, 1) for x in tensors] if batch_first else tensors


GENERATOR = torch.Generator().manual_seed(2)
UNSEEN = torch.rand(L, S, generator=GENERATOR) < 0.3
UNSEEN[:, 0] = False  # every query sees a key
PADDING = torch.arange(S) >= torch.tensor([[S], [S - 2]])
EACH = torch.randn(N, H, L, S, generator=GENERATOR)
CAUSAL = torch.ones(L, S, dtype=torch.bool).triu(1)
CASES = {  # how it is made, how it is called, and what differs where the heads are gone
    "plain": ({}, {}, {}),
    "batch first": ({"batch_first": True}, {}, {}),
    "other widths": ({"kdim": 4, "vdim": 11}, {}, {}),
    "no biases": ({"bias": False, "batch_first": True}, {}, {}),
    "bool": ({}, {"attn_mask": UNSEEN}, {}),
    "both": ({}, {"attn_mask": UNSEEN, "key_padding_mask": PADDING}, {}),
    "floats": ({}, {"key_padding_mask": torch.zeros(N, S).masked_fill(PADDING, -torch.inf)}, {}),
    "causal": ({}, {"attn_mask": CAUSAL, "is_causal": True}, {}),
    "one a head": ({}, {"attn_mask": EACH.flatten(0, 1)}, {}),
    "one a head that stays": (
        {},
        {"attn_mask": EACH.flatten(0, 1)},
        {"attn_mask": EACH[:, KEEP].flatten(0, 1)},
    ),
}


@pytest.mark.parametrize(("options", "masks", "changes"), CASES.values(), ids=CASES)
@torch.no_grad()
def test_a_smaller_attention_is_torch_s_with_the_other_heads_columns_at_zero(options, masks, changes):
    unpruned, tensors = attention(**options), inputs(**options)
    smaller = without(unpruned)
    unpruned.out_proj.weight *= KEEP.repeat_interleave(K)
    expected, shares = unpruned(*tensors, **masks, average_attn_weights=False)
    for need_weights in (False, True):
        out, weights = smaller(*tensors, **masks | changes, need_weights=need_weights)
        close(out, expected)
    close(weights, shares[:, KEEP].mean(1))
    close(smaller(*tensors, **masks | changes, average_attn_weights=False)[1], shares[:, KEEP])
    assert isinstance(smaller, nn.MultiheadAttention)
    assert smaller.num_heads == 3


@torch.no_grad()
def test_an_input_without_a_batch_is_one_sentence():
    smaller, tensors = without(attention(batch_first=True)), inputs(batch_first=True)
    expected, weights = smaller(*tensors, key_padding_mask=PADDING)
    out, got = smaller(*(x[1] for x in tensors), key_padding_mask=PADDING[1])
    close(out, expected[1])
    close(got, weights[1])


@pytest.mark.parametrize("need_weights", [False, True])
@torch.no_grad()
def test_without_heads_or_with_all_dropped_in_training_the_bias_of_W_O_comes_out(need_weights):
    none, dropping = without(attention(), torch.zeros(H, dtype=torch.bool)), without(attention(dropout=1.0))
    bias = dropping.out_proj.bias.expand(L, N, D)
    for module in (none, dropping.train()):
        assert torch.equal(module(*inputs(), need_weights=need_weights)[0], bias)
    assert not torch.allclose(dropping.eval()(*inputs(), need_weights=need_weights)[0], bias)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.zeros(L, S, dtype=torch.int64)}, "attn_mask must hold bools.*got torch.int64"),
        ({"key_padding_mask": torch.zeros(N, S, dtype=torch.int64)}, "key_padding_mask must hold bools"),
        ({"attn_mask": torch.zeros(N * 5, L, S)}, r"must have 3 or, as at first, 6 rows for each of the 2"),
        ({"attn_mask": torch.zeros(S)}, r"must be \(L, S\) or \(N \* H, L, S\)"),
        ({"is_causal": True}, "give attn_mask"),
    ],
)
def test_a_wrong_mask_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        without(attention())(*inputs(), **options)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
@torch.no_grad()
def test_added_keys_are_refused_where_heads_go_and_gates_are_folded_in_where_none_does(option):
    module, xi = attention(**{option: True}), torch.linspace(0.2, 1.0, H)
    with pytest.raises(ValueError, match="can be gated, not removed, where it was made with add_bias_kv or"):
        without(module)
    folded = copy.deepcopy(module)
    remove(around(folded), HeadMap({}), fold=HeadMap({SITE: xi}))
    module.out_proj.weight *= xi.repeat_interleave(K)
    assert torch.equal(folded(*inputs())[0], module(*inputs())[0])
    assert type(folded) is nn.MultiheadAttention


def test_attentions_that_cannot_be_refitted_say_why():
    module = attention()
    prune.l1_unstructured(module, "in_proj_weight", 0.5)
    with pytest.raises(ValueError, match=r"in_proj_weight of .*MultiheadAttention is no plain weight"):
        remove(around(module), HeadMap({SITE: ~KEEP}))
    model = BY_NAME["fairseq (a stand-in of its layout)"].model()
    for module in find_sites(model).values():
        del module.skip_embed_dim_check
    with pytest.raises(ValueError, match=r"no `skip_embed_dim_check`; expected fairseq 0\.12"):
        remove(model, uneven(model))


# ---------------------------------------------------------------- in torch's stacks


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_fused_kernels_and_nested_tensors_are_for_unpruned_attentions(layer, monkeypatch):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 13, batch_first=True), 2).eval()
    keep = KEEP | (torch.arange(H) == 5)  # an even number, as the kernels ask
    x, unpruned = torch.randn(N, S, D), copy.deepcopy(model)
    assert model.use_nested_tensor
    unpruned.layers[layer].self_attn.out_proj.weight *= keep.repeat_interleave(K)
    expected = unpruned(x, src_key_padding_mask=PADDING)
    remove(model, HeadMap({HeadSite.at("enc-self", layer, H): ~keep}))
    fused = Mock(wraps=torch._transformer_encoder_layer_fwd)
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", fused)
    got = model(x, src_key_padding_mask=PADDING)
    assert fused.call_count == 1  # of the layer that kept its heads
    close(got[~PADDING], expected[~PADDING])
    with pytest.raises(ValueError, match="takes no nested tensors: set use_nested_tensor = False"):
        model.layers[layer].self_attn(*[torch.nested.nested_tensor([x[0], x[1, :3]])] * 3)


def test_a_smaller_FSMT_has_its_sentences_where_its_rule_says():
    family = BY_NAME["FSMT"]
    model, batch = family.model(), family.batch(6)
    remove(model, uneven(model))
    whole = family.output(model, batch)
    bank = attach(model, gate="mask")
    masks = {site: torch.ones(6, site.heads) for site in bank.sites}
    first = next(site for site in masks if site.heads)
    masks[first][0] = 0.0
    bank.assign(masks)
    moved = (family.output(model, batch) - whole).abs().flatten(1).amax(1) > 1e-6
    assert moved.tolist() == [True] + [False] * 5


def test_copies_pickles_and_state_dicts_of_a_smaller_model():
    family = BY_NAME["torch.nn.Transformer"]
    model, batch, fresh = family.model(), family.batch(2), family.build().eval()
    closed, file = uneven(model), io.BytesIO()
    remove(model, closed)
    torch.save(model, file)
    file.seek(0)
    remove(fresh, closed)
    fresh.load_state_dict(model.state_dict())
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model), fresh):
        assert torch.equal(family.output(other, batch), family.output(model, batch))
        assert heads_left(other) == ~closed
        assert [type(each) for each in other.modules()] == [type(each) for each in model.modules()]
