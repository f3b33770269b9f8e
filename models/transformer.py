"""An encoder-decoder Transformer, top to bottom.   Vaswani et al. 2017, with pre- or post-norm (Xiong et al.
2020), or as T5 (Raffel et al. 2020).

A source is its pieces and the end; the decoder reads the beginning and the pieces (data/special_tokens.py
says which ids these are). Letters: B sentences, N rows (a sentence's beams are rows of their own), S source,
T target positions, D model width, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.configs.fields import check_ranges
from headgates.configs.settings import ModelConfig
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import ALL_KINDS, HeadGate, find_sites
from headgates.gates.attach_modes import scale_heads
from headgates.models.attention import MultiHeadAttention, linear, of_nothing, project
from headgates.models.cpu_kernels import Dropout, Linear, in_product_type
from headgates.models.decoder_state import DecoderState, KeysValues
from headgates.models.positions import DistanceBias, sinusoids
from headgates.models.ssru import SSRU

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
}
LARGEST_SINUSOIDS = 2**28  # numbers, 1 GiB: their table is computed and in no file, so nothing else bounds it
Weights = dict[str, Tensor]  # site name -> attention weights (B, H, L, S)


class FeedForward(nn.Module):
    """`ffn` neurons, each activation(w x), or in a gated layer activation(w x) * v x, where v are the rows
    of `factor`; with none left the bias of `outer` comes out."""

    def __init__(self, config: ModelConfig, ffn: int):
        super().__init__()
        self.inner = linear(config.d_model, ffn, config.biases)
        self.outer = linear(ffn, config.d_model, config.biases)
        gated = config.feed_forward == "gated"
        self.factor = linear(config.d_model, ffn, config.biases) if gated else None
        self.dropout = Dropout(config.dropout)
        self.activation = ACTIVATIONS[config.activation]
        self.gate: HeadGate | None = None  # the slot, as an attention's

    def forward(
        self, x: Tensor, *, rows: Tensor | None = None, span: tuple[int, int] | None = None
    ) -> Tensor:
        """The output (B, L, D) for x (B, L, D); rows and span as in an attention."""
        if not self.outer.in_features:
            return of_nothing(self.outer, x)
        z = self.activation(self.inner(x))
        z = self.dropout(z if self.factor is None else z * self.factor(x))
        xi = None if self.gate is None else self.gate(rows, span)
        if xi is not None and xi.dim() > 1:
            z, xi = scale_heads(z, xi, batch_axis=0), None
        return project(z, self.outer, xi)


def norm(config: ModelConfig) -> nn.Module:
    kind = nn.RMSNorm if config.norm_kind == "rms" else nn.LayerNorm
    return kind(config.d_model, eps=config.norm_eps)


def make_attention(config: ModelConfig, heads: int, stack: str, *, mixer: bool = True) -> MultiHeadAttention:
    """A self-attention of the stack, or with mixer=False its cross-attention, which has no positions."""
    relative = mixer and config.positions == "relative"
    return MultiHeadAttention(
        config.d_model,
        heads,
        config.width_of(stack),
        config.attention_dropout,
        biases=config.biases,
        distances=DistanceBias(config, heads, causal=stack == "decoder") if relative else None,
    )


class Residual(nn.Module):
    """x + f(norm(x)) (pre) or norm(x + f(x)) (post)."""

    def __init__(self, config: ModelConfig, stack: str):
        super().__init__()
        self.pre = config.norm_of(stack) == "pre"
        self.norm = norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        y = self.dropout(f(in_product_type(self.norm(x) if self.pre else x)))
        x = x + y.to(x.dtype)  # a sum of two types goes number by number on a CPU
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, heads: int, ffn: int):
        super().__init__()
        self.self_attention = make_attention(config, heads, "encoder")
        self.feed_forward = FeedForward(config, ffn)
        self.self_residual, self.feed_residual = (Residual(config, "encoder") for _ in range(2))
        self.skipped = False  # gates/depth.py

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        if self.skipped:
            return x
        attend = self.self_attention
        x = self.self_residual(x, lambda h: attend(h, *attend.keys_values(h), bias))
        return self.feed_residual(x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, self_heads: int, cross_heads: int, ffn: int):
        super().__init__()
        self.self_attention: Any = (  # either, told apart by isinstance
            SSRU(config.d_model)
            if config.decoder_mixer == "ssru"
            else make_attention(config, self_heads, "decoder")
        )
        self.cross_attention = make_attention(config, cross_heads, "decoder", mixer=False)
        self.feed_forward = FeedForward(config, ffn)
        self.self_residual, self.cross_residual, self.feed_residual = (
            Residual(config, "decoder") for _ in range(3)
        )
        self.skipped = False  # gates/depth.py

    def forward(self, x: Tensor, memory: Tensor | KeysValues, causal: Tensor, bias: Tensor) -> Tensor:
        """The layer's output for whole sequences x (B, T, D). memory: (B, S, D), or its keys and values."""
        if self.skipped:
            return x
        mix = self.self_attention
        cross = self.cross_attention.keys_values(memory) if isinstance(memory, Tensor) else memory
        x = self.self_residual(x, lambda h: mix(h, *mix.keys_values(h), causal))
        x = self.cross_residual(x, lambda h: self.cross_attention(h, *cross, bias))
        return self.feed_residual(x, self.feed_forward)

    def step(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """The layer's output for one new position of every row, x (N, 1, D); `state` has the earlier keys and
        values."""
        if self.skipped:
            return x
        span = (state.length, 1)

        def mix(h: Tensor) -> Tensor:
            mixer = self.self_attention
            before = (state.newest(layer),) if isinstance(mixer, SSRU) else ()
            keys, values = state.grow(layer, *mixer.keys_values(h, *before))
            return mixer(h, keys, values, rows=state.row_sentences, span=span)

        def cross(h: Tensor) -> Tensor:
            # the beams of a sentence are query positions of one attention, so its source keys are not copied
            h = h.view(len(state.sentences), -1, h.shape[-1])  # (B, N / B, D)
            keys, values = state.cross[layer]
            y = self.cross_attention(h, keys, values, state.cross_bias, rows=state.sentences, span=span)
            return y.view_as(x)

        x = self.cross_residual(self.self_residual(x, mix), cross)
        return self.feed_residual(x, partial(self.feed_forward, rows=state.row_sentences, span=span))


class Encoder(nn.Module):
    def __init__(self, config: ModelConfig, heads: dict[str, int]):
        super().__init__()
        whole = config.heads_of_kinds
        self.layers: Any = nn.ModuleList(  # of EncoderLayer
            EncoderLayer(
                config,
                *(heads.get(f"encoder.{i}.{kind}", whole[kind]) for kind in ("enc-self", "enc-ffn")),
            )
            for i in range(config.encoder_layers)
        )
        self.norm = final_norm(config, "encoder")

    def forward(self, x: Tensor, bias: Tensor, *, first: int = 0) -> Tensor:
        """The memory (B, S, D), given the input x (B, S, D) of layer `first`."""
        for layer in list(self.layers)[first:]:
            x = layer(x, bias)
        return in_product_type(self.norm(x))  # all that reads the memory is a product


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig, heads: dict[str, int]):
        super().__init__()
        whole = config.heads_of_kinds
        self.layers: Any = nn.ModuleList(  # of DecoderLayer
            DecoderLayer(
                config,
                *(heads.get(f"decoder.{i}.{kind}", whole[kind]) for kind in ("dec-self", "cross", "dec-ffn")),
            )
            for i in range(config.decoder_layers)
        )
        self.norm = final_norm(config, "decoder")

    def forward(
        self, x: Tensor, memory: Tensor | list[KeysValues], bias: Tensor, *, first: int = 0
    ) -> Tensor:
        """The normed states (B, T, D), given the input x (B, T, D) of layer `first`.

        memory: (B, S, D), or the keys and values that every layer computes from it."""
        length = x.shape[1]
        causal = torch.full((length, length), -torch.inf, device=x.device, dtype=bias.dtype).triu(1)
        for i, layer in list(enumerate(self.layers))[first:]:
            x = layer(x, memory if isinstance(memory, Tensor) else memory[i], causal, bias)
        return self.norm(x)


