"""The whole Transformer against one assembled from torch's layers, and what it promises about positions,
tables and weights."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headgates.configs.settings import ModelConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.models.transformer import Transformer

PAD = SpecialTokens().padding


def copy_attention(theirs: nn.MultiheadAttention, ours):
    theirs.in_proj_weight.copy_(torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight]))
    theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_layer(theirs, ours):
    copy_attention(theirs.self_attn, ours.self_attention)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    norms = [ours.self_residual, ours.feed_residual]
    if isinstance(theirs, nn.TransformerDecoderLayer):
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        norms.insert(1, ours.cross_residual)
    for i, residual in enumerate(norms, start=1):
        getattr(theirs, f"norm{i}").load_state_dict(residual.norm.state_dict())


def sinusoid(t: int, d: int, width: int) -> float:
    return (math.cos if d % 2 else math.sin)(t / 10000 ** ((d - d % 2) / width))


@torch.no_grad()
def reference(model: Transformer, source, target_in):
    """Logits by torch's layers with the weights of ours; sinusoids one number at a time."""
    config, hidden = model.config, source == PAD
    options = {"dropout": 0.0, "batch_first": True, "norm_first": config.norm == "pre"}
    sizes = (config.d_model, config.heads, config.ffn)

    def embed(ids, side):
        if config.positions == "learned":
            positions = getattr(model, f"{side}_positions").weight[: ids.shape[1]]
        else:
            width = config.d_model
            rows = [[sinusoid(t, d, width) for d in range(width)] for t in range(ids.shape[1])]
            positions = torch.tensor(rows)
        return getattr(model, f"{side}_embedding").weight[ids] * math.sqrt(config.d_model) + positions

    x, y = embed(source, "source"), embed(target_in, "target")
    for ours in model.encoder.layers:
        layer = nn.TransformerEncoderLayer(*sizes, **options).eval()
        copy_layer(layer, ours)
        x = layer(x, src_key_padding_mask=hidden)
    memory = model.encoder.norm(x) if config.norm == "pre" else x
    later = torch.ones(target_in.shape[1], target_in.shape[1], dtype=torch.bool).triu(1)
    for ours in model.decoder.layers:
        layer = nn.TransformerDecoderLayer(*sizes, **options).eval()
        copy_layer(layer, ours)
        y = layer(y, memory, tgt_mask=later, memory_key_padding_mask=hidden)
    return (model.decoder.norm(y) if config.norm == "pre" else y) @ model.output.weight.T


def assert_equal_at_tokens(got, expected, ids):
    """Equal wherever there is a token: what stands at padding is nobody's business."""
    torch.testing.assert_close(got[ids != PAD], expected[ids != PAD], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_logits_equal_those_of_torch_s_layers(make_model, batch, norm, positions):
    model = make_model(norm=norm, positions=positions, max_positions=11)
    assert_equal_at_tokens(model(*batch), reference(model, *batch), batch[1])


@pytest.mark.parametrize("side", ["source", "target"])
def test_more_tokens_than_learned_positions_says_how_many_there_are(make_model, batch, side):
    model = make_model(positions="learned", max_positions=7 if side == "source" else 8)
    long = torch.full((1, 9), 5)
    source, target_in = (long, batch[1][:1]) if side == "source" else (batch[0][:1], long)
    with pytest.raises(ValueError, match=rf"a {side} of 9 tokens is longer than the [78] learned positions"):
        model(source, target_in)


def test_sinusoids_go_on_beyond_max_positions_and_can_be_trained_with_and_copied(make_model, batch):
    short, long = make_model(max_positions=3), make_model(max_positions=64)
    with torch.inference_mode():
        assert torch.equal(short(*batch), long(*batch))
    short.train()(*batch).sum().backward()
    assert torch.equal(copy.deepcopy(short).eval()(*batch), long(*batch))
    assert not any("sinusoids" in name for name in short.state_dict())


@pytest.mark.parametrize(("embeddings", "count"), [("tied", 1), ("tied-decoder", 2), ("separate", 3)])
def test_embedding_tables_are_shared_as_the_setting_says(embeddings, count):
    model = Transformer(ModelConfig(d_model=21, heads=3, embeddings=embeddings), 23, 23)
    tables = model.source_embedding, model.target_embedding, model.output
    assert len({id(each.weight) for each in tables}) == count


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 3, "embeddings": "tied"}, "need one vocabulary for both"),
        ({"heads": 5}, "d_model 21 cannot be split into 5 heads"),
    ],
)
def test_one_table_for_two_vocabularies_and_heads_that_do_not_divide_the_width_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Transformer(ModelConfig(d_model=21, **settings), 23, 19)


def test_padding_and_later_target_positions_are_never_looked_at(model, batch):
    weights, padding = {}, batch[0] == PAD
    assert torch.equal(model(*batch, weights), model(*batch))
    for name, weight in weights.items():
        hidden = weight.triu(1) if name.endswith("dec-self") else weight.transpose(1, 3)[padding]
        assert not hidden.any()


def test_under_autocast_each_norm_is_converted_once_and_not_for_each_of_its_products():
    config = ModelConfig(d_model=16, ffn=24, heads=2, encoder_layers=2, decoder_layers=2)
    model, ids = Transformer(config, 11, 11).eval(), torch.tensor([[5, 6, 7, 8, 1]])
    converted = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._to_copy.default and args[0].shape == (1, 5, 16):
                converted.append(kwargs["dtype"])
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False), Watch():
        model(ids, ids)
    # two norms of an encoder layer, three of a decoder layer, and the last norm of each stack
    assert converted.count(torch.bfloat16) == 2 * 2 + 2 * 3 + 2
