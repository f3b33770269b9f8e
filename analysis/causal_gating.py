"""Causal head gating: which heads help, which harm and which do neither, by gates that are fitted to a frozen
model.   Nam et al. 2025 (arXiv:2505.13737), section 3.

One gate a head, g = sigmoid(l), l in [-4, 4], and three fits of the gates alone:

    minimise  E_x[-log p(y|x; g)] - lambda sum_h l_h,   in nats a sentence

lambda = 0 gives G; from there lambda > 0 gives G+, which opens what does no harm, and lambda < 0 gives G-,
which closes what does no good. A gate comes to rest where g (1 - g) |dL/dg| = |lambda|, or at a bound.

    facilitation = G-     interference = 1 - G+     irrelevance = G+ (1 - G-)

The third is misprinted in the paper's section 3.3. A fit of another seed starts elsewhere and reads other
sentences, and some of its labels are others: so several fits are made. Letters: S fits, N heads of all sites,
B sentences of a batch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, Queries, batch_loss, query_tokens, sites_of
from headgates.analysis.gate_gradients import HeadFactors, Per, head_factors
from headgates.gates import HeadMap
from headgates.gates.on_device import on_device
from headgates.gates.rules import rule_of
from headgates.gates.sites import device_of

SEEDS = 5
UPDATES = 50  # of each of the three fits; more move few labels (results/causes.md)
LAMBDA = 0.1
RATES = 0.5, 0.1  # of Adam, at the first update and at the last
BOUND = 4.0  # of a logit
ENOUGH = 8  # sentences that a fit reads for an update
CAUSAL_GATES = "G", "G+", "G-"
CAUSAL_ROLES = {"facilitation": "facilitating", "interference": "interfering", "irrelevance": "irrelevant"}


@dataclass(frozen=True)
class CausalGates:
    """The gates of one seed, in (0, 1)."""

    free: HeadMap  # G
    plus: HeadMap  # G+
    minus: HeadMap  # G-

    @property
    def quantities(self) -> dict[str, HeadMap]:
        """Facilitation, interference and irrelevance of each head, in (0, 1)."""
        plus, minus = self.plus.flat(), self.minus.flat()
        values = minus, 1 - plus, plus * (1 - minus)
        return {name: self.plus.like(each) for name, each in zip(CAUSAL_ROLES, values, strict=True)}


def causal_gates(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    loss: Loss = batch_loss,
    kinds: Iterable[str] | None = None,
    queries: Queries = query_tokens,
    seed: int = 1,
    seeds: int = SEEDS,
    updates: int = UPDATES,
    lam: float = LAMBDA,
) -> list[CausalGates]:
    """Return the gates of so many seeds, from `seed` on.

    loss (model, batch): a sum over the batch's sentences, of which none may depend on another. lam: lambda,
    in nats a sentence. A pass over a batch serves the fits of all seeds, each with sentences of its own; but
    one fit where an attention takes no gates that differ by sentence. Other arguments and errors are those of
    `gradient_means`. Raises ValueError without any batch, and unless seeds and updates are at least 1 and lam
    is above 0."""
    if min(seeds, updates) < 1 or not lam > 0:
        raise ValueError(
            f"expected seeds and updates of at least 1 and lam above 0, got {seeds=}, {updates=}, {lam=}"
        )
    device = device_of(model)
    if not (text := [on_device(batch, device) for batch in batches]):
        raise ValueError("causal gates need at least one batch of sentence pairs, got none")
    heads = HeadMap({site: torch.zeros(site.heads) for site in sites_of(model, kinds)})
    generators = [torch.Generator().manual_seed(seed + number) for number in range(seeds)]
    start = torch.stack([torch.rand(heads.heads_total, generator=each) for each in generators]).double()
    with head_factors(model, kinds=kinds) as factors:
        slopes = Slopes(factors, text, loss, queries, generators[0])
        free = fitted_logits(start, torch.zeros(seeds), slopes, updates)
        lambdas = torch.tensor([lam, -lam]).repeat_interleave(seeds)
        both = fitted_logits(torch.cat([free, free]), lambdas, slopes, updates)
    rows = [heads.like(row) for row in torch.cat([free, both]).sigmoid()]
    return [CausalGates(*rows[number::seeds]) for number in range(seeds)]


def fitted_logits(logits: Tensor, lambdas: Tensor, slopes: "Slopes", updates: int) -> Tensor:
    """The logits (S, N) after so many updates by Adam; lambdas (S,): of each fit."""
    logits = logits.clone()
    first, last = RATES
    adam = torch.optim.Adam([logits], lr=first)
    for number in range(updates):
        adam.param_groups[0]["lr"] = first + (last - first) * number / updates
        gates = logits.sigmoid()
        logits.grad = slopes(gates) * gates * (1 - gates) - lambdas[:, None]
        adam.step()
        logits.clamp_(-BOUND, BOUND)
    return logits


class Slopes:
    """dL/dg of several fits, L the mean loss of the sentences that each is dealt."""

    def __init__(
        self,
        factors: HeadFactors,
        text: Sequence[Any],
        loss: Loss,
        queries: Queries,
        generator: torch.Generator,
    ):
        self.factors, self.loss, self.queries, self.generator = factors, loss, queries, generator
        self.batches = self.endless(text)
        modules = sites_of(factors.model, {site.kind for site in factors.sites})
        self.by_sentence = all(rule_of(module).mode != "weight" for module in modules.values())
        self.turn = 0  # of the fits, over batches

    def endless(self, text: Sequence[Any]) -> Iterator[Any]:
        """The batches, in a new order each time."""
        while True:
            for number in torch.randperm(len(text), generator=self.generator).tolist():
                yield text[number]

    def __call__(self, gates: Tensor) -> Tensor:
        """(S, N) for gates (S, N)."""
        sums, counts = torch.zeros_like(gates), gates.new_zeros(len(gates))
        while counts.min() < ENOUGH:
            batch = next(self.batches)
            size = len(self.queries(self.factors.model, self.factors.sites[0], batch))
            fits = self.dealt(size, len(gates))
            sums.index_add_(0, fits, self.by_row(batch, gates[fits]))
            counts += fits.bincount(minlength=len(gates)) * (size / len(fits))
        return sums / counts[:, None]

    def dealt(self, size: int, fits: int) -> Tensor:
        """The fit of each sentence of a batch (B,), as many for each; or of all together (1,)."""
        rows = torch.randperm(size, generator=self.generator) if self.by_sentence else torch.zeros(1).long()
        dealt = (rows + self.turn) % fits
        self.turn += len(rows)
        return dealt

    def by_row(self, batch: Any, gates: Tensor) -> Tensor:
        """The gradient of the batch's summed loss to the gates of each of its sentences (B, N), or of all of
        them (1, N)."""
        per: Per = "sentence" if self.by_sentence else "batch"
        sites = self.factors.sites
        rows = (gates if self.by_sentence else gates[0]).split([site.heads for site in sites], -1)
        at = dict(zip(sites, rows, strict=True))
        slopes = self.factors.slopes(self.loss, batch, per=per, queries=self.queries, at=at)
        return torch.cat([slopes[site].view(len(gates), -1) for site in sites], 1).double().cpu()


# ---------------------------------------------------------------- over seeds


def causal_scores(
    model: nn.Module, batches: Iterable[Any], *, loss: Loss = batch_loss, seed: int = 1
) -> dict[str, HeadMap]:
    """Each quantity's mean over seeds, and the gates of every seed as `gates_of` reads them."""
    fits = causal_gates(model, batches, loss=loss, seed=seed)
    gates = {
        f"{name} {number}": head_map
        for number, fit in enumerate(fits, 1)
        for name, head_map in zip(CAUSAL_GATES, (fit.free, fit.plus, fit.minus), strict=True)
    }
    return means(fits) | gates


