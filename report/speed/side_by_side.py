"""How fast is a pruned model?   `python export.py RUN --report speed`

The model and the unpruned one that it was made from translate the same test lines in turns, by every runtime
that can run them, timed as plans are (workbench/runtime_cost.py).
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from headgates.bridges.formats import remove_closed
from headgates.configs.export import ExportConfig
from headgates.models.translator import Translator
from headgates.report.compare_speeds import RUNTIME_NAMES
from headgates.report.table import show
from headgates.lab.measure import alternate, interval_text, ratio_by_round
from headgates.records.provenance import device_name, provenance
from headgates.pruning.runtime_cost import ROUNDS, TIMED, Lines, clock_of, compared, runtimes_of
from headgates.records.source import Source, open_source

NAME = "speed/side_by_side.json"


def report_speed(source: Source, config: ExportConfig) -> None:
    """Print the table, and write it into the run's folder. Closed heads of the source are removed. Raises
    ValueError where the run was not made from an unpruned model, or that model is gone."""
    whole, lines = unpruned_of(source), source.lines("test", config.sentences)[0][:TIMED]
    remove_closed(source.model)
    sizes = [sum(each.numel() for each in model.parameters()) for model in (whole.model, source.model)]
    speeds = speeds_of(source, whole, lines, config)
    times = [[f"{speed['milliseconds'][1]:.2f} ms a line" for speed in speeds.values()]]
    times.append([interval_text(speed["measured"]) for speed in speeds.values()])
    rows = [
        [name, f"{size:,}", *cells]
        for name, size, cells in zip(("unpruned", "pruned"), sizes, times, strict=True)
    ]
    names = [RUNTIME_NAMES[runtime] for runtime in speeds]
    show(f"{source.folder.path.name}: times as fast as unpruned", ["model", "parameters", *names], rows)
    numbers = {
        "run": source.folder.path.resolve().name,
        "system": source.system,
        "unpruned": whole.folder.path.resolve().name,
        "lines": len(lines),
        "batch": config.batch,
        "beam": config.beam,
        "parameters": sizes,
        "speeds": speeds,
    }
    made_by = provenance(device_name(), "32", source.config.get("seed", 0))
    source.folder.write_json(NAME, numbers | made_by)


def unpruned_of(source: Source) -> Source:
    """The model that a run was made from: the base of a run with gates, or what `prune.py --save` pruned."""
    made, folder = (source.folder.result() or {}).get("pruned"), source.folder.path
    if made:
        return open_source(folder.parent / Path(made["source"]).name, unpruned=True, device="cpu")
    whole = open_source(folder, unpruned=True, device="cpu")
    if whole.folder.path == folder:
        raise ValueError(
            f"{folder} is not pruned: give a run of fit.py with gates, or one that prune.py --save made of it"
        )
    return whole


def speeds_of(source: Source, whole: Source, lines: Sequence[str], config: ExportConfig) -> dict[str, Any]:
    """Runtime -> how many times as fast the source is, and the milliseconds a line of both. Batch and beam
    are those of translation; labels are made by torch alone."""
    own = whole.predictor
    if isinstance(own, Translator):
        text = Lines(own.source_vocab.encode(list(lines)), config.batch, config.beam)
        return {
            name: compared(own, source.model, whole.model, name, config.threads, text)[1]
            for name in runtimes_of(source.model)
        }
    both = {"this": source, "whole": whole}
    blocks = {name: partial(each.task.predict, each.predictor, lines) for name, each in both.items()}
    seconds = alternate(blocks, rounds=ROUNDS, clock=clock_of(config.threads))
    milliseconds = [1000 * median(each) / len(lines) for each in seconds.values()]
    measured = ratio_by_round(seconds["whole"], seconds["this"])
    return {"torch": {"measured": measured, "milliseconds": milliseconds}}