def final_norm(config: ModelConfig, stack: str) -> nn.Module:
    return norm(config) if config.has_final_norm(stack) else nn.Identity()


class Transformer(nn.Module):
    """Sources (B, S) and target inputs (B, T) to logits (B, T, V).

    heads: or neurons, of each site that has fewer than the configuration says ("decoder.1.cross" -> 3).
    source_specials, target_specials: how the vocabularies number their special tokens. Raises ValueError at
    settings that do not fit together."""

    sinusoids: Tensor  # (L, D), where positions are sinusoids

    def __init__(
        self,
        config: ModelConfig,
        source_vocab: int,
        target_vocab: int,
        heads: dict[str, int] | None = None,
        *,
        source_specials: SpecialTokens = SpecialTokens(),
        target_specials: SpecialTokens = SpecialTokens(),
    ):
        super().__init__()
        check_ranges(config, "model.")
        if config.sinusoids and config.max_positions * config.d_model > LARGEST_SINUSOIDS:
            raise ValueError(f"{config.max_positions} positions of width {config.d_model} fill the memory")
        for whole in (config.heads, config.heads_of_decoder):
            if not config.head_width and config.d_model % whole:
                raise ValueError(
                    f"d_model {config.d_model} cannot be split into {whole} heads; take a divisor of "
                    f"{config.d_model}"
                )
        if config.position_reach <= config.position_buckets // 2:
            raise ValueError(
                f"{config.position_buckets} buckets of distances end before position_reach "
                f"{config.position_reach}; expected a reach above {config.position_buckets // 2}"
            )
        if config.embeddings == "tied" and source_vocab != target_vocab:
            raise ValueError(
                "embeddings 'tied' need one vocabulary for both languages (--text.joint true), or take "
                "'tied-decoder'"
            )
        self.config, self.source_vocab, self.target_vocab = config, source_vocab, target_vocab
        self.source_specials, self.target_specials = source_specials, target_specials
        self.source_embedding = nn.Embedding(source_vocab, config.d_model)
        self.target_embedding = (
            self.source_embedding
            if config.embeddings == "tied"
            else nn.Embedding(target_vocab, config.d_model)
        )
        self.source_norm, self.target_norm = (
            norm(config) if config.embedding_norm else nn.Identity() for _ in range(2)
        )
        self.output = Linear(config.d_model, target_vocab, bias=config.output_bias)
        self.dropout = Dropout(config.dropout)
        self.encoder, self.decoder = Encoder(config, heads or {}), Decoder(config, heads or {})
        if config.positions == "learned":
            self.source_positions = nn.Embedding(config.max_positions, config.d_model)
            self.target_positions = nn.Embedding(config.max_positions, config.d_model)
        elif config.sinusoids:
            self.register_buffer("sinusoids", sinusoids(config, config.max_positions), persistent=False)
        self.reset_parameters()
        self.tie()

    def tie(self) -> None:
        """Make one of the tables that the settings share."""
        if self.config.embeddings != "separate":
            self.output.weight = self.target_embedding.weight

    def assign(self, weights: Mapping[str, Tensor]) -> "Transformer":
        """Take these tensors themselves as the weights of a model that was built on the device meta, and go
        into evaluation mode: no copy is made where all are fp32 or all bf16, else all become fp32.

        Raises RuntimeError where they do not fit."""
        own = (
            torch.bfloat16 if {each.dtype for each in weights.values()} == {torch.bfloat16} else torch.float32
        )
        self.load_state_dict({name: each.to(own) for name, each in weights.items()}, assign=True)
        self.tie()
        if self.config.sinusoids:
            self.sinusoids = sinusoids(self.config, self.config.max_positions)
        return self.eval()

    @property
    def heads(self) -> dict[str, int]:
        """Heads, or neurons, of each site that has fewer than the configuration says."""
        whole = self.config.heads_of_kinds
        sites = find_sites(self, ALL_KINDS)
        return {site.name: site.heads for site in sites if site.heads != whole[site.kind]}

    def reset_parameters(self) -> None:
        """Xavier for the projections, zero biases, embeddings of variance 1 / D (Vaswani et al.'s scaling
        makes them 1)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if module.weight.numel():
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def embed(self, ids: Tensor, side: str, start: int = 0) -> Tensor:
        """Return what the first layer gets (B, L, D) for ids (B, L) at positions start, start + 1, ..."""
        return self.dropout(getattr(self, f"{side}_norm")(self.embeddings(ids, side, start)))

    def embeddings(self, ids: Tensor, side: str, start: int = 0) -> Tensor:
        """Return the sums (B, L, D) of embeddings and position vectors, before a norm."""
        table: nn.Embedding = getattr(self, f"{side}_embedding")
        x = table(ids) * math.sqrt(self.config.d_model) if self.config.embedding_scale else table(ids)
        if self.config.positions == "relative":
            return x
        end = start + ids.shape[1]
        if self.config.positions == "learned":
            if end > self.config.max_positions:
                raise ValueError(
                    f"a {side} of {end} tokens is longer than the {self.config.max_positions} learned "
                    "positions; "
                    "split it, or train with a larger model.max_positions"
                )
            positions = getattr(self, f"{side}_positions").weight[start:end]
        else:
            if end > len(self.sinusoids):
                self.sinusoids = sinusoids(self.config, 2 * end).to(self.sinusoids.device)
            positions = self.sinusoids[start:end].to(table.weight.dtype)
        return x + positions

    def encode(self, source: Tensor, weights: Weights | None = None) -> tuple[Tensor, Tensor]:
        """The memory (B, S, D) and the additive mask of its padding (B, 1, 1, S); weights as in `forward`."""
        bias = self.source_bias(source)
        with kept_weights(self, weights):
            return self.encoder(self.embed(source, "source"), bias), bias

    def source_bias(self, source: Tensor) -> Tensor:
        """The additive mask (B, 1, 1, S) of sources (B, S): 0, or -inf at padding."""
        zeros = torch.zeros(source.shape, dtype=self.source_embedding.weight.dtype, device=source.device)
        padding = source == self.source_specials.padding
        return zeros.masked_fill_(padding, -torch.inf)[:, None, None, :]

    def decode(
        self, memory: Tensor, bias: Tensor, target_in: Tensor, weights: Weights | None = None
    ) -> Tensor:
        """The normed decoder states (B, T, D), to which `output` is applied."""
        with kept_weights(self, weights):
            return self.decoder(self.embed(target_in, "target"), memory, bias)

    def forward(self, source: Tensor, target_in: Tensor, weights: Weights | None = None) -> Tensor:
        """The logits (B, T, V). `weights`, if given, is filled with the attention weights (B, H, L, S) of
        every site."""
        memory, bias = self.encode(source, weights)
        return self.output(self.decode(memory, bias, target_in, weights))

    def start(self, source: Tensor, beam: int = 1) -> DecoderState:
        """Encode (B, S) sources and prepare B * beam rows for `step`."""
        memory, bias = self.encode(source)
        sentences = torch.arange(len(source), device=source.device)
        none = memory[:, :0]  # a skipped layer reads nothing
        both = [
            layer.cross_attention.keys_values(none if layer.skipped else memory)
            for layer in self.decoder.layers
        ]
        cross = [(keys.contiguous(), values.contiguous()) for keys, values in both]  # every step reads them
        return DecoderState(cross, bias, sentences, sentences.repeat_interleave(beam), [None] * len(cross))

    def step(self, ids: Tensor, state: DecoderState, output: nn.Module | None = None) -> Tensor:
        """Logits (N, V) after the last token ids (N,) of every row; the state grows by one position. output:
        in place of the output layer, such as one with some of its rows."""
        x = self.embed(ids[:, None], "target", state.length)
        for i, layer in enumerate(self.decoder.layers):
            x = layer.step(x, state, i)
        state.length += 1
        return (output or self.output)(self.decoder.norm(x)).squeeze(1)


@contextmanager
def kept_weights(model: nn.Module, weights: Any) -> Iterator[None]:
    """Meanwhile every attention puts its weights (B, H, L, S) into `weights`, unless that is None."""
    sites: Mapping[Any, Any] = {} if weights is None else find_sites(model)
    for site, attention in sites.items():
        attention.keep = partial(weights.__setitem__, site.name)
    try:
        yield
    finally:
        for attention in sites.values():
            attention.keep = None
