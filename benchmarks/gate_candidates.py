"""Which way of learning gates on frozen weights chooses the heads best?

    python -m benchmarks.gate_candidates runs/toy-en-de-none-s1 --heads 24,12,8 --seeds 2

Every candidate trains gates alone for so many steps on the frozen base, keeps so many heads, and the model is
refitted without the others (out+ffn+v). What counts is the validation loss then: nothing was trained but the
choice. Beside them stand the orders that need no learning. Candidates:

    hard-concrete        all gates start alike, the price leads to the number (l0-target)
    from-integrated      the same, started in the order of integrated gradients; from-fisher likewise
    subset               exactly K open in every sample, soft gradients (Li et al. 2021)
    straight-through     the K highest open, without noise; the gradient is that of the subset's soft top-K
    uniform              uniform gradient sampling: gates at random positions, whose gradients move the
                         probability to be open (Li & Janson 2024)
    alternated           subset in three steps, each refitted before the next
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.configs.source import SourceOptions
from headgates.data.batch import Batch
from headgates.gates import GateBank, HeadMap, attach, detach, find_sites
from headgates.gates.base import HeadGate, hard_top_k
from headgates.gates.budget import TargetBudget
from headgates.gates.registry import GATES
from headgates.gates.subset import Subset, soft_top_k
from headgates.models.progress import say
from headgates.workbench.closing import Calibration, close_heads, closed_heads
from headgates.workbench.points import mean_loss
from headgates.workbench.scores import ScoreRequest, closed_by, head_scores, ranked
from headgates.workbench.source import Source, open_source

CLOSING, START = "out+ffn+v", 2.5
ORDERS = ("importance", "integrated", "fisher", "obs", "obs-swap", "random")


class StraightThrough(Subset):
    """The K highest scores open, without noise; the gradient of the soft top-K."""

    @classmethod
    def sample_peers(cls, gates: Any) -> list[Tensor]:
        scores = torch.cat([gate.score for gate in gates]).double()
        soft = soft_top_k(scores, gates[0].k, gates[0].temperature)
        xi = (hard_top_k(scores.detach(), gates[0].k) + (soft - soft.detach())).float()
        return list(xi.split([gate.heads for gate in gates]))


class Uniform(HeadGate):
    """Uniform gradient sampling: a gate with open probability p is uniform on [0, 1] with chance 4 p (1 - p)
    at most, else 0 or 1; the loss's gradient at its position is an unbiased estimate of that to p."""

    learned = "logit"

    def __init__(self, heads: int, target_heads: int | None = None, logit: float = START):
        super().__init__(heads)
        self.target_heads = target_heads
        self.logit = torch.nn.Parameter(torch.full((heads,), float(logit)))

    def sample(self) -> Tensor:
        p = torch.sigmoid(self.logit)
        inside = torch.rand_like(p) < 2 * torch.minimum(p, 1 - p).detach()
        position = torch.rand_like(p)
        # a sampled position passes the gradient on to p, scaled by the chance that it was sampled
        chance = (2 * torch.minimum(p, 1 - p)).detach().clamp_min(1e-3)
        hard = (torch.rand_like(p) < p).float()
        return torch.where(inside, position + (p - p.detach()) / chance, hard)

    def test_value(self) -> Tensor:
        return torch.sigmoid(self.logit)

    def open_prob(self) -> Tensor:
        return torch.sigmoid(self.logit)

    def decision(self) -> Tensor:
        assert self.target_heads is not None
        return self.is_among_highest(self.target_heads)


GATES |= {"straight-through": StraightThrough, "uniform": Uniform}
Choose = Callable[[Source, int, int, argparse.Namespace], HeadMap]


def training_batches(source: Source, seed: int, tokens: int) -> Iterator[Batch]:
    """Batches of the training text in the order of the seed, for ever."""
    batches = [*source.data().batches("train", tokens)]
    order = torch.Generator().manual_seed(seed)
    while True:
        for number in torch.randperm(len(batches), generator=order).tolist():
            yield batches[number]


