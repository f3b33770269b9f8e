"""Do selectors find the heads that a task needs?

    python -m benchmarks.planted                            # every selector, minutes
    python -m benchmarks.planted --score my_module:my_score # yours alone: my_score(model, batches) -> HeadMap
    python -m benchmarks.planted --score loss-swap          # one of headgates alone

The task needs exactly four of 24 heads, or as many as --relations says, one for each relation; the others
are decoys of four kinds, each planted alone and then all together (benchmarks/planted_world.py). A selector
reads the training text and is asked for as many heads as are needed: an answer is right if these are one head
of each relation. And how many of the heads that it puts first must stay open until every held-out token is
right?

Scores are those of pruning/choosers.py that need no run folder, highest kept; gates learn on frozen weights,
with the default settings of fit.py. No weight is refitted.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from statistics import median
from typing import Any

import torch

from benchmarks.benchmark import Answer, Flag, count_flag, run
from benchmarks.planted_world import DECOYS, PlantedWorld, planted_world
from headgates.analysis.batches import Draw, Loss, TopLogits, batch_loss, sampled_targets, top_logits
from headgates.analysis.closing import close_to
from headgates.configs.learned import LEARNED
from headgates.configs.registry import imported
from headgates.configs.stages import GateConfig
from headgates.gates import HeadMap, attach, detach, find_sites
from headgates.models.progress import say
from headgates.pruning.choosers import SCORES, score_named
from headgates.pruning.scores import ranked

WORLDS: dict[str, tuple[str, ...]] = {**{decoy: (decoy,) for decoy in DECOYS}, "all": DECOYS}
LEARNED_GATES = ("l0", "subset")
USUAL_RELATIONS = 4
FIRST_SEED = 11  # what seeds 1 to 10 plant was looked at while selectors were made
GATE_STEPS = 200  # of learned gates; decisions stand after some 160 (LOG.md)

HeadChoice = Callable[[int], HeadMap]  # how many heads stay open -> True: closed


@dataclass(frozen=True)
class Given:
    """What a score may take, but for what a run folder has."""

    seed: int
    loss: Loss = batch_loss
    draw: Draw = sampled_targets
    logits: TopLogits = top_logits
    kinds: None = None
    ranks: None = None
    closed: None = None

    def options(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


KNOWN_OPTIONS = {field.name for field in fields(Given)}
LEFT_OUT_SCORES = [name for name, score in SCORES.items() if not KNOWN_OPTIONS.issuperset(score.takes)]


@lru_cache(maxsize=1)  # scores that are parts of one computation follow each other in SCORES
def computed(function: str, takes: tuple[str, ...], world: PlantedWorld, seed: int) -> Any:
    return imported(function)(world.model, world.batches, **Given(seed).options(takes))


def check_own(path: str) -> None:
    """Raises ValueError where a score of the user's own is no function of a model and batches, or needs what
    only a run has."""
    needs = set(score_named(path).takes) - KNOWN_OPTIONS
    signature = inspect.signature(imported(path))
    try:
        signature.bind(None, None, **dict.fromkeys(score_named(path).takes))
    except TypeError as error:
        raise ValueError(f"--score {path}: expected {path}(model, batches), got {path}{signature}") from error
    if needs:
        raise ValueError(f"--score {path}: {', '.join(sorted(needs))} are of a run, and here is none")


def choose_by_score(name: str, world: PlantedWorld, seed: int) -> HeadChoice:
    """The choice of a score, refined at its count where the score does that. Raises ValueError unless it
    gives a number for every head."""
    score, sites = score_named(name), find_sites(world.model)
    found = computed(score.function, score.takes, world, seed)
    found = found[score.part] if score.part else found
    if not isinstance(found, HeadMap) or set(found) != set(sites):
        raise ValueError(
            f"{name} gave a {type(found).__name__}; expected a HeadMap with a number for every head of "
            f"{', '.join(site.name for site in sites)}"
        )
    scores = ranked(name, found)

    def choice(keep: int) -> HeadMap:
        closed = close_to(scores, keep)
        if score.refine is None:
            return closed
        options = Given(seed).options(score.takes)
        better: HeadMap = imported(score.refine)(world.model, world.batches, closed, **options)
        return better

    return choice


def choose_by_gates(name: str, world: PlantedWorld, seed: int) -> HeadChoice:
    """The order of gates that learned to keep as many heads as are needed, on frozen weights."""
    torch.manual_seed(seed)
    learned, settings = LEARNED[name], GateConfig()
    options = learned.gate_options(settings)
    bank = attach(world.model, learned.gate, heads=world.needed, warmup=settings.lambda_warmup, **options)
    adam = torch.optim.AdamW(bank.parameters(), lr=settings.lr, weight_decay=0.0)
    world.model.train()
    try:
        for step in range(GATE_STEPS):
            batch = world.batches[step % len(world.batches)]
            loss = batch_loss(world.model, batch) / batch.target_tokens + bank.loss(step)
            adam.zero_grad()
            loss.backward()
            adam.step()
        order = HeadMap({site: gate.position() for site, gate in bank.items()})
    finally:
        detach(world.model.eval())
    return lambda keep: close_to(order, keep)


def selectors(score: str | None) -> dict[str, Callable[[str, PlantedWorld, int], HeadChoice]]:
    """What chooses, by name; one alone where it is asked for. Raises ValueError for what is none."""
    if score is not None and ":" in score:
        check_own(score)
        return {score: choose_by_score}
    found: dict[str, Callable[[str, PlantedWorld, int], HeadChoice]] = {}
    found |= {name: choose_by_score for name in SCORES if name not in LEFT_OUT_SCORES}
    found |= {name: choose_by_gates for name in LEARNED_GATES}
    if score is None:
        return found
    if score not in found:
        raise ValueError(f"--score {score}: expected module:name, or one of {', '.join(found)}")
    return {score: found[score]}


def measured_choice(world: PlantedWorld, choice: HeadChoice) -> dict[str, Any]:
    """found: whether the heads that it keeps, asked for as many as are needed, are those. kept: how many it
    keeps until the task is solved."""
    choice = lru_cache(choice)  # a refined one takes passes over the text
    total = sum(site.heads for site in find_sites(world.model))
    kept = next(keep for keep in range(world.needed, total + 1) if world.solved(choice(keep)))
    return {"found": world.found(choice(world.needed)), "kept": kept}


def world_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    chosen = selectors(options.score)
    for decoys in options.decoys:
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            world = planted_world(seed, WORLDS[decoys], options.relations)
            world.model.requires_grad_(False)
            for name, select in chosen.items():
                row = {"selector": name, "decoys": decoys, "relations": options.relations, "seed": seed}
                yield row | measured_choice(world, select(name, world, seed))
            say(f"{decoys} decoys, seed {seed} of {FIRST_SEED} to {FIRST_SEED + options.seeds - 1}")


def column_of(row: Mapping[str, Any]) -> str:
    """What stands above a planting: its decoys, and how many relations its task has unless four."""
    return row["decoys"] + (f", {row['relations']} needed" if row["relations"] != USUAL_RELATIONS else "")


def selector_table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and a line for each selector: in how many seeds it finds the heads in each kind of planting, and
    how many more heads than are needed it keeps in the plantings of all decoys, median (lowest to
    highest)."""
    order = [*WORLDS]
    columns = {
        column_of(row): None
        for row in sorted(rows, key=lambda row: (order.index(row["decoys"]), row["relations"]))
    }
    lines = []
    for name in dict.fromkeys(row["selector"] for row in rows):
        own = [row for row in rows if row["selector"] == name]
        by_column = [[row["found"] for row in own if column_of(row) == column] for column in columns]
        extra = [row["kept"] - row["relations"] for row in own if row["decoys"] == "all"]
        spread = f"{median(extra):g} ({min(extra)} to {max(extra)})" if extra else ""
        cells = [f"{sum(found)}/{len(found)}" if found else "" for found in by_column]
        lines.append([name, *cells, spread])
    return ["selector", *columns, "heads too many until solved"], lines


def answer(options: argparse.Namespace) -> Answer:
    rows = list(world_rows(options))
    title = f"seeds of {options.seeds} in which exactly the needed heads are found, by decoys"
    numbers = {"score": options.score, "seeds": options.seeds, "left_out": LEFT_OUT_SCORES, "rows": rows}
    return Answer(numbers, *selector_table(rows), title=title)


FLAGS: list[Flag] = [
    (
        "--score",
        {"metavar": "MODULE:NAME", "help": "only this function (model, batches) -> HeadMap, or selector"},
    ),
    count_flag("--seeds", 3, "plantings of each kind"),
    count_flag("--relations", USUAL_RELATIONS, "heads that the task needs, 3 to 6"),
    (
        "--decoys",
        {"nargs": "+", "choices": [*WORLDS], "default": [*WORLDS], "help": "which (default: every kind)"},
    ),
]

if __name__ == "__main__":
    question = "do selectors find the heads that a task needs?"
    sys.exit(run("planted", question, __doc__, FLAGS, answer))