def gates_of(maps: Mapping[str, HeadMap]) -> list[CausalGates]:
    """The gates of every seed, of what `causal_scores` gave."""
    seeds = sum(name.startswith(f"{CAUSAL_GATES[0]} ") for name in maps)
    return [
        CausalGates(*(maps[f"{name} {number}"] for name in CAUSAL_GATES)) for number in range(1, seeds + 1)
    ]


def means(fits: Sequence[CausalGates]) -> dict[str, HeadMap]:
    """Each quantity's mean over the seeds."""
    return over_seeds(fits, lambda rows: rows.mean(0))


def spreads(fits: Sequence[CausalGates]) -> dict[str, HeadMap]:
    """Each quantity's standard deviation over the seeds; 0 of one seed."""
    return over_seeds(fits, lambda rows: rows.std(0, correction=int(len(rows) > 1)))


def over_seeds(fits: Sequence[CausalGates], of: Callable[[Tensor], Tensor]) -> dict[str, HeadMap]:
    """A statistic (N,) of each quantity's (S, N)."""
    stacks = {name: torch.stack([fit.quantities[name].flat() for fit in fits]) for name in CAUSAL_ROLES}
    return {name: fits[0].plus.like(of(rows)) for name, rows in stacks.items()}


def is_labelled(quantities: dict[str, HeadMap], name: str) -> HeadMap:
    """True for heads whose largest quantity this is; the first of equal ones."""
    largest = torch.stack([each.flat() for each in quantities.values()]).argmax(0)
    return quantities[name].like(largest == list(quantities).index(name))