def trained_gates(
    source: Source, bank: GateBank, seed: int, options: argparse.Namespace, *, keep: int | None
) -> GateBank:
    """Gates alone, by Adam; the price leads to `keep` where it is given."""
    torch.manual_seed(seed)
    model = source.model
    model.requires_grad_(False)
    bank.requires_grad_(True)
    budget = None if keep is None else TargetBudget(keep, options.warmup)
    optimizer = torch.optim.Adam(bank.parameters(), lr=options.rate)
    model.eval()  # without dropout
    bank.train()
    batches = training_batches(source, seed, options.tokens)
    for step, batch in zip(range(options.steps), batches, strict=False):
        bank.sample()
        loss = source.task.loss(model, batch, smoothing=0.1) / batch.target_tokens
        if budget is not None:
            loss = loss + budget.loss(bank, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bank.eval()
    return bank


def by_gates(gate: str, *, start: str | None = None, priced: bool = False, **options: Any) -> Choose:
    """A candidate that trains one kind of gate."""

    def choose(source: Source, keep: int, seed: int, flags: argparse.Namespace) -> HeadMap:
        given = dict(options)
        if start is not None:
            request = ScoreRequest(source, valid=source.lines("valid"), seed=seed)
            scores = ranked(start, head_scores(start, request))
            places = scores.flat().argsort(stable=True).argsort() + 0.5
            given["log_alpha"] = scores.like(START * (places - (len(places) - keep)) / (len(places) / 2))
        bank = attach(source.model, gate=gate, target_heads=keep, **given)
        try:
            trained_gates(source, bank, seed, flags, keep=keep if priced else None)
            return bank.closed()
        finally:
            detach(source.model)
            source.model.requires_grad_(True)

    return choose


def alternated(source: Source, keep: int, seed: int, flags: argparse.Namespace) -> HeadMap:
    """The subset in three steps of equal ratio, the model refitted after each."""
    total = sum(site.heads for site in find_sites(source.model))
    calibration, closed = Calibration(source, seed=seed), None
    before = copy.deepcopy(source.model.state_dict())
    part = argparse.Namespace(**{**vars(flags), "steps": flags.steps // 3})
    try:
        for step in (1, 2, 3):
            count = round(total * (keep / total) ** (step / 3))
            bank = attach(source.model, gate="subset", target_heads=count, anneal_steps=part.steps)
            with torch.no_grad():  # closed heads stay closed
                gate: Any
                for site, gate in bank.items():
                    if closed is not None:
                        gate.score[closed[site]] = -1e4
            trained_gates(source, bank, seed, part, keep=None)
            closed = bank.closed()
            detach(source.model)
            source.model.requires_grad_(True)
            close_heads(source.model, closed, CLOSING, calibration)
    finally:
        source.model.load_state_dict(before)
    assert closed is not None
    return closed


def by_order(order: str) -> Choose:
    def choose(source: Source, keep: int, seed: int, _: argparse.Namespace) -> HeadMap:
        request = ScoreRequest(source, valid=source.lines("valid"), seed=seed)
        return closed_by(order, head_scores(order, request), keep=keep, request=request)

    return choose


CANDIDATES: dict[str, Choose] = {
    "hard-concrete": by_gates("l0", priced=True),
    "from-integrated": by_gates("l0", start="integrated", priced=True),
    "from-fisher": by_gates("l0", start="fisher", priced=True),
    "subset": by_gates("subset", anneal_steps=150),
    "straight-through": by_gates("straight-through", anneal_steps=150),
    "uniform": by_gates("uniform", priced=True),
    "alternated": alternated,
    **{order: by_order(order) for order in ORDERS},
}


def answer(options: argparse.Namespace) -> Answer:
    source = open_source(options.run, device="cpu", options=SourceOptions(data_dir=options.data_dir))
    valid = source.lines("valid")
    names = options.candidates.split(",") if options.candidates else list(CANDIDATES)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        for keep in map(int, options.heads.split(",")):
            for seed in range(1, options.seeds + 1):
                begin = time.process_time()
                closed = CANDIDATES[name](source, keep, seed, options)
                seconds = time.process_time() - begin
                with closed_heads(source.model, closed, CLOSING, Calibration(source, seed=seed)):
                    loss = mean_loss(source, valid)
                kinds = {kind: int(n) for kind, n in (~closed).by_kind().items()}
                rows[f"{name} {keep} s{seed}"] = {"loss": loss, "seconds": seconds, "kinds": kinds}
                say(f"{name}, {keep} heads, seed {seed}: {loss:.4f}, {seconds:.0f} s, {kinds}")
    counts = options.heads.split(",")
    seeds = range(1, options.seeds + 1)

    def losses(name: str, keep: str) -> str:
        return ", ".join(f"{rows[f'{name} {keep} s{seed}']['loss']:.3f}" for seed in seeds)

    cells = [[name, *(losses(name, keep) for keep in counts)] for name in names]
    head = ["candidate", *(f"{keep} heads" for keep in counts)]
    settings = {name: getattr(options, name) for name in ("steps", "rate", "warmup", "tokens", "seeds")}
    return Answer(
        {"run": source.folder.path.name, **settings, "rows": rows},
        head,
        cells,
        title=f"validation loss after the refit ({CLOSING}), by seed",
        seed=1,
    )


FLAGS: list[Flag] = [
    ("run", {"help": "the base"}),
    ("--data-dir", {"help": "folder with local copies of named corpora"}),
    ("--heads", {"default": "24,12,8", "help": "numbers of heads that stay open, comma-separated"}),
    ("--candidates", {"default": "", "help": f"some of {', '.join(CANDIDATES)}; default all"}),
    ("--rate", {"type": float, "default": 0.5, "help": "learning rate of the gates"}),
    count_flag("--steps", 160, "steps of training gates"),
    count_flag("--warmup", 50, "steps over which the number of heads falls"),
    count_flag("--tokens", 2500, "tokens of a batch, padding counted"),
    count_flag("--seeds", 2, "seeds of samples, batches and gates"),
]


if __name__ == "__main__":
    question = "Which way of learning gates chooses the heads best?"
    sys.exit(run("gate_candidates", question, __doc__ or "", FLAGS, answer))
