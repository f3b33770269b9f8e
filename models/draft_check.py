"""Does a model with closed heads choose every token of the draft, which is the unpruned model's translation?

Most positions need no pass over the V logits. Let delta be the change that closing the heads makes to the
state before the output; then
    logit'_i = logit_i + w_i delta,     logit'_own - logit'_i >= logit_own - logit_i - |delta| max_j |w_own -
    w_j|   (Cauchy-Schwarz)
so where this bound rules all other tokens out, only the draft's own token and the unpruned model's best few
need new logits. Letters: B sentences, A ablations, R = A * B rows (ablation by ablation), S source, T target,
D model width, V vocabulary, C candidates.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from headgates.data.batch import pad
from headgates.gates import GateBank, HeadSite
from headgates.models.decoder_state import DecodingStart
from headgates.models.search import rule_out
from headgates.models.transformer import Transformer

# nats between the two best tokens; below it, one pass and step-by-step decoding may round differently
TIE_MARGIN = 1e-4
CANDIDATES = 64
LOGIT_POSITIONS = 512  # positions whose (V,) logits are in memory together


@contextmanager
def traced(model: Transformer) -> Iterator[dict[str, list[Any]]]:
    """What passes over whole sequences meet meanwhile, layer by layer: the inputs (B, L, D) of every
    "encoder" and "decoder" layer, and the keys and values (B, H, L, K) of self-attention, "past", and of
    "cross"."""
    found: dict[str, list[Any]] = {"encoder": [], "decoder": [], "past": [], "cross": []}

    def watch(module: Any, kind: str, what: Any) -> Any:
        return module.register_forward_pre_hook(lambda _, inputs: found[kind].append(inputs[what]))

    x, keys_values = 0, slice(1, 3)  # of the arguments
    hooks = [watch(layer, "encoder", x) for layer in model.encoder.layers]
    for layer in model.decoder.layers:
        hooks.append(watch(layer, "decoder", x))
        for attention, kind in ((layer.self_attention, "past"), (layer.cross_attention, "cross")):
            if layer.skipped:  # it has no keys and values, and keeps its place
                hooks.append(layer.register_forward_pre_hook(partial(no_keys, found[kind])))
            else:
                hooks.append(watch(attention, kind, keys_values))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def no_keys(found: list[Any], _: Any, inputs: tuple[Tensor, ...]) -> None:
    found.append((inputs[0].new_empty(len(inputs[0]), 0, 0, 0),) * 2)


def farthest_distances(model: Transformer, drafts: list[list[int]]) -> Tensor:
    """(V,) max_j |w_own - w_j| over the tokens j that can be produced, for every token of the drafts; 0 for
    all other tokens."""
    weight, specials = model.output.weight, model.target_specials
    tokens = torch.tensor(
        sorted({token for draft in drafts for token in draft} | {specials.end}), device=weight.device
    )
    others = weight[[token for token in range(len(weight)) if token not in specials.never_produced]]
    distance = torch.zeros(len(weight), device=weight.device)
    for chunk in tokens.split(LOGIT_POSITIONS):
        distance[chunk] = torch.cdist(weight[chunk], others).amax(1) * 1.001  # room for rounding
    return distance


class Drafts:
    """One batch of sources (B, S) with their drafts and the unpruned model's states on them. The bank's gates
    must be open.

    farthest: (V,) the `farthest_distances` of all drafts. limits: (B,) the `length_limits` of the sources.
    min_length: pieces of a translation at least."""

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        drafts: list[list[int]],
        farthest: Tensor,
        limits: Tensor,
        min_length: int = 0,
    ):
        self.model, self.specials, self.limits = model, model.target_specials, limits
        self.min_length = min_length
        self.target_in = pad(drafts, self.specials, begin=True).to(source.device)  # (B, T)
        self.target = pad(drafts, self.specials, end=True).to(source.device)  # (B, T)
        self.bias = model.source_bias(source)
        with traced(model) as self.trace:
            memory = model.encoder(model.embed(source, "source"), self.bias)
            self.hidden = model.decoder(model.embed(self.target_in, "target"), memory, self.bias)  # (B, T, D)
        positions = torch.arange(1, self.target.shape[1] + 1, device=source.device)
        # beyond the draft there is nothing to check; at a row's limit its end is forced, and so may its
        # beginning be
        forced = positions <= len(self.specials.forced)
        self.settled = (
            (self.target == self.specials.padding) | (positions >= self.limits[:, None]) | forced
        )  # (B, T)
        self.find_candidates(farthest)

    def find_candidates(self, farthest: Tensor) -> None:
        """Set candidates and logits (B, T, 1 + C), the draft's own token first, and the lead (B, T) of its
        logit over all other tokens."""
        count = min(CANDIDATES, self.model.target_vocab - len(self.specials.never_produced) - 1)
        size = (*self.target.shape, 1 + count)
        self.candidates, self.logits = (
            self.target.new_full(size, self.specials.end),
            self.hidden.new_zeros(size),
        )
        self.lead = self.hidden.new_full(
            self.target.shape, torch.inf
        )  # logit_own - the best logit outside the candidates
        for chunk in (self.target != self.specials.padding).nonzero().split(LOGIT_POSITIONS):
            b, t = chunk.unbind(1)
            logits = self.model.output(self.hidden[b, t])
            own = self.target[b, t][:, None]
            own_logits = logits.gather(1, own)
            logits.scatter_(1, own, -torch.inf)
            best, ids = rule_out(logits, self.specials, t < self.min_length).topk(
                count + 1, dim=1
            )  # the last is -inf where all others are candidates
            self.candidates[b, t] = torch.cat([own, ids[:, :count]], dim=1)
            self.logits[b, t] = torch.cat([own_logits, best[:, :count]], dim=1)
            self.lead[b, t] = (own_logits - best[:, count:]).squeeze(1)
        self.weights = self.model.output.weight[self.candidates]  # (B, T, 1 + C, D)
        self.farthest = farthest[self.target]  # (B, T)

    def rejected(
        self, bank: GateBank, stack: str, layer: int, xi: Mapping[HeadSite, Tensor]
    ) -> tuple[Tensor, DecodingStart | None]:
        """Return the rows whose draft translation was rejected, and the decoder state from which to continue
        them.

        xi: (A, H) of the sites that have closed heads, the first of them in `layer` of `stack` (encoder,
        decoder)."""
        times, sentences = len(next(iter(xi.values()))), len(self.target)

        def to_rows(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.dim() - 1))  # (B, ...) to (R, ...)

        bank.assign(
            {
                site: xi[site].repeat_interleave(sentences, 0) if site in xi else torch.ones(site.heads)
                for site in bank.sites
            }
        )
        model, before, bias = self.model, self.trace, to_rows(self.bias)
        start = layer if stack == "decoder" else 0  # the decoder layer from which on states differ
        inputs = to_rows(before["decoder"][start])
        with traced(model) as trace:
            if stack == "encoder":
                memory = model.encoder(to_rows(before["encoder"][layer]), bias, first=layer)
                hidden = model.decoder(inputs, memory, bias)
            else:
                cross = [
                    tree_map(to_rows, pair) if i >= layer else pair for i, pair in enumerate(before["cross"])
                ]
                hidden = model.decoder(inputs, cross, bias, first=layer)
        first = self.first_differences(hidden.unflatten(0, (times, sentences))).flatten()
        rows = (first >= 0).nonzero().flatten()
        if not len(rows):
            return rows, None
        b = rows % sentences
        past, cross = (
            [(k[b], v[b]) for k, v in before[kind][:start]] + [(k[rows], v[rows]) for k, v in trace[kind]]
            for kind in ("past", "cross")
        )
        return rows, DecodingStart(first[rows], self.target_in[b], self.limits[b], past, cross, self.bias[b])

    def first_differences(self, hidden: Tensor) -> Tensor:
        """(A, B): the first position at which the states (A, B, T, D) do not prefer the draft's token by at
        least TIE_MARGIN; -1 for none."""
        delta = hidden - self.hidden
        by_position = delta.permute(1, 2, 0, 3).flatten(0, 1)  # (B * T, A, D)
        logits = torch.bmm(by_position, self.weights.flatten(0, 1).transpose(1, 2))  # (B * T, A, 1 + C)
        logits += self.logits.flatten(0, 1)[:, None]
        ahead = (
            (logits[..., 0] - logits[..., 1:].amax(2)).unflatten(0, self.target.shape).permute(2, 0, 1)
        )  # (A, B, T)
        differs = (ahead < TIE_MARGIN) & ~self.settled
        sure = self.lead - delta.norm(dim=3) * self.farthest >= TIE_MARGIN
        open_still = differs.cumsum(2) == 0  # only the first difference matters
        for chunk in (~sure & open_still & ~self.settled).nonzero().split(LOGIT_POSITIONS):
            a, b, t = chunk.unbind(1)
            full = rule_out(self.model.output(hidden[a, b, t]), self.specials, t < self.min_length)
            own = self.target[b, t][:, None]
            own_logits = full.gather(1, own).squeeze(1)
            differs[a, b, t] = own_logits - full.scatter_(1, own, -torch.inf).amax(1) < TIE_MARGIN
        return torch.where(differs.any(2), differs.int().argmax(2), -1)
