"""A run's base and its test set in parts: what the speed of translation is measured on, and the flags that choose them."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.benchmark import Flag, count_flag
from speed.measure import seconds_of

if TYPE_CHECKING:
    from models.line_translator import LineTranslator
    from pruning.dense_model import DenseModel

FLAGS: list[Flag] = [
    ("run", {"metavar": "RUN", "help": "a finished run folder; its base is measured"}),
    ("--data-dir", {"help": "folder with a local copy of the run's corpus"}),
    count_flag("--parts", 5, "parts of the test set"),
    ("--sentences", {"type": int, "default": 0, "help": "test sentences, 0 for all (default: %(default)s)"}),
]


def open_base(options: argparse.Namespace) -> "tuple[DenseModel, list[Sequence[str]]]":
    """The run's base and the source sentences of its test set in --parts parts. Raises ValueError if there are fewer sentences than parts,
    or as `DenseModel.open` does."""
    from configs.prune import PruneConfig
    from pruning.dense_model import DenseModel

    config = PruneConfig(source=options.run, data_dir=options.data_dir, test_sentences=options.sentences, threads=options.threads)
    dense = DenseModel.open(config)
    lines = dense.test[0]
    if options.parts > len(lines):
        raise ValueError(f"--parts: expected at most the {len(lines)} test sentences, got {options.parts}")
    return dense, [lines[first :: options.parts] for first in range(options.parts)]


def set_best_batch(system: "LineTranslator", translate: Callable[[], object], batch_tokens: Sequence[int]) -> dict[int, float]:
    """Seconds of `translate` at each batch size, the better of two; the system keeps the fastest batch size."""
    seconds = {}
    for tokens in batch_tokens:
        system.search = replace(system.search, batch_tokens=tokens)
        seconds[tokens] = min(seconds_of(translate), seconds_of(translate))
    system.search = replace(system.search, batch_tokens=min(seconds, key=lambda tokens: seconds[tokens]))
    return seconds
