"""torch's attention without some of its heads: what torch's own says with these heads closed, in all ways it
is called."""

import copy
import io
from itertools import product
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


def attention(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(D, H, **options).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return module


def without(module: nn.MultiheadAttention, keep: Tensor = KEEP) -> nn.MultiheadAttention:
    smaller = copy.deepcopy(module)
    remove(
        nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": smaller})}),
        HeadMap({HeadSite.at("enc-self", 0, len(keep)): ~keep}),
    )
    return smaller


def inputs(*, batch_first=False, kdim=D, vdim=D, **_) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((L, N, D), (S, N, kdim), (S, N, vdim))
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    return [x.transpose(0, 1) for x in tensors] if batch_first else tensors


def by_loop(
    module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """The output (N, L, D) and weights (N, H', L, S) of the heads that stay, one number at a time, from the
    whole module's weights.

    query (N, L, D), key and value (N, S, ...); seen (N, H, L, S): whether a query sees a key."""
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.split(D)
    biases = (torch.zeros(D),) * 3 if module.in_proj_bias is None else module.in_proj_bias.split(D)
    q, k, v = (x @ w.T + b for x, w, b in zip((query, key, value), weights, biases, strict=True))
    out = torch.zeros(N, L, D) + (0 if module.out_proj.bias is None else module.out_proj.bias)
    kept = KEEP.nonzero().flatten().tolist()
    shares = torch.zeros(N, len(kept), L, S)
    for n, (place, h), i in product(range(N), enumerate(kept), range(L)):
        own = slice(h * K, (h + 1) * K)
        scores = torch.tensor([float(q[n, i, own] @ k[n, j, own]) / K**0.5 for j in range(S)])
        shares[n, place, i] = torch.softmax(scores.masked_fill(~seen[n, h, i], float("-inf")), 0)
        z = sum(shares[n, place, i, j] * v[n, j, own] for j in range(S))
        out[n, i] += module.out_proj.weight[:, own] @ z
    return out, shares


OPTIONS = [{}, {"batch_first": True}, {"kdim": 4, "vdim": 11}, {"bias": False, "batch_first": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_a_smaller_attention_is_a_loop_over_the_heads_that_stay(options):
    whole, tensors = attention(**options), inputs(**options)
    smaller = without(whole)
    rows = tensors if options.get("batch_first") else [x.transpose(0, 1) for x in tensors]
    expected, shares = by_loop(whole, *rows, torch.ones(N, H, L, S, dtype=torch.bool))
    for need_weights in (False, True):
        out, weights = smaller(*tensors, need_weights=need_weights)
        close(out if options.get("batch_first") else out.transpose(0, 1), expected)
    close(weights, shares.mean(1))
    close(smaller(*tensors, average_attn_weights=False)[1], shares)
    assert isinstance(smaller, nn.MultiheadAttention)
    assert smaller.num_heads == 3
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in whole.parameters())


def masks() -> dict[str, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    unseen = torch.rand(L, S, generator=generator) < 0.3
    each = torch.rand(N * H, L, S, generator=generator) < 0.3
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[1, -2:] = True
    unseen[:, 0] = each[:, :, 0] = False  # every query sees a key
    added = torch.randn(L, S, generator=generator)
    return {
        "bool": {"attn_mask": unseen},
        "float": {"attn_mask": added},
        "one a head": {"attn_mask": each},
        "float, one a head": {"attn_mask": torch.randn(N * H, L, S, generator=generator)},
        "padding": {"key_padding_mask": padding},
        "padding in floats": {"key_padding_mask": torch.zeros(N, S).masked_fill(padding, float("-inf"))},
        "both": {"attn_mask": unseen, "key_padding_mask": padding},
        "both, one a head": {"attn_mask": each, "key_padding_mask": padding},
    }


@torch.no_grad()
def test_a_bool_mask_hides_keys_in_the_loop_too():
    whole, tensors, mask = attention(), inputs(), masks()["both, one a head"]
    seen = ~mask["attn_mask"].view(N, H, L, S) & ~mask["key_padding_mask"][:, None, None]
    expected, _ = by_loop(whole, *(x.transpose(0, 1) for x in tensors), seen)
    close(without(whole)(*tensors, **mask)[0].transpose(0, 1), expected)


@torch.no_grad()
def test_a_causal_mask_may_be_told_to_be_one():
    whole, x = attention(), inputs()[0]
    smaller, mask = without(whole), nn.Transformer.generate_square_subsequent_mask(L)
    whole.out_proj.weight *= KEEP.repeat_interleave(K)
    expected = whole(x, x, x, attn_mask=mask)[0]
    for need_weights in (False, True):
        close(smaller(x, x, x, attn_mask=mask, is_causal=True, need_weights=need_weights)[0], expected)
    with pytest.raises(ValueError, match="give attn_mask"):
        smaller(x, x, x, is_causal=True)


@torch.no_grad()
def test_an_input_without_a_batch_is_one_sentence():
    smaller, tensors = without(attention(batch_first=True)), inputs(batch_first=True)
    padding = masks()["padding"]["key_padding_mask"]
    expected, weights = smaller(*tensors, key_padding_mask=padding)
    out, got = smaller(*(x[1] for x in tensors), key_padding_mask=padding[1])
    close(out, expected[1])
    close(got, weights[1])


@torch.no_grad()
def test_without_heads_the_bias_of_W_O_comes_out():
    smaller = without(attention(), torch.zeros(H, dtype=torch.bool))
    for need_weights in (False, True):
        out, weights = smaller(*inputs(), need_weights=need_weights)
        assert torch.equal(out, smaller.out_proj.bias.expand(L, N, D))
    assert torch.equal(weights, torch.zeros(N, L, S))


@pytest.mark.parametrize("need_weights", [False, True])
def test_training_drops_weights_and_evaluation_none(need_weights):
    smaller = without(attention(dropout=1.0))
    assert torch.equal(
        smaller.train()(*inputs(), need_weights=need_weights)[0], smaller.out_proj.bias.expand(L, N, D)
    )
    assert not torch.allclose(smaller.eval()(*inputs(), need_weights=need_weights)[0], smaller.out_proj.bias)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_are_added_are_refused(option):
    module = attention(**{option: True})
    before = set(module.state_dict())
    with pytest.raises(
        ValueError, match=r"can be gated, not removed, where it was made with add_bias_kv or add_zero_attn"
    ):
        without(module)
    assert set(module.state_dict()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attn_mask": torch.zeros(L, S, dtype=torch.int64)}, "attn_mask must hold bools.*got torch.int64"),
        ({"key_padding_mask": torch.zeros(N, S, dtype=torch.int64)}, "key_padding_mask must hold bools"),
        (
            {"attn_mask": torch.zeros(N * 5, L, S)},
            r"must have 3 or, as at first, 6 rows for each of the 2 sentences",
        ),
        ({"attn_mask": torch.zeros(S)}, r"must be \(L, S\) or \(N \* H, L, S\)"),
    ],
)
def test_a_wrong_mask_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        without(attention())(*inputs(), **options)


def test_a_weight_that_is_made_of_others_is_refused():
    module = attention()
    prune.l1_unstructured(module, "in_proj_weight", 0.5)
    with pytest.raises(ValueError, match=r"in_proj_weight of .*MultiheadAttention is no plain weight"):
        remove(
            nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": module})}),
            HeadMap({HeadSite.at("enc-self", 0, H): ~KEEP}),
        )


# ---------------------------------------------------------------- in torch's stacks


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layer", [0, 1])
@torch.no_grad()
def test_fused_kernels_and_nested_tensors_are_for_whole_attentions(layer, monkeypatch):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 13, batch_first=True), 2).eval()
    x, padding = torch.randn(N, S, D), masks()["padding"]["key_padding_mask"]
    assert model.use_nested_tensor
    whole = copy.deepcopy(model)
    whole.layers[layer].self_attn.out_proj.weight *= KEEP.repeat_interleave(K)
    whole.layers[layer].self_attn.out_proj.weight[:, -K:] = model.layers[layer].self_attn.out_proj.weight[
        :, -K:
    ]
    expected = whole(x, src_key_padding_mask=padding)
    remove(
        model, HeadMap({HeadSite.at("enc-self", layer, H): ~(KEEP | (torch.arange(H) == 5))})
    )  # an even number, as the kernels ask
    fused = Mock(wraps=torch._transformer_encoder_layer_fwd)
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", fused)
    got = model(x, src_key_padding_mask=padding)
    assert fused.call_count == 1  # of the layer that kept its heads
    close(got[~padding], expected[~padding])
    with pytest.raises(ValueError, match="takes no nested tensors: set use_nested_tensor = False"):
        model.layers[layer].self_attn(*[torch.nested.nested_tensor([x[0], x[1, :3]])] * 3)


def test_copies_pickles_and_state_dicts_of_a_smaller_model():
    family = BY_NAME["torch.nn.Transformer"]
    model, batch = family.model(), family.batch(2)
    closed = uneven(model)
    remove(model, closed)
    expected = family.output(model, batch)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again, copied = torch.load(file, weights_only=False), copy.deepcopy(model)
    fresh = BY_NAME["torch.nn.Transformer"].build().eval()
    remove(fresh, closed)
    fresh.load_state_dict(model.state_dict())
    for other in (again, copied, fresh):
        assert torch.equal(family.output(other, batch), expected)
        assert heads_left(other) == ~closed
        ours, theirs = (list(find_sites(each).values()) for each in (model, other))
        assert [type(module) for module in theirs] == [type(module) for module in ours]
    with torch.no_grad():
        copied.encoder.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(family.output(model, batch), expected)


@torch.no_grad()
def test_gates_are_folded_into_an_attention_that_keeps_its_heads_and_its_forward():
    module = attention(add_bias_kv=True)  # which could lose none
    xi, whole = torch.linspace(0.2, 1.0, H), copy.deepcopy(module)
    site = HeadSite.at("enc-self", 0, H)
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"self_attn": module})})
    remove(model, HeadMap({site: torch.zeros(H, dtype=torch.bool)}), fold=HeadMap({site: xi}))
    whole.out_proj.weight *= xi.repeat_interleave(K)
    assert torch.equal(module(*inputs())[0], whole(*inputs())[0])
    assert type(module) is nn.MultiheadAttention


def test_fairseq_before_its_switch_is_refused():
    model = BY_NAME["fairseq (a stand-in of its layout)"].model()
    for module in find_sites(model).values():
        del module.skip_embed_dim_check
    with pytest.raises(ValueError, match=r"no `skip_embed_dim_check`; expected fairseq 0\.12"):
        remove(model, uneven(model))
