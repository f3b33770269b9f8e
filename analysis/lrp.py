"""How much of what a model says goes through each head: layer-wise relevance propagation (LRP).   Voita et
al. 2019 (arXiv:1905.09418), section 4.2 and appendix A, whose code was not released.

At each target position, with the reference before it (teacher forcing), relevance starts at the largest
logit. The relevance R_h of a head is what arrives at its output z_h, where W_O reads it, over all positions.
Two ways lead there:

    gate-gradient    R_h = xi_h dlogit/dxi_h / logit, by one backward pass in which attention weights and
                     norm scales are constants (linear_pass.py). It is the gradient rule, and the limit of the
                     paper's ratio rule without its stabiliser (Ancona et al. 2018). For any model with head
                     sites; the default.
    ratio            the paper's rule, step by step: it shares the relevance of every number among those it
                     was made of, down to the embeddings. The caller brings this walk (ratio_walk.py for our
                     Transformer).

Shares are within the layer, in two forms. The paper adds relevances with their sign, and heads that disagree
cancel; by size, each head counts for what it does either way:

    share            |R_h| / sum_h' |R_h'|      in [0, 1]
    share_signed     R_h / sum_h' R_h'          the paper's; unbounded where the sum is small

    step   the share at every generation step, then the mean over all steps of all sentences: the paper's
    sum    R_h summed over all steps of all sentences, then one share: the steps go back together, for the
           price of one; steps of which one says yes and the other no take each other away

What the papers leave open, and we chose:
    - the seed is 1 at the logit (as in Voita et al.'s later code) and 0 elsewhere, so steps count alike; the
      shares of a step do not depend on it.
    - the end of sentence is a step like any other; padding is none.
    - attention weights are constant: relevance goes to the values, none to queries and keys. An elementwise
      product v = a x would split it as a : x (Ding et al. 2017), which adds up a probability and an
      activation; through the values alone is what conserves relevance (Ali et al. 2022), and it is nearer to
      what leaving inputs out does (You et al. 2025, arXiv:2510.18810).
    - the activation of a gated feed-forward layer is constant too, for the same reason.
    - layer norms: see the rules. A gate xi is part of its head's weights; a head closed or removed has
      none.
    - where biases go: nowhere. A bias is one more term of its sum and keeps its part, the bias share.
      Position vectors are part of the embeddings.
The walk conserves relevance: source + target + biases + eps = 1 a step, where `eps` is what the stabiliser
took. The ledger says how exactly. Letters: C rows of seeds of a sentence, B sentences, T target positions, D
model width, H heads.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from headgates.analysis.batches import (
    Queries,
    TopLogits,
    query_tokens,
    shared,
    sites_of,
    summed,
    top_logits,
)
from headgates.analysis.gate_gradients import head_factors
from headgates.analysis.linear_pass import LinearPass
from headgates.gates import HeadMap
from headgates.gates.gram import Ranks
from headgates.gates.names import check_name
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of

Aggregation = Literal["step", "sum"]
ALMOST_NOTHING = 1e-300  # a denominator of 0 becomes this
# of the largest tensor on the way back; generation steps go back together while they stay below
TENSOR_NUMBERS = 2**23


class Walk:
    """A forward pass over a batch with constant attention weights, gates and norm scales, that knows the way
    back: the gate's gradient. logits (B, T): where relevance starts; real (B, T) bool: which of them there
    are; numbers: of its largest tensor, for one row of seeds."""

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        *,
        kinds: Iterable[str] | None = None,
        logits: TopLogits = top_logits,
        queries: Queries = query_tokens,
    ):
        with head_factors(model, kinds=kinds, keep_gates=True) as self.factors, torch.enable_grad():
            self.factors.renew(batch, per="sentence", queries=queries)
            with self.rule(model, batch) as linear_pass:
                self.logits, self.real = logits(model, batch)
        self.numbers = linear_pass.largest

    def rule(self, model: nn.Module, batch: Any) -> AbstractContextManager[LinearPass]:
        return LinearPass()

    def back(self, seed: Tensor) -> dict[Any, Tensor]:
        """What of the relevance `seed` (C, B, T) arrives at the heads of every site, (C, B, H)."""
        top = self.logits
        return self.factors.gradients(top, torch.where(top == 0, 0.0, seed / top))


ENDS = ("source", "target", "biases", "eps")  # where else a walk may say that relevance went, (C, B) each


@dataclass(frozen=True)
class Ledger:
    """Where relevance ended, a generation step: source + target + biases + eps = 1.

    error: the largest |source + target + biases + eps - seed| / seed of any step (of any sentence for
    "sum")."""

    source: float
    target: float
    biases: float
    eps: float
    error: float


@dataclass(frozen=True)
class Relevance:
    """The relevance of every head, as a share of its layer's and as it is.

    share: by size, in [0, 1]. share_signed: the paper's, with the sign. Each sums to 1 in every layer, and is
    0 where no head has relevance. signed: the mean of R_h over generation steps, the same for both
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


