"""T5 and what was made of it (v1.1, mT5, UMT5, MADLAD-400, ByT5) as ours, and ours as a T5 or UMT5.

What differs in the numbers alone is in the weights of ours: T5 does not divide scores by sqrt(K), so W_Q
gets that factor, and where its logits are scaled by D^-0.5, the decoder's last norm does. T5's first layer
makes the bias of distances for its whole stack; here every attention has its own, as in UMT5. So a model
goes out as a T5 unless training made the biases of its layers different. Letters: D model width, K head
width.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headgates.bridges.foreign import OUR_TABLES, our_activation, shared_tables
from headgates.configs.settings import ModelConfig
from headgates.gates import KINDS, heads_left
from headgates.models.transformer import Transformer

T5_CLASSES = {  # by model_type
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
SELF = {"encoder": "enc-self", "decoder": "dec-self"}  # the kind that has distances, of a stack
LONGEST_TEXT = 1024  # that a run takes as the longest text to train with: relative positions have no end

ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
OUTSIDE = {
    "source_embedding": "encoder.embed_tokens",
    "target_embedding": "decoder.embed_tokens",
    "output": "lm_head",
    "encoder.norm": "encoder.final_layer_norm",
    "decoder.norm": "decoder.final_layer_norm",
}
T5_TABLE = "shared.weight"
THEIR_TABLES = [f"{OUTSIDE[name]}.weight" for name in OUR_TABLES]
_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(self|cross|feed)_(\w+)\.(\w+)")


def t5_name(name: str, gated: bool) -> str:
    """What our parameter of this name is called in theirs, the distances of a layer as in UMT5."""
    path = name.removesuffix(".weight")
    if path in OUTSIDE:
        return f"{OUTSIDE[path]}.weight"
    found = _LAYER.fullmatch(path)
    assert found is not None  # a model that is_like_t5 has no other parameters
    stack, layer, part, kind, last = found.groups()
    place = {"self": 0, "cross": 1, "feed": 2 if stack == "decoder" else 1}[part]
    above = f"{stack}.block.{layer}.layer.{place}"
    if kind == "residual":
        return f"{above}.layer_norm.weight"
    if kind == "forward":
        feed = {"inner": "wi_0" if gated else "wi", "factor": "wi_1", "outer": "wo"}
        return f"{above}.DenseReluDense.{feed[last]}.weight"
    attention = "SelfAttention" if part == "self" else "EncDecAttention"
    return f"{above}.{attention}.{ATTENTION.get(last, 'relative_attention_bias')}.weight"


# ---------------------------------------------------------------- theirs as ours


def settings_of_t5(model: Any, state: Mapping[str, Tensor]) -> ModelConfig:
    """Our settings of a model. Raises ValueError at an activation that ours has not."""
    config = model.config
    tables = [state[name] for name in THEIR_TABLES]
    return ModelConfig(
        d_model=config.d_model,
        ffn=config.d_ff,
        heads=config.num_heads,
        head_width=config.d_kv,
        encoder_layers=len(model.encoder.block),
        decoder_layers=len(model.decoder.block),
        activation=our_activation(config.dense_act_fn, "feed_forward_proj"),  # type: ignore[arg-type]
        feed_forward="gated" if config.is_gated_act else "plain",
        dropout=config.dropout_rate,
        attention_dropout=config.dropout_rate,
        norm="pre",
        norm_kind="rms",
        norm_eps=config.layer_norm_epsilon,
        biases=False,
        positions="relative",
        position_buckets=config.relative_attention_num_buckets,
        position_reach=config.relative_attention_max_distance,
        max_positions=LONGEST_TEXT,
        embedding_scale=False,
        embeddings=shared_tables(*tables),  # type: ignore[arg-type]
    )


def tensor_of_t5(name: str, model: Any, state: Mapping[str, Tensor]) -> Tensor:
    """Our parameter of this name."""
    config = model.config
    if name.endswith("distances.weight"):
        return distances(name, model, state)
    tensor = state[t5_name(name, config.is_gated_act)]
    if name.endswith("q_proj.weight"):
        return tensor * config.d_kv**0.5
    if name == "decoder.norm.weight" and scales_logits(config):
        return tensor * config.d_model**-0.5
    return tensor


def scales_logits(config: Any) -> bool:
    """Whether the class multiplies the decoder's output by D^-0.5: the first T5, and UMT5."""
    if config.model_type == "umt5":
        return bool(config.tie_word_embeddings)
    return bool(getattr(config, "scale_decoder_outputs", False))  # mT5 has no such field


