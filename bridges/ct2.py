"""CTranslate2: translation in C++ on a CPU, in fp32 or int8.   https://opennmt.net/CTranslate2; read in its
sources, tried with 4.8.5.

A decoder or encoder of CTranslate2 has one number of heads (self- and cross-attention of a decoder share it),
but every attention has a head width of its own. So an attention is filled up to the largest number in its
stack with heads of zeros: their values are 0, W_O's columns too, and nothing is added. One that lost all its
heads gets heads of width 1. A feed-forward layer takes its width from its weights; one that lost all its
neurons gets one of zeros.

Letters: D model width, H heads, K head width.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from ctranslate2.specs import attention_spec, common_spec, transformer_spec
from torch import Tensor, nn

from headgates.bridges.ct2_search import CANDIDATES_FILE, piece_names
from headgates.bridges.foreign import STACK_OF_SIDE, position_table
from headgates.data.shortlist import Shortlist
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import ALL_KINDS, find_sites
from headgates.models.attention import MultiHeadAttention
from headgates.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Transformer
from headgates.models.translator import Translator
from headgates.models.trimmed import with_pieces

CT2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_new": "GELUTanh", "swish": "SWISH"}


def write(translator: Translator, folder: Path, *, aligning: Sequence[tuple[int, int]] = ()) -> None:
    """model.bin (fp32; int8 is made from it when it is opened), config.json and the vocabularies as
    CTranslate2 reads them, into `folder`.

    aligning: (layer, head) of the cross heads that align words, best first (analysis/alignment.py). The best
    comes first in its layer, and is what CTranslate2 gives with return_attention=True; config.json lists all
    as `alignment_heads`, numbered as in the file.

    Plain CTranslate2 runs it: sources are the tokenizer's pieces without their end, unless the two sides have
    different ends, and forced first pieces are its target_prefix. Raises ValueError at a model with gates, at
    vocabularies that do not fit it, or at a head to align with that there is not."""
    model = translator.model
    if any(getattr(module, "gate", None) is not None for module in find_sites(model, ALL_KINDS).values()):
        raise ValueError(
            "the model has gates; remove its closed heads first (gates.remove, or "
            "bridges.formats.without_gates)"
        )
    source, target = piece_names(translator.source_vocab), piece_names(translator.target_vocab)
    specials = model.target_specials
    beginning, end, unknown = target[specials.beginning], target[specials.end], target[specials.unknown]
    if source[model.source_specials.unknown] != unknown:
        raise ValueError(
            f"the vocabularies name the unknown piece {source[model.source_specials.unknown]!r} and "
            f"{unknown!r}; CTranslate2 has one name "
            "for both"
        )
    orders = [*range(len(source))], [*range(len(target))]
    if translator.shortlist is not None:
        orders = specials_first(model)
        model = with_pieces(model, orders)
    spec = specification(model, aligning[0] if aligning else None)
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token = beginning, end, unknown
    config.decoder_start_token, config.add_source_eos = beginning, source[model.source_specials.end] == end
    spec.register_source_vocabulary([source[i] for i in orders[0]])
    spec.register_target_vocabulary([target[i] for i in orders[1]])
    spec.validate()
    spec.optimize()  # tied tables are stored once
    spec.save(str(folder))
    if translator.shortlist is not None:
        every_source = translator.model.source_specials.end  # ends in it
        lists = candidate_lines(translator.shortlist, source, target, specials, every_source)
        (folder / CANDIDATES_FILE).write_text("".join(lists), encoding="utf-8")
    if aligning:
        path = folder / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        best = aligning[0]
        content["alignment_heads"] = [
            [layer, head if layer != best[0] or head > best[1] else 0 if head == best[1] else head + 1]
            for layer, head in aligning
        ]
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def specials_first(model: Transformer) -> tuple[list[int], list[int]]:
    """The ids of both sides with the target's special tokens before all others: CTranslate2 goes on using the
    place that such a token had among the candidates of the first batch, which so is the same in all."""
    specials = sorted({*model.target_specials.always_known})
    first = [*specials, *(i for i in range(model.target_vocab) if i not in specials)]
    tied = model.config.embeddings == "tied"
    return first if tied else [*range(model.source_vocab)], first


def candidate_lines(
    shortlist: Shortlist, source: Sequence[str], target: Sequence[str], specials: SpecialTokens, end: int
) -> Iterator[str]:
    """The lines of CTranslate2's map from source pieces to target pieces, whose first, with no source piece,
    has those that are always candidates. source, target: the names of the pieces. end: the source's, which
    every source has."""
    always = shortlist.candidates([end], specials.always_known)
    for name, ids in [("", always), *((name, shortlist.of_piece(i)) for i, name in enumerate(source))]:
        if len(ids):
            yield f"{name}\t{' '.join(target[i] for i in ids)}\n"


def specification(model: Transformer, aligning: tuple[int, int] | None = None) -> Any:
    """Return a `TransformerSpec` with the weights of the model. aligning: (layer, head) of the cross head
    whose attention weights CTranslate2 is to give."""
    config = model.config
    counts = [layer.cross_attention.heads for layer in model.decoder.layers]
    if aligning is not None and not any(
        aligning == (n, h) for n, row in enumerate(counts) for h in range(row)
    ):
        raise ValueError(f"there is no cross head {aligning[1]} of layer {aligning[0]} to align with")
    if config.decoder_mixer != "attention":
        raise ValueError(
            f"CTranslate2 has no decoder with decoder_mixer {config.decoder_mixer!r}; take --to onnx "
            "or marian"
        )
    relative = config.positions == "relative"
    options = {
        "activation": getattr(common_spec.Activation, CT2_ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.embedding_norm,
        "rms_norm": config.norm_kind == "rms",
        "ffn_glu": config.feed_forward == "gated",
        "relative_attention_bias": relative,
        "head_dim": 1,
    }
    specs = []
    for side, stack, kind in (
        ("source", model.encoder, transformer_spec.TransformerEncoderSpec),
        ("target", model.decoder, transformer_spec.TransformerDecoderSpec),
    ):
        # at least one head: CTranslate2 divides by their number
        heads = max(1, *(each.heads for layer in stack.layers for each in attentions(layer).values()))
        spec = kind(
            len(stack.layers),
            heads,
            **options,
            pre_norm=config.norm_of(STACK_OF_SIDE[side]) == "pre",
            no_final_norm=isinstance(stack.norm, nn.Identity),
        )
        for number, (own, layer) in enumerate(zip(spec.layer, stack.layers, strict=True)):
            for name, attention in attentions(layer).items():
                first = aligning[1] if aligning and name == "attention" and number == aligning[0] else 0
                fill_attention(getattr(own, name), attention, heads, first)
            fill(own.self_attention.layer_norm, layer.self_residual.norm)
            if isinstance(layer, DecoderLayer):
                fill(own.attention.layer_norm, layer.cross_residual.norm)
            fill(own.ffn.layer_norm, layer.feed_residual.norm)
            fill_feed_forward(own.ffn, layer.feed_forward)
        spec.scale_embeddings = config.embedding_scale  # by sqrt(D)
        table = spec.embeddings[0] if side == "source" else spec.embeddings
        fill(table, getattr(model, f"{side}_embedding"))
        # CTranslate2's own sinusoids begin at 1, have other frequencies, and all sines before all cosines
        if not relative:
            spec.position_encodings.encodings = to_numpy(position_table(model, side))
        if not isinstance(stack.norm, nn.Identity):
            fill(spec.layer_norm, stack.norm)
        if config.embedding_norm:
            fill(spec.layernorm_embedding, getattr(model, f"{side}_norm"))
        specs.append(spec)
    if aligning is not None:
        specs[1].alignment_layer = np.int16(aligning[0])
    fill(specs[1].projection, model.output)
    whole = transformer_spec.TransformerSpec(*specs)
    whole.config.layer_norm_epsilon = config.norm_eps
    return whole


def attentions(layer: EncoderLayer | DecoderLayer) -> dict[str, MultiHeadAttention]:
    """The attentions of a layer by their names in CTranslate2."""
    found = {"self_attention": layer.self_attention}
    return found | {"attention": layer.cross_attention} if isinstance(layer, DecoderLayer) else found


def fill_attention(
    spec: attention_spec.MultiHeadAttentionSpec, attention: MultiHeadAttention, heads: int, first: int = 0
) -> None:
    """Copy the heads of an attention into `spec`, head `first` before the others, and fill it with heads of
    zeros up to `heads`."""
    width = attention.head_width if attention.heads else 1
    missing = heads * width - attention.q_proj.out_features
    rows = torch.arange(attention.q_proj.out_features).view(attention.heads, attention.head_width)
    order = torch.cat([rows[first : first + 1], rows[:first], rows[first + 1 :]]).flatten()
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    # self-attention projects all three at once
    fused = [[q, k, v]] if len(spec.linear) == 2 else [[q], [k, v]]
    for linear, parts in zip(spec.linear, fused, strict=False):
        linear.weight = to_numpy(torch.cat([F.pad(part.weight[order], (0, 0, 0, missing)) for part in parts]))
        if q.bias is not None:
            linear.bias = to_numpy(torch.cat([F.pad(part.bias[order], (0, missing)) for part in parts]))
    fill(spec.linear[-1], attention.out_proj)
    spec.linear[-1].weight = to_numpy(F.pad(attention.out_proj.weight[:, order], (0, missing)))  # (D, H * K)
    spec.head_dim = np.int32(width)
    if (distances := attention.distances) is not None:
        spec.relative_attention_bias = to_numpy(F.pad(distances.weight, (0, heads - attention.heads)))
        spec.relative_attention_max_distance = np.int32(distances.reach)


def fill_feed_forward(spec: Any, layer: FeedForward) -> None:
    """Copy the neurons of a feed-forward layer into `spec`, or one of zeros where none is left."""
    missing = int(not layer.outer.in_features)
    factor = {} if layer.factor is None else {spec.linear_0_noact: layer.factor}
    for linear, own in ({spec.linear_0: layer.inner} | factor).items():
        linear.weight = to_numpy(F.pad(own.weight, (0, 0, 0, missing)))  # (F, D)
        if own.bias is not None:
            linear.bias = to_numpy(F.pad(own.bias, (0, missing)))
    fill(spec.linear_1, layer.outer)
    spec.linear_1.weight = to_numpy(F.pad(layer.outer.weight, (0, missing)))  # (D, F)


def fill(spec: Any, module: nn.Module) -> None:
    """Copy the weight and bias of a linear map, an embedding or a norm."""
    norm = isinstance(module, nn.LayerNorm | nn.RMSNorm)
    names = ("gamma", "beta") if norm else ("weight", "bias")
    for name, (_, tensor) in zip(names, module.named_parameters(), strict=False):
        setattr(spec, name, to_numpy(tensor))


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