@torch.no_grad()
def relevance(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    walk: Callable[[nn.Module, Any], Walk] | None = None,
    aggregation: Aggregation = "step",
    kinds: Iterable[str] | None = None,
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
    check_name("aggregation", aggregation, get_args(Aggregation))
    sites = sites_of(model, kinds)
    device = device_of(model)
    make = walk or partial(Walk, kinds={site.kind for site in sites}, logits=logits, queries=queries)
    # on the CPU in float64: of every form over rows of seeds and sentences, and where relevance went
    heads = [site.heads for site in sites]
    sums = torch.zeros(len(FORMS), sum(heads), dtype=torch.float64)
    ends, error, steps = torch.zeros(4, dtype=torch.float64), torch.zeros(()).double(), torch.tensor(0)
    with torch.autocast(device.type, enabled=False):
        for batch in shared(batches, ranks):
            batch = on_device(batch, device)
            there = make(model, batch)
            for rows in starts(there.real, aggregation, there.numbers):
                found = there.back(rows.to(there.logits))
                seed = rows.sum(2).cpu()  # (C, B)
                real = seed > 0  # the others are padding
                steps += seed.sum()
                of_heads = [found[site].double().cpu()[real] for site in sites]  # (rows, H) each
                for total, form in zip(sums, FORMS.values(), strict=True):
                    total += torch.cat([form(each).sum(0) for each in of_heads])
                if walk is not None and real.any():
                    went = torch.stack([found[name] for name in ENDS]).cpu()[:, real]
                    ends += went.sum(1)
                    error = torch.maximum(error, ((went.sum(0) - seed[real]).abs() / seed[real]).max())
    count, ends = int(summed(steps, ranks)), summed(ends, ranks)
    if not count:
        raise ValueError("relevance starts at target tokens, got no batch with one")
    if ranks is not None:
        error = summed(error * torch.eye(ranks.world())[ranks.rank()], ranks).max()
    means = {
        name: HeadMap(dict(zip(sites, total.split(heads), strict=True)))
        for name, total in zip(FORMS, summed(sums, ranks) / count, strict=True)
    }
    if aggregation == "sum":
        means = {name: means["signed"].map(form) for name, form in FORMS.items()}
    ended = Ledger(*[*(ends / count).tolist(), float(error)])
    return Relevance(**means, ledger=None if walk is None else ended, steps=count)


def starts(real: Tensor, aggregation: Aggregation, numbers: int) -> Iterator[Tensor]:
    """Yield the real positions (B, T) as rows (C, B, T) of where relevance starts: all in one row, or one a
    row, as many at once as `numbers` of a row allow."""
    if aggregation == "sum":
        yield real[None]
        return
    each = torch.eye(real.shape[1], dtype=torch.bool, device=real.device)  # (T, T)
    for row in each.split(max(1, TENSOR_NUMBERS // numbers)):
        yield row[:, None] & real


def head_shares(R: Tensor) -> Tensor:
    """Return |R_h| / sum_h' |R_h'| over the last dimension; 0 where all are 0."""
    return R.abs() / R.abs().sum(-1, keepdim=True).clamp_min(ALMOST_NOTHING)


def share_signed(R: Tensor) -> Tensor:
    """Return R_h / sum_h' R_h' over the last dimension; 0 where the sum is 0."""
    total = R.sum(-1, keepdim=True)
    return torch.where(total == 0, 0.0, R / total)


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "share": head_shares,
    "share_signed": share_signed,
    "signed": lambda R: R,
}  # of `Relevance`


def relevance_score(model: nn.Module, batches: Iterable[Any], **options: Any) -> HeadMap:
    """Return the relevance of every head as a share of its site's, by size, in [0, 1]: an order, lowest
    closed first. Arguments and errors are those of `relevance`."""
    return relevance(model, batches, **options).share
