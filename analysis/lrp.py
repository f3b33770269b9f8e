"""How much of what a model says goes through each head: layer-wise relevance propagation (LRP).   Voita et al. 2019 (arXiv:1905.09418),
section 4.2 and appendix A, whose code was not released.

At each target position, with the reference before it (teacher forcing), relevance starts at the largest logit and goes back step by step:
a rule shares the relevance of every number among those it was made of (lrp_rules.py, lrp_alpha_beta.py). The relevance R_h of a head is
what arrives at its output z_h, where W_O reads it, over all positions; its share is |R_h| / sum_h' |R_h'| within the layer.

    step   the share at every generation step, then the mean over all steps of all sentences: the paper's
    sum    R_h summed over all steps of all sentences, then one share: the steps go back together, for the price of one; steps of which one
           says yes and the other no take each other away

What the papers leave open, and we chose:
    - the seed is 1 at the logit (as in Voita et al.'s later code) and 0 elsewhere, so steps count alike; "logit" seeds the logit's own
      value. The shares of a step do not depend on it.
    - the end of sentence is a step like any other; padding is none.
    - attention weights are constant: relevance goes to the values, none to queries and keys. An elementwise product v = a x would split it
      as a : x (Ding et al. 2017), which adds up a probability and an activation; through the values alone is what conserves relevance
      (Ali et al. 2022), and it is nearer to what leaving inputs out does (You et al. 2025, arXiv:2510.18810).
    - layer norms: see the rules. A gate xi is part of its head's weights; a head that is shut or removed has none.
    - where biases go: nowhere. A bias is one more term of its sum and keeps its part, the bias share. Position vectors are part of the
      embeddings.
Relevance is conserved: source + target + biases + eps = seed, where `eps` is what the stabiliser took. The ledger says how exactly.
Letters: C rows of seeds of a sentence, B sentences, T target positions, H heads.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from analysis.lrp_alpha_beta import AlphaBeta
from analysis.lrp_rules import Account, Gradient, Ratio, Rule
from analysis.lrp_walk import Walk
from data.batch import Batch
from gates import HeadMap, HeadSite, find_sites
from gates.headmap import check_kinds
from models.transformer import Transformer

RULES: dict[str, type[Ratio] | type[AlphaBeta] | type[Gradient]] = {"ratio": Ratio, "alpha-beta": AlphaBeta, "gradient": Gradient}
Aggregation = Literal["step", "sum"]
Seed = Literal["one", "logit"]
NOTHING = 1e-300  # a denominator of 0 becomes this
NUMBERS = 2**23  # of the largest tensor on the way back; generation steps go back together while they stay below


@dataclass(frozen=True)
class Ledger:
    """Where relevance ended, in units of the seed per generation step: source + target + biases + eps = seed.

    error: the largest |source + target + biases + eps - seed| / |seed| of any step (of any sentence for "sum")."""

    seed: float
    source: float
    target: float
    biases: float
    eps: float
    error: float


@dataclass(frozen=True)
class Relevance:
    """share: in [0, 1], 1 in total in every layer (0 where no head has relevance). signed: the mean of R_h over generation steps, in units
    of the seed: the same for both aggregations."""

    share: HeadMap
    signed: HeadMap
    ledger: Ledger
    steps: int  # generation steps

    def to_json(self) -> dict[str, Any]:
        return {"share": self.share.to_json(), "signed": self.signed.to_json(), "ledger": asdict(self.ledger), "steps": self.steps}


@torch.no_grad()
def relevance(
    model: Transformer,
    batches: Iterable[Batch],
    *,
    rule: str | Rule = "ratio",
    aggregation: Aggregation = "step",
    kinds: Iterable[str] | None = None,
    seed: Seed = "one",
    dtype: torch.dtype | None = None,
) -> Relevance:
    """The relevance of every head of the kinds; sites without heads are left out. Does not depend on how pairs are batched.

    rule: "ratio", "alpha-beta" or "gradient", or one with its numbers, such as Ratio(eps=1e-3). dtype: what is computed in, the model's own
    unless given; conservation is exact to 1e-4 in float64. Gates stay as they are. The model is left as it was.
    Raises ValueError at an unknown name, kinds without a head, or no generation step at all."""
    rule = RULES[known(rule, RULES, "rule")]() if isinstance(rule, str) else rule
    known(aggregation, get_args(Aggregation), "aggregation")
    known(seed, get_args(Seed), "seed")
    chosen = check_kinds(kinds)
    sites = [site for site in find_sites(model) if site.kind in chosen and site.heads]
    if not sites:
        raise ValueError(f"the model has no heads of the kinds {', '.join(chosen)}, so they have no relevance; name other kinds")
    tally = Tally(sites)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    device = model.output.weight.device
    try:
        for batch in batches:
            batch = batch.to(device)
            with torch.autocast(device.type, enabled=False):
                walk = Walk(model, batch, rule, dtype or model.output.weight.dtype)
                real = batch.target_out != model.target_specials.padding  # (B, T)
                value = walk.logits if seed == "logit" else torch.ones_like(walk.logits)
                widest = max(walk.source.shape[1], walk.target.shape[1]) * max(model.config.ffn, model.config.d_model)
                for rows in starts(real, aggregation, max(1, NUMBERS // (len(batch) * widest))):
                    tally.add(walk.back(rows * value), rows)
    finally:
        for module, training in modes:
            module.training = training
    if not tally.steps:
        raise ValueError("relevance starts at target tokens, got no batch with one")
    return tally.result(aggregation)


def starts(real: Tensor, aggregation: Aggregation, at_most: int) -> Iterator[Tensor]:
    """The real positions (B, T) as rows (C, B, T) of where relevance starts: all in one row, or each in its own, `at_most` at a time."""
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
        self.signed = {site: torch.zeros(site.heads, dtype=torch.float64) for site in sites}
        self.shares = {site: torch.zeros(site.heads, dtype=torch.float64) for site in sites}
        self.ends = torch.zeros(5, dtype=torch.float64)
        self.error = 0.0
        self.steps = 0

    def add(self, account: Account, rows: Tensor) -> None:
        """rows: where the seeds were, (C, B, T) bool."""
        real = rows.any(2)  # (C, B); the others are padding
        if not real.any():
            return
        self.steps += int(rows.sum())
        for site, total in self.signed.items():
            R = account.heads[site.name][real].cpu()  # (rows, H)
            total += R.sum(0)
            self.shares[site] += shared(R).sum(0)
        seed, *ends = (each[real].cpu() for each in (account.seed, account.source, account.target, account.biases, account.eps))
        self.ends += torch.stack([each.sum() for each in (seed, *ends)])
        self.error = max(self.error, float(((sum(ends) - seed).abs() / seed.abs().clamp_min(NOTHING)).max()))

    def result(self, aggregation: Aggregation) -> Relevance:
        signed = HeadMap({site: total / self.steps for site, total in self.signed.items()})
        steps = HeadMap({site: total / self.steps for site, total in self.shares.items()})
        seed, source, target, biases, eps = (self.ends / self.steps).tolist()
        ledger = Ledger(seed, source, target, biases, eps, self.error)
        return Relevance(steps if aggregation == "step" else signed.map(shared), signed, ledger, self.steps)


def shared(R: Tensor) -> Tensor:
    """|R_h| / sum_h' |R_h'| over the last dimension; 0 where all are 0."""
    return R.abs() / R.abs().sum(-1, keepdim=True).clamp_min(NOTHING)


def known(name: str, names: Iterable[str], what: str) -> str:
    """`name`. Raises ValueError unless it is one of the names."""
    names = list(names)
    if name not in names:
        nearest = get_close_matches(name, names, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        raise ValueError(f"unknown {what} {name!r}{hint} Known: {', '.join(names)}")
    return name
