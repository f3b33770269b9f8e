"""Blocks timed in turns, and the median and the range of what was measured.

The systems compared run in turns on the same batches in the same process, so that a machine that slows down
slows all of them; a ratio is taken round by round, and its median is reported with the lowest and the
highest.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from headgates.models.freed_memory import keep_freed_memory

K = TypeVar("K")


def set_threads(threads: int) -> None:
    """Set torch's CPU threads; 0 leaves torch's own choice."""
    if threads:
        torch.set_num_threads(threads)


def wait_for_gpu() -> None:
    """Wait until the GPU has finished its queued work; on a CPU there is none."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def alternate(
    blocks: Mapping[K, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, list[float]]:
    """Seconds of each block in each round. A round runs every block once, in the opposite order of the round
    before (A B, B A, ...), so that neither always comes after the other; `warm_up` rounds before them are not
    timed. clock: seconds that pass; `time.process_time` counts those of this process alone."""
    keep_freed_memory()
    order = list(blocks)
    seconds: dict[K, list[float]] = {name: [] for name in order}
    for turn in range(warm_up + rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            wait_for_gpu()
            begin = clock()
            blocks[name]()
            wait_for_gpu()
            if turn >= warm_up:
                seconds[name].append(clock() - begin)
    return seconds


def load_average() -> float | None:
    """Running processes over the last minute: a quiet machine is below 1 before a measurement."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def median_and_range(values: Sequence[float]) -> dict[str, Any]:
    """Median, lowest, highest and all values."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "values": list(values),
    }


def ratio_by_round(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """over / under, round by round, as `median_and_range`."""
    return median_and_range([a / b for a, b in zip(over, under, strict=True)])


def spread_text(numbers: Mapping[str, Any], digits: int = 2) -> str:
    """`median (lowest to highest)`."""
    median, lowest, highest = (f"{numbers[name]:.{digits}f}" for name in ("median", "lowest", "highest"))
    return f"{median} ({lowest} to {highest})"
