"""How fast is a pruned model?   `python export.py RUN --report speed`

The model and the unpruned one that it was made from translate the same test lines in turns, by every runtime
that can run them, timed as plans are (pruning/runtime_cost.py).
"""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from headgates.lab.measure import alternate, ratio_by_round, spread_text
from headgates.models.translator import Translator
from headgates.pruning.runtime_cost import (
    TIMED,
    TimedLines,
    clock_of,
    compared,
    how_searched,
    runtimes_of,
)
from headgates.records.provenance import device_name, provenance
from headgates.records.source import Source, open_source
from headgates.report.compare_columns import RUNTIME_NAMES
from headgates.report.table import show

SPEED_FILE = "speed/side_by_side.json"
ROUNDS = 3  # in turns


def report_speed(source: Source, lines: Sequence[str], *, batch: int, beam: int, threads: int) -> None:
    """Print the table, and write it into the run's folder. Raises ValueError where the run is a base, or
    its base is gone."""
    whole, lines = base_model(source), lines[:TIMED]
    sizes = [sum(each.numel() for each in model.parameters()) for model in (whole.model, source.model)]
    speeds = runtime_speeds(source, whole, lines, batch=batch, beam=beam, threads=threads)
    times = [[f"{speed['milliseconds'][1]:.2f} ms a line" for speed in speeds.values()]]
    times.append([spread_text(speed["measured"]) for speed in speeds.values()])
    rows = [
        [name, f"{size:,}", *cells]
        for name, size, cells in zip(("unpruned", "pruned"), sizes, times, strict=True)
    ]
    names = [RUNTIME_NAMES[runtime] for runtime in speeds]
    how = f" ({how_searched(batch, beam, threads)})" * isinstance(whole.predictor, Translator)
    title = f"{source.folder.path.name}: times as fast as unpruned{how}"
    show(title, ["model", "parameters", *names], rows)
    numbers = {
        "run": source.folder.path.resolve().name,
        "system": source.system,
        "unpruned": whole.folder.path.resolve().name,
        "lines": len(lines),
        "batch": batch,
        "beam": beam,
        "parameters": sizes,
        "speeds": speeds,
    }
    made_by = provenance(device_name(), "32", source.config.get("seed", 0))
    source.folder.write_json(SPEED_FILE, numbers | made_by)


def base_model(source: Source) -> Source:
    """The model that a run was made of."""
    whole = open_source(source.folder.path, unpruned=True, device="cpu")
    if whole.folder.path == source.folder.path:
        raise ValueError(f"{source.folder.path} is a base: give a run that prune made of one")
    return whole


def runtime_speeds(
    source: Source, whole: Source, lines: Sequence[str], *, batch: int, beam: int, threads: int
) -> dict[str, Any]:
    """Runtime -> how many times as fast the source is, and the milliseconds a line of both. Batch and beam
    are those of translation; labels are made by torch alone."""
    if isinstance(whole.predictor, Translator):
        text = TimedLines(whole.predictor.source_vocab.encode(list(lines)), batch, beam)
        return {
            name: compared(source.translator, whole.predictor, name, threads, text)[1]
            for name in runtimes_of(source.model)
        }
    both = {"this": source, "whole": whole}
    blocks = {name: partial(each.task.predict, each.predictor, lines) for name, each in both.items()}
    seconds = alternate(blocks, rounds=ROUNDS, clock=clock_of(threads))
    milliseconds = [1000 * median(each) / len(lines) for each in seconds.values()]
    measured = ratio_by_round(seconds["whole"], seconds["this"])
    return {"torch": {"measured": measured, "milliseconds": milliseconds}}
