"""The output projections of a model's attentions and feed-forward layers, whichever way their weights lie,
with the heads or neurons of each that stay.

Letters: N positions, P columns of X, H heads, K head width, D model width, I width of W_V's inputs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .called import called
from .evaluation_mode import evaluation_mode
from .headmap import HeadMap, HeadSite
from .remove import closed_now, kinds_with
from .rules import rule_of
from .site_rule import SiteRule, check_own_weights, columns_of, plain_projection
from .site_walk import Forward, Mixer, QueryPositions, Sublayer, one_pass, open_sites, rows_where
from .sites import find_sites


@dataclass(frozen=True)
class Output:
    """The output projection of one site, whichever way its weight lies."""

    site: HeadSite
    module: nn.Module  # the attention or feed-forward layer
    rule: SiteRule
    out: nn.Linear
    keep: Tensor  # (H,) bool
    mixer: Mixer | None = None  # where W_V may change too

    @property
    def weight(self) -> Tensor:
        """W_O (D, H * K), a view of the parameter."""
        weight = self.out.weight.detach()
        return weight.t() if self.rule.transposed else weight

    @property
    def bias(self) -> Tensor | None:
        return None if self.out.bias is None else self.out.bias.detach()

    @property
    def kept(self) -> Tensor:
        """(H * K,) bool: the columns of the heads that stay."""
        return self.keep.repeat_interleave(columns_of(self.out, self.rule) // len(self.keep)).to(
            self.out.weight.device
        )

    @property
    def kept_inputs(self) -> Tensor:
        """(P,) bool: of what a refit reads, W_O's inputs, or what the heads take in (H * I,), that of the
        heads that stay."""
        return (
            self.kept
            if self.mixer is None
            else self.keep.repeat_interleave(self.mixer.values.in_features).to(self.out.weight.device)
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """The columns of X, with one of ones, and those of Y."""
        return int(self.kept_inputs.sum()) + 1, len(self.weight)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that a refit changes."""
        return [*self.out.parameters(), *([] if self.mixer is None else self.mixer.values.parameters())]

    def old(self) -> Tensor:
        """[W_O b]^T (P, D) of the kept columns, in float64; b is 0 where there is none."""
        weight = self.weight[:, self.kept].double()
        bias = weight.new_zeros(len(weight)) if self.bias is None else self.bias.double()
        return torch.cat([weight, bias[:, None]], 1).T

    def close(self) -> None:
        """Zero the columns of the closed heads."""
        self.weight[:, ~self.kept] = 0.0


def outputs_of(
    model: nn.Module, closed: HeadMap, sublayers: Iterable[Sublayer] = (), *, values: bool = False
) -> dict[HeadSite, Output]:
    """The output projections of all attentions with heads, of the feed-forward layers of the map's kinds, and
    of all sublayers. values: with their mixers.

    Raises ValueError where the map does not fit the model, or two share one weight."""
    parts = {each.site: each for each in sublayers}
    kinds = kinds_with(closed, parts)
    rows = closed_now(find_sites(model, kinds), closed)  # it may have sites all of whose heads are gone
    found = {}
    for site, module in open_sites(model, kinds).items():
        rule, mixer = rule_of(module), parts[site].mixer if values else None
        out = plain_projection(module, rule.out)
        found[site] = Output(site, module, rule, out, ~rows[site], mixer)
    check_own_weights(output.out.weight for output in found.values())
    return found


def closing_outputs(model: nn.Module, closed: HeadMap) -> dict[HeadSite, Output]:
    """Those of `outputs_of` where heads close."""
    return {site: output for site, output in outputs_of(model, closed).items() if not output.keep.all()}


def inputs_of(
    outputs: Mapping[HeadSite, Output],
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward,
    positions: QueryPositions | None,
) -> Iterator[tuple[HeadSite, Tensor]]:
    """The inputs of W_O (N, H * K) at the positions of one batch after the other, by forward passes in
    evaluation mode."""
    for batch in batches if outputs else ():
        found: list[tuple[HeadSite, Tensor]] = []

        def take(
            _: nn.Module, inputs: Any, *, site: HeadSite, found: list[tuple[HeadSite, Tensor]] = found
        ) -> None:
            found.append((site, inputs[0].detach()))

        with called(model), evaluation_mode(model):
            handles = [
                output.out.register_forward_pre_hook(partial(take, site=site))
                for site, output in outputs.items()
            ]
            one_pass(model, batch, forward, handles)
        for site, z in found:
            where = None if positions is None else positions(model, site, batch)
            yield site, rows_where(z, outputs[site].rule, where)
