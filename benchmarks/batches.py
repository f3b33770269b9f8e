"""How many times as fast is a smaller model than its base, at each batch and beam?

    python -m benchmarks.batches runs/A runs/B --threads 1 --record

Each run and the base that it was made of translate the same test lines in turns, by each runtime that can run
both, their outputs free to end (pruning/runtime_cost.py). Every row is the median of six rounds, with the
lowest and the highest; `tokens` are those that the smaller model writes for each of the base's.
"""

import argparse
import sys
from itertools import product
from typing import Any

from benchmarks.benchmark import Answer, Flag, at_least_one, count_flag, run
from headgates.lab.measure import spread_text
from headgates.models.progress import say
from headgates.pruning.runtime_cost import RUNTIMES, TIMED, TimedLines, compared, how_searched, runtimes_of
from headgates.records.source import open_source
from headgates.report.speed.side_by_side import base_model

QUESTION = "how many times as fast as its base a smaller model is, by batch, beam and runtime"


def measured_run(path: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each runtime, batch and beam."""
    source = open_source(path, device="cpu")
    whole = base_model(source)
    ids = whole.translator.source_vocab.encode(whole.lines("test", options.lines)[0])
    runtimes = [name for name in runtimes_of(source.model) if name in options.runtimes]
    name, found = source.folder.path.resolve().name, list[dict[str, Any]]()
    for runtime, beam, batch in product(runtimes, options.beams, options.batches):
        say(f"{name}: {runtime}, {how_searched(batch, beam, options.threads)}")
        text = TimedLines(ids, batch, beam)
        speed = compared(source.translator, whole.translator, runtime, options.threads, text)[1]
        found.append({"run": name, "runtime": runtime, "batch": batch, "beam": beam} | speed)
    return found


def answer(options: argparse.Namespace) -> Answer:
    measured = [row for path in options.runs for row in measured_run(path, options)]
    header = ["run", "by", "beam", "batch", "times as fast", "ms a line", "the base's", "tokens"]
    rows = [
        [
            *(row[name] for name in ("run", "runtime", "beam", "batch")),
            spread_text(row["measured"]),
            *(f"{each:.2f}" for each in row["milliseconds"]),
            f"{row['tokens']:.2f}",
        ]
        for row in measured
    ]
    return Answer({"lines": options.lines, "measured": measured}, header, rows)


def numbers_flag(name: str, default: list[int], meaning: str) -> Flag:
    return name, {"nargs": "+", "type": at_least_one, "default": default, "help": meaning}


FLAGS: list[Flag] = [
    ("runs", {"nargs": "+", "metavar": "RUN", "help": "runs that prune made"}),
    ("--runtimes", {"nargs": "+", "choices": [*RUNTIMES], "default": [*RUNTIMES]}),
    numbers_flag("--batches", [1, 8, 32, 64], "sentences at once"),
    numbers_flag("--beams", [1, 5], "beam widths"),
    count_flag("--lines", TIMED, "test lines"),
]

if __name__ == "__main__":
    sys.exit(run("batches", QUESTION, __doc__, FLAGS, answer))
