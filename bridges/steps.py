"""An exported model is two programs: the encoder, and the decoder with a cache.   step_search.py searches
over them.

    encoder   source (B, S)  ->  bias (B, 1, 1, S); keys, values (B, H, S, K) of every cross attention
    decoder   ids (B, k, L), length (), bias, those keys and values, past keys, values (B, k, H, T, K) of
    every self-attention
              ->  logits (B, k, L, V); keys, values (B, k, H, T + L, K)

An SSRU in self-attention's place has one past tensor, its states (B, k, 1, T, D), by the name of keys. L is 1
in a step of search; with T = 0 and L = the length of the target, the decoder scores whole sentences. Heads
differ by layer; an attention without heads has no input and no output. ids and length are int64, everything
else is float32, all dimensions but H, K, V and the ranks may differ from call to call. Letters: B sentences,
k beams of each, S source, L new and T earlier target positions, H heads, K head width, D model width, V
vocabulary.
"""

import copy
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from headgates.models.attention import MultiHeadAttention, of_nothing
from headgates.models.positions import frequencies, waves
from headgates.models.ssru import SSRU, decays
from headgates.models.transformer import Transformer


class Embed(nn.Module):
    """Ids (N, L) at positions start, start + 1, ... to (N, L, D). Sinusoids are computed, so they have no
    end; learned positions do."""

    frequency: Tensor  # (ceil(D / 2),), unless positions are learned

    def __init__(self, model: Transformer, side: str):
        super().__init__()
        self.config = model.config
        self.table: nn.Embedding = getattr(model, f"{side}_embedding")
        self.norm: nn.Module = getattr(model, f"{side}_norm")
        if self.config.positions == "learned":
            self.positions: nn.Embedding = getattr(model, f"{side}_positions")
        elif self.config.sinusoids:
            self.register_buffer("frequency", frequencies(self.config))

    def forward(self, ids: Tensor, start: Tensor) -> Tensor:
        scale = math.sqrt(self.config.d_model) if self.config.embedding_scale else 1.0
        x = self.table(ids) * scale
        if self.config.positions == "relative":
            return self.norm(x)
        position = start + torch.arange(ids.shape[1])  # (L,)
        learned = self.config.positions == "learned"
        positions = self.positions(position) if learned else waves(self.config, position, self.frequency)
        return self.norm(x + positions)


