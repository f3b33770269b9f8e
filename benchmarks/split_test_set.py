"""A run's base and its test set in parts: what the speed of translation is measured on, and the flags that
choose them."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Flag, count_flag
from headgates.report.speed.measure import seconds_of

if TYPE_CHECKING:
    from headgates.models.line_translator import LineTranslator
    from headgates.workbench.dense_model import DenseModel

FLAGS: list[Flag] = [
    ("run", {"metavar": "RUN", "help": "a finished run folder; its base is measured"}),
    ("--data-dir", {"help": "folder with a local copy of the run's corpus"}),
    count_flag("--parts", 5, "parts of the test set"),
    ("--sentences", {"type": int, "default": 0, "help": "test sentences, 0 for all (default: %(default)s)"}),
]


def open_base(options: argparse.Namespace) -> "tuple[DenseModel, list[Sequence[str]]]":
    """The run's base and the source sentences of its test set in --parts parts. Raises ValueError if there
    are fewer sentences than parts, or as `DenseModel.open` does."""
    from headgates.configs.prune import PruneConfig
    from headgates.workbench.dense_model import DenseModel

    config = PruneConfig(
        source=options.run,
        data_dir=options.data_dir,
        test_sentences=options.sentences,
        threads=options.threads,
    )
    dense = DenseModel.open(config)
    lines = dense.test[0]
    if options.parts > len(lines):
        raise ValueError(f"--parts: expected at most the {len(lines)} test sentences, got {options.parts}")
    return dense, [lines[first :: options.parts] for first in range(options.parts)]


def set_best_batch(
    system: "LineTranslator", translate: Callable[[], object], batch_tokens: Sequence[int]
) -> dict[int, float]:
    """Seconds of `translate` at each batch size, the better of two; the system keeps the fastest batch
    size."""
    seconds = {}
    for tokens in batch_tokens:
        system.search = replace(system.search, batch_tokens=tokens)
        seconds[tokens] = min(seconds_of(translate), seconds_of(translate))
    system.search = replace(system.search, batch_tokens=min(seconds, key=lambda tokens: seconds[tokens]))
    return seconds


def time_parts(
    systems: Mapping[str, Callable[[Sequence[str]], Any]], parts: Sequence[Sequence[str]]
) -> tuple[dict[str, list[float]], list[dict[str, Any]]]:
    """The seconds of each system on every part, and for every part what each system returned. On a part all
    run one after another, in the opposite order of the part before."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    outputs: list[dict[str, Any]] = []
    for number, lines in enumerate(parts):
        outputs.append({})
        for name in list(systems)[:: 1 if number % 2 == 0 else -1]:
            elapsed, outputs[-1][name] = seconds_and_output(systems[name], lines)
            seconds[name].append(elapsed)
        print(
            f"part {number + 1} of {len(parts)}: "
            + ", ".join(f"{name} {seconds[name][-1]:.1f} s" for name in systems),
            flush=True,
        )
    return seconds, outputs


def seconds_and_output(translate: Callable[[Sequence[str]], Any], lines: Sequence[str]) -> tuple[float, Any]:
    output: list[Any] = []
    return seconds_of(lambda: output.append(translate(lines))), output[0]