def distances(name: str, model: Any, state: Mapping[str, Tensor]) -> Tensor:
    """The bias of distances (buckets, heads) of one attention. A T5 has one table, in its first layer, with
    the columns of all heads that some layer has."""
    own = t5_name(name, gated=False)
    if model.config.model_type == "umt5":
        return state[own]
    stack, layer = name.split(".")[0], int(name.split(".")[2])
    rows = heads_that_stay(model, stack)
    of_any = [head for head in range(len(rows[layer])) if any(row[head] for row in rows.values())]
    columns = [place for place, head in enumerate(of_any) if rows[layer][head]]
    return state[re.sub(r"block\.\d+", "block.0", own)][:, columns]


def heads_that_stay(model: Any, stack: str) -> dict[int, Tensor]:
    """For each self-attention of a stack which heads are left, (H at first) bool."""
    left = heads_left(model, KINDS).items()
    return {site.layer: row for site, row in left if site.kind == SELF[stack]}


# ---------------------------------------------------------------- ours as theirs


def is_like_t5(model: Transformer) -> bool:
    """Whether the model is built as a T5."""
    config = model.config
    return config.norm_kind == "rms" and config.positions == "relative"


def t5_needs(model: Transformer) -> dict[str, bool]:
    """What a T5 needs of a model that `is_like_t5`, and whether it is so."""
    config = model.config
    return {
        "norms before all sub-layers": {config.norm, config.norm_of("decoder")} == {"pre"},
        "a norm at the end of both stacks": config.final_norm == "both",
        "linear layers without biases": not (config.biases or config.output_bias),
        "embeddings as they are": not (config.embedding_scale or config.embedding_norm),
        "one number of heads": config.heads_of_decoder == config.heads,
        "one width of feed-forward layers": config.decoder_ffn in (0, config.ffn),
        "attention in the decoder": config.decoder_mixer == "attention",
        "gelu_new in gated layers": (config.feed_forward, config.activation) != ("gated", "gelu"),
        "as many source as target pieces": model.source_vocab == model.target_vocab,
    }


def joint_distances(model: Transformer, stack: str) -> Tensor | None:
    """The distances (buckets, heads) of all heads that some layer has, where layers agree; else None. A
    layer without heads is written with its head 0, which adds nothing."""
    columns: dict[int, Tensor] = {}
    rows = heads_that_stay(model, stack)
    for layer, row in rows.items():
        own = getattr(model, stack).layers[layer].self_attention.distances.weight.detach()
        for head, column in zip(row.nonzero().flatten().tolist(), own.unbind(1), strict=True):
            if not columns.setdefault(head, column).equal(column):
                return None
    if not all(row.any() for row in rows.values()):
        columns.setdefault(0, model.output.weight.new_zeros(model.config.position_buckets))
    return torch.stack([columns[head] for head in sorted(columns)], 1)


def type_of(model: Transformer) -> str:
    """The model_type of the class that computes the same."""
    return "umt5" if any(joint_distances(model, stack) is None for stack in SELF) else "t5"


def t5_state(model: Transformer, added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by their names; those that are tied are there once. added: of heads that add nothing."""
    config, kind = model.config, type_of(model)
    gated, found = config.feed_forward == "gated", {}
    factors = {"q_proj": config.width_of("encoder") ** -0.5}
    if kind == "umt5":
        factors["decoder.norm"] = config.d_model**0.5
    for name, tensor in {**model.state_dict(), **added}.items():
        factor = next((each for part, each in factors.items() if part in name), 1.0)
        found[t5_name(name, gated)] = tensor.detach() * factor
    if kind == "t5":
        distances = [name for name in found if "relative_attention_bias" in name]
        for name in distances:
            del found[name]
        for name in (name for name in distances if ".block.0." in name):
            table = joint_distances(model, name.split(".")[0])
            assert table is not None  # type_of
            found[name] = table.clone()
    found[T5_TABLE] = found[THEIR_TABLES[0]].clone()
    for name in THEIR_TABLES:
        if found[name].equal(found[T5_TABLE]):
            del found[name]
    return found


def t5_config(model: Transformer) -> dict[str, Any]:
    """The content of config.json, but for what all families have."""
    config, name = model.config, type_of(model)
    activation = {"swish": "silu"}.get(config.activation, config.activation)
    kind = f"gated-{activation}" if config.feed_forward == "gated" else activation
    return {
        "architectures": [T5_CLASSES[name]],
        "model_type": name,
        "vocab_size": model.target_vocab,
        "d_model": config.d_model,
        "d_kv": config.width_of("encoder"),
        "d_ff": config.ffn,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": config.position_buckets,
        "relative_attention_max_distance": config.position_reach,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": kind.replace("gated-gelu_new", "gated-gelu"),  # as they call it
        "is_encoder_decoder": True,
        "tie_word_embeddings": name == "umt5",  # whether the class scales its logits, no more
        "dtype": "float32",
    }
