"""How much can the choice of heads gain at all?

    python -m benchmarks.choices runs/multi30k-en-de-none-s1 --compared runs/compare-NAME --heads 9

Takes the choices of a comparison's first seed at a number of heads, refits the unpruned model for each, and
measures its loss on two halves of the validation text. From the best on the first half a search goes on: a
random open and a random closed head change places, and the swap stays where the refitted model's loss on that
half falls. The second half, which the search never sees, says what it gained before training; `--epochs`
trains every choice alike, and the test set says what is left.
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.configs.compare import CompareConfig
from headgates.gates import HeadMap, attach, find_sites
from headgates.lab.lab import Lab
from headgates.models.progress import say
from headgates.pruning.closing import Calibration, close_heads, closed_heads
from headgates.pruning.comparison import shared_settings
from headgates.pruning.points import mean_loss
from headgates.records.folder import RunFolder
from headgates.records.source import Lines, Source, open_source
from headgates.records.table import read_table
from headgates.report.compare_groups import open_heads

CLOSING = "out+ffn+v"
Choice = frozenset[tuple[str, int]]  # (site, head) of every open head


def choices_of(folder: RunFolder, heads: int) -> dict[str, Choice]:
    """Method -> its open heads in the first seed of a comparison. Raises ValueError without one."""
    found: dict[str, Choice] = {}
    for row in read_table(folder, "compare.csv"):
        if (
            row["heads_asked"] == heads
            and row["heads_open"] < row["heads_total"]
            and row["method"] not in found
        ):
            made = RunFolder(folder.path.parent / row["run"]).row_of(row["system"])
            found[row["method"]] = frozenset(open_heads(made))
    if not found:
        raise ValueError(f"{folder.path} has no point at {heads} heads")
    return found


def closed_of(source: Source, choice: Choice) -> HeadMap:
    """The map of a choice, True where a head is closed."""
    sites = find_sites(source.model)
    return HeadMap(
        {
            site: torch.tensor([(site.name, head) not in choice for head in range(site.heads)])
            for site in sites
        }
    )


def refitted_loss(source: Source, choice: Choice, calibration: Calibration, text: Lines) -> float:
    """Nats per token of the unpruned model with the choice's other heads closed and weights refitted."""
    with closed_heads(source.model, closed_of(source, choice), CLOSING, calibration):
        return mean_loss(source, text)


def searched(
    source: Source, start: Choice, calibration: Calibration, text: Lines, *, tries: int, seed: int
) -> Choice:
    """The choice after so many random swaps, each kept where the loss falls."""
    rng, best, loss = Random(seed), start, refitted_loss(source, start, calibration, text)
    heads = [(site.name, head) for site in find_sites(source.model) for head in range(site.heads)]
    for number in range(tries):
        gone, come = rng.choice(sorted(best)), rng.choice(sorted(set(heads) - best))
        tried = refitted_loss(source, best - {gone} | {come}, calibration, text)
        if tried < loss:
            best, loss = best - {gone} | {come}, tried
            swap = f"without {gone[0]}.{gone[1]}, with {come[0]}.{come[1]}"
            say(f"swap {number + 1} of {tries}: {loss:.4f} {swap}")
    return best


def trained(lab: Lab, source: Source, name: str, choice: Choice) -> Mapping[str, Any]:
    """The test score and validation loss of a choice, refitted and trained as the configuration says."""
    with lab.run(f"choice-{name}", gate="scores", on=source.folder, choice=sorted(choice)) as made:
        if not made.done:
            predictor = made.load()
            evaluation = made.begin_rows(predictor)
            start = replace(source, predictor=predictor)
            start.corpus = source.corpus
            closed = closed_of(start, choice)
            close_heads(predictor.model, closed, CLOSING, Calibration(start, seed=lab.config.seed))
            attach(predictor.model, gate="mask", xi=(~closed).map(lambda row: row.double()))
            result = made.train_on("choice", predictor)
            row = evaluation.add(
                "choice", made.folder / "best.pt", predictor, ~closed, stage=result.to_json()
            )
            evaluation.reference = row.system
            made.finish("choice")
        row = made.folder.row_of("choice")
    return {"test": row.main.value, "trained_loss": min((row.stage or {})["losses"])}


def answer(options: argparse.Namespace) -> Answer:
    config = CompareConfig(
        source=options.run,
        fit=options.fit,
        runs=str(Path(options.compared).parent),
        data_dir=options.data_dir,
    )
    settings = replace(shared_settings(config), gate="scores", heads=options.heads, resume=True, unique=True)
    finetune = replace(settings.finetune, epochs=options.epochs)
    lab = Lab(replace(settings, finetune=finetune, threads=options.threads, seed=options.seed))
    source = open_source(options.run, options=config)
    calibration = Calibration(source, sentences=options.calibration, seed=options.seed)
    sources, references = source.lines("valid")
    first, second = (sources[::2], references[::2]), (sources[1::2], references[1::2])
    choices = choices_of(RunFolder(options.compared), options.heads)
    before = {name: refitted_loss(source, choice, calibration, first) for name, choice in choices.items()}
    start = min(before, key=lambda name: before[name])
    say(f"the search starts from {start}, {before[start]:.4f}")
    choices["searched"] = searched(
        source, choices[start], calibration, first, tries=options.tries, seed=options.seed
    )
    rows = {}
    for name, choice in choices.items():
        losses = [refitted_loss(source, choice, calibration, text) for text in (first, second)]
        after = trained(lab, source, name.replace(":", "-"), choice)
        shared = len(choice & choices["searched"]) / len(choice | choices["searched"])
        rows[name] = {"searched_half": losses[0], "other_half": losses[1], **after, "shared": shared}
        say(f"{name}: {rows[name]}")
    lab.close()
    header = ["choice", "loss, searched half", "other half", "trained: loss", "test", "heads of searched"]
    keys = ("searched_half", "other_half", "trained_loss", "test", "shared")
    cells = [
        [name, *(f"{row[key]:.4f}" for key in keys[:3]), *(f"{row[key]:.2f}" for key in keys[3:])]
        for name, row in rows.items()
    ]
    numbers = {
        "heads": options.heads,
        "tries": options.tries,
        "epochs": options.epochs,
        "started_from": start,
        "choices": rows,
    }
    return Answer(numbers, header, cells, title=f"{options.heads} heads, {CLOSING}", seed=options.seed)


FLAGS: list[Flag] = [
    ("run", {"help": "the base"}),
    ("--compared", {"required": True, "help": "folder of a comparison on it, made by compare.py"}),
    ("--fit", {"help": "YAML file of fit.py's settings, that of the comparison"}),
    ("--data-dir", {"help": "folder with local copies of named corpora"}),
    count_flag("--heads", 9, "heads that stay open"),
    count_flag("--tries", 100, "swaps that are tried"),
    count_flag("--epochs", 1, "epochs of training of every choice"),
    count_flag("--calibration", 1000, "training pairs of a refit"),
    count_flag("--seed", 1, "seed of swaps, refits and training"),
]


if __name__ == "__main__":
    sys.exit(run("choices", "How much can the choice of heads gain at all?", __doc__ or "", FLAGS, answer))