class ScoreBias(nn.Module):
    """What is added to the scores of a self-attention: the mask, and with relative positions the bias of the
    distances. That of each distance within the reach is in a table: a logarithm that a runtime rounds
    otherwise would be of another bucket."""

    table: Tensor  # (2 reach + 1, H)

    def __init__(self, mixer: MultiHeadAttention | SSRU):
        super().__init__()
        distances = None if isinstance(mixer, SSRU) or not mixer.heads else mixer.distances
        self.reach = 0 if distances is None else distances.reach
        if distances is not None:
            near = torch.arange(-self.reach, self.reach + 1)
            self.register_buffer("table", distances.weight.detach()[distances.buckets(near)])

    def forward(self, mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        """(.., L, S) for a mask that broadcasts to it, and positions of queries (L,) and keys (S,)."""
        if not self.reach:
            return mask
        distance = (keys - queries[:, None]).clamp(-self.reach, self.reach) + self.reach  # (L, S)
        return mask + self.table[distance].permute(2, 0, 1)


def attend_written_out(
    attention: MultiHeadAttention, x: Tensor, past: Sequence[Tensor], bias: Tensor
) -> Tensor:
    """The attention's output (N, L, D) for queries x (N, L, D), written out: models/attention.py chooses its
    way by the shapes. past: keys and values, none where it has no heads."""
    if not past:
        return of_nothing(attention.out_proj, x)
    keys, values = past
    q = attention.split(attention.q_proj(x)) * attention.head_width**-0.5  # (N, H, L, K)
    weights = torch.softmax(torch.matmul(q, keys.transpose(-1, -2)) + bias, dim=-1)
    return attention.out_proj(torch.matmul(weights, values).transpose(1, 2).flatten(2))


def keys_values(attention: MultiHeadAttention, x: Tensor) -> Sequence[Tensor]:
    """k and v (N, H, L, K) of x (N, L, D), none where the attention has no heads."""
    return attention.keys_values(x) if attention.heads else ()


def self_attend(attention: MultiHeadAttention, bias: Tensor, x: Tensor) -> Tensor:
    return attend_written_out(attention, x, keys_values(attention, x), bias)


def go_on(unit: SSRU, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The SSRU's output (N, L, D) for x (N, L, D) after earlier states (N, 1, T, D), and all states (N, 1, T
    + L, D), without a loop."""
    forget = unit.forget(x)  # (N, L, D)
    before = F.pad(states[:, 0], (0, 0, 1, 0))[:, -1:]  # the newest state, or 0 where T is 0
    added = torch.cat([before, torch.sigmoid(-forget) * unit.update(x)], dim=1)  # (N, 1 + L, D)
    left = decays(F.pad(F.logsigmoid(forget), (0, 0, 1, 0)))  # (N, 1 + L, 1 + L, D)
    new = (left * added[:, None]).sum(2)[:, 1:]
    return F.relu(new), torch.cat([states, new[:, None]], dim=2)


def copy_without(module: nn.Module, *unused: str) -> nn.Module:
    """Return a copy without the submodules that its program does not use, because torch.export would save
    them."""
    smaller = copy.deepcopy(module)
    for name in unused:
        owner, _, attribute = name.rpartition(".")
        delattr(smaller.get_submodule(owner), attribute)
    return smaller


class EncoderProgram(nn.Module):
    """Source ids to the padding's bias and every cross attention's keys and values."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.embed, self.padding = Embed(model, "source"), model.source_specials.padding
        self.layers: Any = model.encoder.layers
        self.norm = model.encoder.norm
        self.score_bias = nn.ModuleList(ScoreBias(layer.self_attention) for layer in self.layers)
        self.decoder_cross: Any = nn.ModuleList(
            copy_without(layer.cross_attention, "q_proj", "out_proj") for layer in model.decoder.layers
        )

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        # the smallest number is as good as -inf after softmax, and never makes NaN of a runtime's own way to
        # write it
        bias = (source == self.padding)[:, None, None, :] * torch.finfo(torch.float32).min  # (B, 1, 1, S)
        x = self.embed(source, torch.zeros((), dtype=torch.int64))
        place = torch.arange(source.shape[1])
        for layer, add in zip(self.layers, self.score_bias, strict=True):
            x = layer.self_residual(x, partial(self_attend, layer.self_attention, add(bias, place, place)))
            x = layer.feed_residual(x, layer.feed_forward)
        memory = self.norm(x)
        return bias, *(each for cross in self.decoder_cross for each in keys_values(cross, memory))


class DecoderProgram(nn.Module):
    """L further positions of every beam, given the keys and values of the T earlier ones."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.embed = Embed(model, "target")
        unused = ("cross_attention.k_proj", "cross_attention.v_proj")
        layers: Any = [copy_without(layer, *unused) for layer in model.decoder.layers]
        self.layers: Any = nn.ModuleList(layers)
        self.score_bias: Any = nn.ModuleList(ScoreBias(layer.self_attention) for layer in layers)
        self.norm, self.output = model.decoder.norm, model.output

    def forward(
        self, ids: Tensor, length: Tensor, bias: Tensor, cross: list[Tensor], past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        sentences, beams, positions = ids.shape
        # said before they meet: else torch.export asks at every product of them, and forbids a beam of 1 in
        # the end
        for tensor in cross:
            torch._check(tensor.shape[0] == sentences)
            torch._check(tensor.shape[2] == bias.shape[3])
        for tensor in past:
            torch._check(tensor.shape[0] == sentences)
            torch._check(tensor.shape[1] == beams)
            torch._check(tensor.shape[3] == past[0].shape[3])
        x = self.embed(ids.flatten(0, 1), length)  # (N, L, D), N = B * k
        new = torch.arange(positions)
        # a new position sees all earlier ones, itself, and no later one
        place = torch.arange(past[0].shape[3] + positions) - past[0].shape[3] if past else new
        causal = (place > new[:, None]) * torch.finfo(torch.float32).min  # (L, T + L)
        cross_left, past_left = iter(cross), iter(past)
        grown: list[Tensor] = []

        def mix(mixer: MultiHeadAttention | SSRU, add: ScoreBias, h: Tensor) -> Tensor:
            """Self-attention, or an SSRU in its place, whose keys and values grow by those of h (N, L, D)."""
            old = [next(past_left).flatten(0, 1) for _ in past_sizes(mixer)]
            if isinstance(mixer, SSRU):
                y, *both = go_on(mixer, h, *old)
            else:
                # (N, H, T + L, K)
                both = [torch.cat(pair, dim=2) for pair in zip(old, keys_values(mixer, h), strict=True)]
                y = attend_written_out(mixer, h, both, add(causal, new, place))
            grown.extend(tensor.unflatten(0, (sentences, beams)) for tensor in both)
            return y

        def look(attention: MultiHeadAttention, h: Tensor) -> Tensor:
            """Cross-attention. The beams of a sentence are query positions of one attention, so its source
            keys are never copied."""
            h = h.unflatten(0, (sentences, beams)).flatten(1, 2)  # (B, k * L, D)
            y = attend_written_out(attention, h, list(islice(cross_left, 2 if attention.heads else 0)), bias)
            return y.unflatten(1, (beams, positions)).flatten(0, 1)

        for layer, add in zip(self.layers, self.score_bias, strict=True):
            x = layer.self_residual(x, partial(mix, layer.self_attention, add))
            x = layer.cross_residual(x, partial(look, layer.cross_attention))
            x = layer.feed_residual(x, layer.feed_forward)
        # as one matrix: so ONNX keeps a product with the table itself, which embeds too, and no second,
        # transposed one
        logits = self.output(self.norm(x).flatten(0, 1))
        return logits.view(sentences, beams, positions, -1), *grown


@dataclass(frozen=True)
class Program:
    """A module with example arguments, their dimensions that differ from call to call, and the names of its
    inputs and outputs in order."""

    module: nn.Module
    arguments: tuple[Any, ...]
    dimensions: tuple[Any, ...]  # for each argument, {axis: Dim}; a list of them where it is a list
    inputs: list[str]
    outputs: list[str]

    def traced(self) -> ExportedProgram:
        with without_warnings():
            program = torch.export.export(self.module, self.arguments, dynamic_shapes=self.dimensions)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # it names files of the machine that exported
        return program


def programs(model: Transformer) -> dict[str, Program]:
    """The programs `encoder` and `decoder` of a model without gates, in evaluation mode, on the CPU."""
    # any sizes from 2 on: torch.export would take a 0 or 1 for a constant
    b, k, s, length, t = 2, 3, 5, 7, 11
    names = ("sentences", "beams", "sources", "positions", "earlier")
    sentences, beams, sources, positions, earlier = map(Dim, names)
    cross, past = (
        {
            f"{name}_{i}": size
            for i, layer in enumerate(model.decoder.layers)
            for name, size in past_sizes(getattr(layer, part)).items()
        }
        for part in ("cross_attention", "self_attention")
    )
    cross_names, past_names = [f"cross_{name}" for name in cross], [f"past_{name}" for name in past]
    encoder = Program(
        EncoderProgram(model),
        (torch.full((b, s), 3),),
        ({0: sentences, 1: sources},),
        ["source"],
        ["bias", *cross_names],
    )
    decoder = Program(
        DecoderProgram(model),
        (
            torch.full((b, k, length), 3),
            torch.tensor(t),
            torch.zeros(b, 1, 1, s),
            [torch.zeros(b, heads, s, width) for heads, width in cross.values()],
            [torch.zeros(b, k, heads, t, width) for heads, width in past.values()],
        ),
        (
            {0: sentences, 1: beams, 2: positions},
            {},
            {0: sentences, 3: sources},
            [{0: sentences, 2: sources} for _ in cross],
            [{0: sentences, 1: beams, 3: earlier} for _ in past],
        ),
        ["ids", "length", "bias", *cross_names, *past_names],
        ["logits", *past],
    )
    return {"encoder": encoder, "decoder": decoder}


def past_sizes(mixer: MultiHeadAttention | SSRU) -> dict[str, tuple[int, int]]:
    """Heads and width of what self-attention, or an SSRU in its place, keeps of earlier positions; nothing
    without heads."""
    if isinstance(mixer, SSRU):
        return {"keys": (1, mixer.forget.out_features)}
    return dict.fromkeys(("keys", "values"), (mixer.heads, mixer.head_width)) if mixer.heads else {}


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide the warnings of exporters, those of their loggers too, which their users cannot act on; errors are
    still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
