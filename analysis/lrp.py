"""How much of what a model says goes through each head: layer-wise relevance propagation (LRP).   Voita et
al. 2019 (arXiv:1905.09418),
section 4.2 and appendix A, whose code was not released.

At each target position, with the reference before it (teacher forcing), relevance starts at the largest
logit. The relevance R_h of a head is what arrives at its output z_h, where W_O reads it, over all positions.
Two ways lead there:

    gate-gradient    R_h = xi_h dlogit/dxi_h / logit, by one backward pass in which attention weights and norm
    scales are constants
                     (linear_pass.py). It is the gradient rule, and the limit of the paper's ratio rule
                     without its stabiliser (Ancona et al. 2018). For any model with head sites; the default.
    ratio            the paper's rule, step by step: it shares the relevance of every number among those it
                     was made of, down to the embeddings. The caller brings this walk, of its own model
                     (models/lrp_walk.py for our Transformer).

Shares are within the layer, in two forms. The paper adds relevances with their sign, and heads that disagree
cancel; by size, each head counts for what it does either way:

    share            |R_h| / sum_h' |R_h'|      in [0, 1]
    share_signed     R_h / sum_h' R_h'          the paper's; unbounded where the sum is small

    step   the share at every generation step, then the mean over all steps of all sentences: the paper's
    sum    R_h summed over all steps of all sentences, then one share: the steps go back together, for the
    price of one; steps of which one
           says yes and the other no take each other away

What the papers leave open, and we chose:
    - the seed is 1 at the logit (as in Voita et al.'s later code) and 0 elsewhere, so steps count alike;
      "logit" seeds the logit's own value. The shares of a step do not depend on it.
    - the end of sentence is a step like any other; padding is none.
    - attention weights are constant: relevance goes to the values, none to queries and keys. An elementwise
      product v = a x would split it as a : x (Ding et al. 2017), which adds up a probability and an
      activation; through the values alone is what conserves relevance (Ali et al. 2022), and it is nearer to
      what leaving inputs out does (You et al. 2025, arXiv:2510.18810).
    - layer norms: see the rules. A gate xi is part of its head's weights; a head that is shut or removed has
      none.
    - where biases go: nowhere. A bias is one more term of its sum and keeps its part, the bias share.
      Position vectors are part of the embeddings.
The walk conserves relevance: source + target + biases + eps = seed, where `eps` is what the stabiliser took.
The ledger says how exactly. Letters: C rows of seeds of a sentence, B sentences, T target positions, D model
width, H heads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Queries, TopLogits, on_device, query_tokens, shared, summed, top_logits
from headgates.analysis.gate_gradients import head_factors
from headgates.analysis.linear_pass import LinearPass
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.gram import Ranks
from headgates.gates.headmap import check_kinds
from headgates.gates.site_rule import nearest

Aggregation = Literal["step", "sum"]
Seed = Literal["one", "logit"]
NOTHING = 1e-300  # a denominator of 0 becomes this
# of the largest tensor on the way back; generation steps go back together while they stay below
NUMBERS = 2**23


class Account(Protocol):
    """Where the relevance of the seeds went, for every row of seeds: (C, B) each; heads: by site name,
    (C, B, H)."""

    seed: Tensor
    source: Tensor
    target: Tensor
    biases: Tensor
    eps: Tensor
    heads: dict[str, Tensor]


class Walk(Protocol):
    """A forward pass that knows the way back. logits (B, T): where relevance starts; real (B, T) bool: which
    of them there are; numbers: of its largest tensor, for one row of seeds."""

    logits: Tensor
    real: Tensor
    numbers: int

    def back(self, seed: Tensor) -> Account:
        """Where the relevance `seed` (C, B, T) goes."""


MakeWalk = Callable[[Any, Any], Walk]  # (model, batch)


@dataclass(frozen=True)
class Ledger:
    """Where relevance ended, in units of the seed per generation step: source + target + biases + eps = seed.

    error: the largest |source + target + biases + eps - seed| / |seed| of any step (of any sentence for
    "sum")."""

    seed: float
    source: float
    target: float
    biases: float
    eps: float
    error: float


@dataclass(frozen=True)
class Relevance:
    """The relevance of every head, as a share of its layer's and as it is.

    share: by size, in [0, 1]. share_signed: the paper's, with the sign. Each sums to 1 in every layer, and is
    0 where no head has relevance. signed: the mean of R_h over generation steps, in units of the seed, the
    same for both
    aggregations."""

    share: HeadMap
    share_signed: HeadMap
    signed: HeadMap
    ledger: Ledger | None  # of the walk; the gate's gradient ends at the heads
    steps: int  # generation steps

    def head_maps(self) -> dict[str, HeadMap]:
        return {"share": self.share, "share_signed": self.share_signed, "signed": self.signed}

    def facts(self) -> dict[str, Any]:
        """The numbers that hold for all heads together."""
        return {"ledger": None if self.ledger is None else asdict(self.ledger), "steps": self.steps}

    def to_json(self) -> dict[str, Any]:
        return {**{name: head_map.to_json() for name, head_map in self.head_maps().items()}, **self.facts()}


@torch.no_grad()
def relevance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    walk: MakeWalk | None = None,
    aggregation: Aggregation = "step",
    kinds: Iterable[str] | None = None,
    seed: Seed = "one",
    logits: TopLogits = top_logits,
    queries: Queries = query_tokens,
    ranks: Ranks | None = None,
) -> Relevance:
    """Return the relevance of every head of the kinds. Sites without heads are left out, and how sentences
    are batched changes nothing.

    walk (model, batch): the ratio rule in place of the gate's gradient; it conserves relevance to 1e-4
    in float64. logits (model, batch): where the gate's gradient starts. queries: as for `importance`. ranks:
    processes that share the batches out. Gates stay as they are. The model is left as it was. Raises
    ValueError at an unknown name, kinds without a head, or no generation step at all."""
    check_choice(aggregation, get_args(Aggregation), "aggregation")
    check_choice(seed, get_args(Seed), "seed")
    chosen = check_kinds(kinds)
    sites = [site for site in find_sites(model) if site.kind in chosen and site.heads]
    if not sites:
        raise ValueError(
            f"the model has no heads of the kinds {', '.join(chosen)}, so they have no relevance; name "
            "other kinds"
        )
    device = next(model.parameters()).device
    mine = (on_device(batch, device) for batch in shared(batches, ranks))
    tally = Tally(sites)
    with torch.autocast(device.type, enabled=False):
        if walk is None:
            own = {site.kind for site in sites}
            arrivals = by_gate_gradient(model, mine, own, aggregation, seed, logits, queries)
        else:
            arrivals = by_walk(model, mine, sites, aggregation, seed, walk)
        for rows, R, account in arrivals:
            tally.add(rows, R, account)
    tally.join(ranks)
    if not tally.steps:
        raise ValueError("relevance starts at target tokens, got no batch with one")
    return tally.result(aggregation)


# where relevance started, (C, B, T) bool; what arrived at the heads of every site, (C, B, H); and, of the
# walk, where it all went
Arrival = tuple[Tensor, Mapping[HeadSite, Tensor], Account | None]


def by_gate_gradient(
    model: nn.Module,
    batches: Iterable[Any],
    kinds: set[str],
    aggregation: Aggregation,
    seed: Seed,
    logits: TopLogits,
    queries: Queries,
) -> Iterator[Arrival]:
    """Yield R_h of every head of the kinds, from the gradients to the heads' gates."""
    with head_factors(model, kinds=kinds, keep_gates=True) as factors:
        for batch in batches:
            with LinearPass() as linear_pass, torch.enable_grad():
                factors.renew(batch, per="sentence", queries=queries)
                top, real = logits(model, batch)
            weight = torch.where(top == 0, 0.0, 1 / top) if seed == "one" else torch.ones_like(top)
            for rows in starts(real, aggregation, max(1, NUMBERS // linear_pass.largest)):
                yield rows, factors.gradients(top, rows * weight), None


def by_walk(
    model: nn.Module,
    batches: Iterable[Any],
    sites: list[HeadSite],
    aggregation: Aggregation,
    seed: Seed,
    walk: MakeWalk,
) -> Iterator[Arrival]:
    """Yield R_h of `sites` by the steps of a rule, with the account of all relevance."""
    with evaluation_mode(model):
        for batch in batches:
            there = walk(model, batch)
            value = there.logits if seed == "logit" else torch.ones_like(there.logits)
            for rows in starts(there.real, aggregation, max(1, NUMBERS // there.numbers)):
                account = there.back(rows * value)
                yield rows, {site: account.heads[site.name] for site in sites}, account


def starts(real: Tensor, aggregation: Aggregation, at_most: int) -> Iterator[Tensor]:
    """Yield the real positions (B, T) as rows (C, B, T) of where relevance starts: all in one row, or one a
    row, `at_most` rows at once."""
    if aggregation == "sum":
        yield real[None]
        return
    length = real.shape[1]
    for begin in range(0, length, at_most):
        row = torch.eye(length, dtype=torch.bool, device=real.device)[begin : begin + at_most]  # (C, T)
        yield row[:, None] & real


class Tally:
    """Sums over rows of seeds and sentences, on the CPU in float64."""

    def __init__(self, sites: list[HeadSite]):
        self.sums = {
            name: {site: torch.zeros(site.heads, dtype=torch.float64) for site in sites} for name in FORMS
        }
        self.steps = 0
        self.ends = torch.zeros(5, dtype=torch.float64)  # relevance by where it went, as in Ledger
        self.error: float | None = None  # None until an account is added

    def add(self, rows: Tensor, R: Mapping[HeadSite, Tensor], account: Account | None) -> None:
        """Add what one `Arrival` holds."""
        real = rows.any(2)  # (C, B); the others are padding
        self.steps += int(rows.sum())
        for site, relevances in R.items():
            of_heads = relevances[real].double().cpu()  # (rows, H)
            for name, form in FORMS.items():
                self.sums[name][site] += form(of_heads).sum(0)
        if account is not None and real.any():
            parts = (account.seed, account.source, account.target, account.biases, account.eps)
            seed, *ends = (part[real].cpu() for part in parts)
            self.ends += torch.stack([part.sum() for part in (seed, *ends)])
            self.error = max(
                self.error or 0.0, float(((sum(ends) - seed).abs() / seed.abs().clamp_min(NOTHING)).max())
            )

    def join(self, ranks: Ranks | None) -> None:
        """Add what the other ranks hold, which had other batches."""
        self.sums = {
            name: {site: summed(total, ranks) for site, total in totals.items()}
            for name, totals in self.sums.items()
        }
        self.steps, self.ends = int(summed(torch.tensor(self.steps), ranks)), summed(self.ends, ranks)
        if ranks is not None:
            errors = torch.zeros(ranks.world(), dtype=torch.float64)
            errors[ranks.rank()] = -1.0 if self.error is None else self.error
            largest = float(ranks.all_sum(errors).max())
            self.error = None if largest < 0 else largest

    def result(self, aggregation: Aggregation) -> Relevance:
        maps = {
            name: HeadMap({site: total / self.steps for site, total in totals.items()})
            for name, totals in self.sums.items()
        }
        if aggregation == "sum":
            maps = {name: maps["signed"].map(form) for name, form in FORMS.items()}
        seed, source, target, biases, eps = (self.ends / self.steps).tolist()
        ledger = None if self.error is None else Ledger(seed, source, target, biases, eps, self.error)
        return Relevance(**maps, ledger=ledger, steps=self.steps)


def share(R: Tensor) -> Tensor:
    """Return |R_h| / sum_h' |R_h'| over the last dimension; 0 where all are 0."""
    return R.abs() / R.abs().sum(-1, keepdim=True).clamp_min(NOTHING)


def share_signed(R: Tensor) -> Tensor:
    """Return R_h / sum_h' R_h' over the last dimension; 0 where the sum is 0."""
    total = R.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, R / torch.where(total == 0, 1.0, total))


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "share": share,
    "share_signed": share_signed,
    "signed": lambda R: R,
}  # of `Relevance`


def relevance_score(
    model: nn.Module, batches: Iterable[Any], *, logits: TopLogits = top_logits, ranks: Ranks | None = None
) -> HeadMap:
    """Return the relevance of every head as a share of its site's, by size, in [0, 1]: an order, lowest
    closed first. Arguments and errors are those of `relevance`."""
    return relevance(model, batches, logits=logits, ranks=ranks).share


def check_choice(name: str, names: Iterable[str], what: str) -> None:
    """Raises ValueError unless `name` is one of the names."""
    if name not in (names := list(names)):
        raise ValueError(f"unknown {what} {name!r}{nearest(name, names)}")
