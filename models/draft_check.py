"""Does a model with closed heads choose every token of the draft, which is the unpruned model's translation?
Letters: B sentences, A ablations, R = A * B rows (ablation by ablation), S source, T target, D model width, V
vocabulary.
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
from headgates.models.search import rule_out
from headgates.models.transformer import Transformer

# nats between the two best tokens; below it, one pass and step-by-step decoding may round differently
TIE_MARGIN = 1e-4
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


class Drafts:
    """One batch of sources (B, S) with their drafts and the unpruned model's states on them. The bank's gates
    must be open.

    limits: (B,) the `length_limits` of the sources. min_length: pieces of a translation at least."""

    def __init__(
        self, model: Transformer, source: Tensor, drafts: list[list[int]], limits: Tensor, min_length: int
    ):
        self.model, self.specials, self.min_length = model, model.target_specials, min_length
        self.target = pad(drafts, self.specials, end=True).to(source.device)  # (B, T)
        with traced(model) as self.trace:
            memory, self.bias = model.encode(source)
            model.decode(memory, self.bias, pad(drafts, self.specials, begin=True).to(source.device))
        positions = torch.arange(1, self.target.shape[1] + 1, device=source.device)
        # beyond the draft there is nothing to check; at a row's limit its end is forced, and so may its
        # beginning be
        checked = (positions > len(self.specials.forced)) & (positions < limits[:, None])
        self.checked = checked & (self.target != self.specials.padding)  # (B, T)

    def rejected(self, bank: GateBank, stack: str, layer: int, xi: Mapping[HeadSite, Tensor]) -> list[int]:
        """Return the rows in which a token of the draft is not ahead of all others by at least TIE_MARGIN.

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
        memory: Any = (
            model.encoder(to_rows(before["encoder"][layer]), bias, first=layer)
            if stack == "encoder"
            else [tree_map(to_rows, pair) if i >= layer else pair for i, pair in enumerate(before["cross"])]
        )
        hidden = model.decoder(to_rows(before["decoder"][start]), memory, bias, first=start)  # (R, T, D)
        differs = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        for chunk in to_rows(self.checked).nonzero().split(LOGIT_POSITIONS):
            row, t = chunk.unbind(1)
            logits = rule_out(model.output(hidden[row, t]), self.specials, t < self.min_length)
            own = self.target[row % sentences, t][:, None]
            ahead = logits.gather(1, own)[:, 0] - logits.scatter_(1, own, -torch.inf).amax(1)
            differs[row[ahead < TIE_MARGIN]] = True
        return differs.nonzero().flatten().tolist()
