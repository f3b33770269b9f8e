"""How a planned model may compute its output layer: all of it, or a shortlist of one of several sizes, each
with its share of the time and with what it loses.

Time. The whole model is timed with two of the lists, in turns with itself without one. Between them the time
is a straight line over the rows that a batch of the timed text computes.

Loss. A reference may have pieces that no list has, whose probability would be 0, so the model's own choice is
looked at. Let y be the reference of x. What a list loses is how much less probable the best piece is that it
has for x than the best of all, at each position of y, after the pieces of y before it:

    loss = sum_t [max_v log p(v | y_<t, x)  -  max_{v listed for x} log p(v | y_<t, x)]

It is 0 where the piece that greedy search takes is listed. A sentence has its own candidates alone, as if it
were translated alone; with others in a batch it has theirs too, and loses less.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
import torch

from headgates.analysis.knapsack import Option
from headgates.configs.recipe import list_words
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.models.search import rule_out
from headgates.models.translator import Translator
from headgates.pruning.runtime_cost import RuntimeCost
from headgates.pruning.shortlisting import LinkedPieces, mean_rows

LIST_SIZES = (10, 25, 50, 100, 200)  # pieces for each source piece
LISTS_TIMED = 2  # the shortest and the longest
LONGEST_LIST = 0.9  # of all rows: a list that computes more is not looked at


class ListCost(TypedDict):
    """time: with the list, as a share of the time without one. loss: summed over the text."""

    time: float
    loss: float


class ListCosts(TypedDict):
    """Of each list by its name, which is what --shortlist takes."""

    lists: dict[str, ListCost]


@dataclass(eq=False)
class OutputLayers:
    """What `Plan.output` counts: lists by their names, of which the empty one is the base's output layer.

    links: what lists are made of. costs: of each, in that order."""

    base: Translator
    links: LinkedPieces
    costs: Mapping[str, ListCost]
    listed: dict[str, Translator] = field(default_factory=dict)  # the base with each list, once made

    @cached_property
    def names(self) -> list[str]:
        return [*self.costs]

    def options(self, whole: float) -> list[Option]:
        """What each adds to the cost of a base that costs `whole`, below 0 where it takes off, and to the
        loss."""
        return [Option((each["time"] - 1) * whole, each["loss"]) for each in self.costs.values()]

    def words(self, output: int) -> str:
        """Beside what stays of the layers; empty for the output layer of the base."""
        name = self.names[output]
        return f", {list_words(name)}" if name else ""

    def translator(self, output: int) -> Translator:
        """The base with this output layer."""
        if not (name := self.names[output]):
            return self.base
        if name not in self.listed:
            self.listed[name] = self.base.with_shortlist(self.links.shortlist(name))
        return self.listed[name]


UNCHANGED: Mapping[str, ListCost] = {"": {"time": 1.0, "loss": 0.0}}


def list_costs(
    links: LinkedPieces, names: Iterable[str], timer: RuntimeCost, valid: Sequence[Any], *, share: float = 1.0
) -> ListCosts:
    """The costs of lists, the shortest first. share: of all rows, lists that compute more are left out."""
    base, batches = links.source.translator, [batch.sources for batch in timer.text.batches]
    lists = {name: base.with_shortlist(links.shortlist(name)) for name in names}
    rows = {name: mean_rows(each, batches) for name, each in lists.items()}
    kept = [name for name in lists if rows[name] <= share * base.model.target_vocab]
    if not kept:
        return {"lists": {}}
    timed = [*dict.fromkeys((kept[0], kept[-1]))]
    times = [timer(base.model, lists[name].shortlist) / timer.whole for name in timed]
    between = np.interp([rows[name] for name in kept], [rows[name] for name in timed], times)
    losses = list_losses([lists[name] for name in kept], valid)
    return {
        "lists": {
            name: {"time": float(time), "loss": loss}
            for name, time, loss in zip(kept, between, losses, strict=True)
        }
    }


@torch.no_grad()
def list_losses(listed: Sequence[Translator], batches: Iterable[Any]) -> list[float]:
    """What the list of each translator of one model loses on a text, summed over its target tokens, in nats
    (the equation above)."""
    model, totals = listed[0].model, [0.0] * len(listed)
    with evaluation_mode(model):
        for batch in (each.to(listed[0].device) for each in batches):
            states = model.decode(*model.encode(batch.source), batch.target_in)  # (B, T, D)
            real = batch.target_out != model.target_specials.padding  # (B, T)
            for source, own, there in zip(batch.source, states, real, strict=True):
                pieces = source[source != model.source_specials.padding].tolist()
                logits = rule_out(model.output(own[there]).float(), model.target_specials)  # (t, V)
                best = logits.amax(1)
                for place, each in enumerate(listed):
                    ids = torch.from_numpy(each.candidates([pieces])).to(logits.device)
                    totals[place] += float((best - logits[:, ids].amax(1)).double().sum())
    return totals
