"""How many times as fast is a smaller model than its base, at each batch and beam, and how good?

    python -m benchmarks.batches runs/A runs/B --threads 1 --record
    python -m benchmarks.batches runs/A --runtimes int8 --lists 0 50 --batches 32 --beams 5 --lines 1000

Each run and the base that it was made of translate the same lines in turns, by each runtime that can run
both, their outputs free to end (pruning/runtime_cost.py). Every row is the median of three rounds, with the
lowest and the highest; `tokens` are those that the smaller model writes for each of the base's, and the
scores are of what it writes by this runtime. --lists gives it a shortlist of so many pieces a source piece.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

from benchmarks.benchmark import Answer, Flag, at_least_one, count_flag, run
from headgates.analysis.significance import score
from headgates.lab.measure import spread_text
from headgates.models.progress import say
from headgates.pruning.runtime_cost import (
    RUNTIMES,
    TIMED,
    UNASKED,
    TimedLines,
    compared,
    how_searched,
    runtimes_of,
)
from headgates.pruning.shortlisting import LinkedPieces
from headgates.records.source import open_source
from headgates.report.speed.side_by_side import base_model

QUESTION = "how many times as fast as its base a smaller model is, by batch, beam and runtime"


def measured_run(path: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each shortlist, runtime, batch and beam."""
    source = open_source(path, device="cpu")
    whole = base_model(source)
    on, (lines, references) = "test", whole.lines("test", options.lines)
    if options.text:
        on, text = source.other(options.text, options.lines)
        lines, references = text
    ids = whole.translator.source_vocab.encode(list(lines))
    run: Any = SimpleNamespace(settings=SimpleNamespace(calibration_targets="reference"))
    links = LinkedPieces(run, whole, seed=1)
    runtimes = [name for name in (*runtimes_of(source.model), "bf16") if name in options.runtimes]
    name, found = source.folder.path.resolve().name, list[dict[str, Any]]()
    for best, runtime, beam, batch in product(options.lists, runtimes, options.beams, options.batches):
        say(f"{name}: {runtime}, {how_searched(batch, beam, options.threads)}, list of {best}")
        ours = source.translator
        if best:
            ours = ours.with_shortlist(links.shortlist(str(best)))
        timed = TimedLines(ids, batch, beam)
        (outputs, _), speed = compared(ours, whole.translator, runtime, options.threads, timed)
        scored = score(ours.target_vocab.decode(outputs), references, source.task.metrics, lines)
        row = {"run": name, "list": best, "runtime": runtime, "batch": batch, "beam": beam, "on": on}
        found.append(row | speed | {"scores": scored.values})
    return found


def answer(options: argparse.Namespace) -> Answer:
    measured = [row for path in options.runs for row in measured_run(path, options)]
    header = ["run", "list", "by", "beam", "batch", "times as fast", "ms a line", "the base's", "tokens"]
    header += measured[0]["scores"]
    rows = [
        [
            *(row[name] for name in ("run", "list", "runtime", "beam", "batch")),
            spread_text(row["measured"]),
            *(f"{each:.2f}" for each in row["milliseconds"]),
            f"{row['tokens']:.2f}",
            *(f"{each:.2f}" for each in row["scores"].values()),
        ]
        for row in measured
    ]
    return Answer({"lines": options.lines, "measured": measured}, header, rows)


def numbers_flag(
    name: str, default: list[int], meaning: str, kind: Callable[[str], int] = at_least_one
) -> Flag:
    return name, {"nargs": "+", "type": kind, "default": default, "help": meaning}


FLAGS: list[Flag] = [
    ("runs", {"nargs": "+", "metavar": "RUN", "help": "runs that prune made"}),
    ("--runtimes", {"nargs": "+", "choices": [*RUNTIMES], "default": [*UNASKED]}),
    numbers_flag("--batches", [1, 8, 32, 64], "sentences at once"),
    numbers_flag("--beams", [1, 5], "beam widths"),
    numbers_flag("--lists", [0], "pieces of a shortlist for each source piece, 0 for none", int),
    count_flag("--lines", TIMED, "lines"),
    ("--text", {"help": "another test set than the run's, as SOURCE:REFERENCE or a corpus"}),
]

if __name__ == "__main__":
    sys.exit(run("batches", QUESTION, __doc__, FLAGS, answer))
