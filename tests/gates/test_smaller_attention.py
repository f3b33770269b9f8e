"""torch's attention without some of its heads: what torch's own gives with these heads closed, in all ways it
is called."""

import copy
import io
import math
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from headgates.gates import HeadMap, HeadSite, find_sites, heads_left, remove
from tests.gates.families import BY_NAME
from tests.gates.family_checks import close, uneven

N, H, L, S, K = 2, 6, 5, 7, 3
D = H * K
KEEP = torch.tensor([True, False, True, True, False, False])
COLUMNS = KEEP.repeat_interleave(K)
SITE = HeadSite.at("enc-self", 0, H)


def attention(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.4)
    return module


def without(module: nn.Module, keep: Tensor = KEEP) -> nn.Module:
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": copy.deepcopy(module)})})
    remove(model, HeadMap({SITE: ~keep}))
    return model["encoder"]["self_attn"]


def inputs(*, batch_first=False, kdim=D, vdim=D, **_) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((L, N, D), (S, N, kdim), (S, N, vdim))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    return [x.transpose(0, 1) for x in tensors] if batch_first else tensors


def by_loop(module: nn.MultiheadAttention, tensors: list[Tensor], added: Tensor) -> tuple[Tensor, Tensor]:
    """The output (N, L, D) and weights (N, H', L, S) of the heads that stay, head by head, from the unpruned
    module's weights. tensors: (N, L or S, ...); added to the scores: (N, H, L, S)."""
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.split(D)
    biases = (torch.zeros(D),) * 3 if module.in_proj_bias is None else module.in_proj_bias.split(D)
    q, k, v = (x @ w.T + b for x, w, b in zip(tensors, weights, biases, strict=True))
    out = torch.zeros(N, L, D) + (0 if module.out_proj.bias is None else module.out_proj.bias)
    shares = []
    for h in KEEP.nonzero().flatten().tolist():
        own = slice(h * K, (h + 1) * K)
        scores = q[..., own] @ k[..., own].mT / math.sqrt(K) + added[:, h]
        shares.append(scores.softmax(-1))
        out += shares[-1] @ v[..., own] @ module.out_proj.weight[:, own].T
    return out, torch.stack(shares, 1)


OPTIONS = [{}, {"batch_first": True}, {"kdim": 4, "vdim": 11}, {"bias": False, "batch_first": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_a_smaller_attention_is_a_loop_over_the_heads_that_stay(options):
    unpruned, tensors = attention(**options), inputs(**options)
    smaller = without(unpruned)
    turn = (lambda x: x) if options.get("batch_first") else (lambda x: x.transpose(0, 1))
    expected, shares = by_loop(unpruned, [turn(x) for x in tensors], torch.zeros(N, H, L, S))
    for need_weights in (False, True):
        out, weights = smaller(*tensors, need_weights=need_weights)
        close(turn(out), expected)
    close(weights, shares.mean(1))
    close(smaller(*tensors, average_attn_weights=False)[1], shares)
    assert isinstance(smaller, nn.MultiheadAttention)
    assert smaller.num_heads == 3


def hidden(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -math.inf)


GENERATOR = torch.Generator().manual_seed(2)
UNSEEN = torch.rand(L, S, generator=GENERATOR) < 0.3
PADDING = torch.arange(S) >= torch.tensor([[S], [S - 2]])
UNSEEN[:, 0] = False  # every query sees a key
EACH = torch.randn(N, H, L, S, generator=GENERATOR)
MASKS = {  # what is given, and what is added to the scores
    "bool": ({"attn_mask": UNSEEN}, hidden(UNSEEN)),
    "float, one a head": ({"attn_mask": EACH.flatten(0, 1)}, EACH),
    "one a head that stays": ({"attn_mask": EACH[:, KEEP].flatten(0, 1)}, EACH),
    "both": (
        {"attn_mask": EACH[0, 0], "key_padding_mask": PADDING},
        EACH[0, 0] + hidden(PADDING)[:, None, None],
    ),
    "padding in floats": ({"key_padding_mask": hidden(PADDING)}, hidden(PADDING)[:, None, None]),
}


@pytest.mark.parametrize(("masks", "added"), MASKS.values(), ids=MASKS)
@torch.no_grad()
def test_masks_are_added_to_the_scores_of_the_heads_that_stay(masks, added):
    unpruned, tensors = attention(), inputs()
    expected, shares = by_loop(unpruned, [x.transpose(0, 1) for x in tensors], added.expand(N, H, L, S))
    for need_weights in (False, True):
        out, weights = without(unpruned)(*tensors, **masks, need_weights=need_weights)
        close(out.transpose(0, 1), expected)
    close(weights, shares.mean(1))


@torch.no_grad()
def test_a_causal_mask_may_be_told_to_be_one():
    unpruned, x = attention(), inputs()[0]
    smaller, mask = without(unpruned), nn.Transformer.generate_square_subsequent_mask(L)
    unpruned.out_proj.weight *= COLUMNS
    expected = unpruned(x, x, x, attn_mask=mask)[0]
    for need_weights in (False, True):
        close(smaller(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)[0], expected)


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
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": folded})})
    remove(model, HeadMap({}), fold=HeadMap({SITE: xi}))
    module.out_proj.weight *= xi.repeat_interleave(K)
    assert torch.equal(folded(*inputs())[0], module(*inputs())[0])
    assert type(folded) is nn.MultiheadAttention


def test_attentions_that_cannot_be_refitted_say_why():
    module = attention()
    prune.l1_unstructured(module, "in_proj_weight", 0.5)
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": module})})
    with pytest.raises(ValueError, match=r"in_proj_weight of .*MultiheadAttention is no plain weight"):
        remove(model, HeadMap({SITE: ~KEEP}))
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


def test_copies_pickles_and_state_dicts_of_a_smaller_model():
    family = BY_NAME["torch.nn.Transformer"]
    model, batch, fresh = family.model(), family.batch(2), family.build().eval()
    closed = uneven(model)
    remove(model, closed)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again, copied = torch.load(file, weights_only=False), copy.deepcopy(model)
    remove(fresh, closed)
    fresh.load_state_dict(model.state_dict())
    for other in (again, copied, fresh):
        assert torch.equal(family.output(other, batch), family.output(model, batch))
        assert heads_left(other) == ~closed
        assert [type(each) for each in other.modules()] == [type(each) for each in model.modules()]
    with torch.no_grad():
        copied.encoder.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(family.output(again, batch), family.output(model, batch))
