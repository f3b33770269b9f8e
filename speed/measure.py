"""Alternating timed blocks and their record: one JSON line with the question, every number and what made them.

The things compared run in turns on the same batches in the same process, so that a machine that slows down slows all of them; a ratio is
taken round by round and its median is quoted with the lowest and the highest.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def arguments(name: str, about: str) -> argparse.ArgumentParser:
    """A parser with the flags that every measurement has. Imports nothing heavy, so that --help answers at once."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--out", default=f"results/{name}.jsonl", help="file that gets one more JSON line (default: %(default)s)")
    return parser


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {number}")
    return number


def set_threads(threads: int) -> None:
    """0 leaves torch's own choice."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def wait() -> None:
    """Until the GPU has done what it was given; on a CPU nothing is outstanding."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def alternate(blocks: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each block in each round. A round runs every block once, in the opposite order of the round before (A B, B A, ...), so
    that neither always comes after the other; `warmup` rounds are not timed."""
    order = list(blocks)
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for turn in range(warmup + rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            wait()
            begin = time.perf_counter()
            blocks[name]()
            wait()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, lowest, highest and all values."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "values": list(values)}


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """over / under, round by round, as `spread`."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def load_average() -> float | None:
    """Running processes over the last minute: a quiet machine is below 1 before a measurement."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def record(
    out: str, name: str, question: str, numbers: Mapping[str, Any], *, precision: str, seed: int, peers: Sequence[str] = (), **facts: Any
) -> None:
    """Append one line to `out`: question, numbers, command, commit, seed, device, threads, versions (of `peers` too) and date."""
    from runfolder.provenance import device_name, provenance

    made_by = provenance(device_name(), precision, seed)
    made_by["command"] = made_by["command"].replace(f"python {name}.py", f"python -m benchmarks.{name}", 1)
    made_by["versions"] |= {peer: version(peer) for peer in peers}
    line = json.dumps({"benchmark": name, "question": question, **numbers, **made_by, **facts}, ensure_ascii=False, allow_nan=False)
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    threads = facts.get("threads", made_by["threads"])
    shown = " and ".join(map(str, threads)) if isinstance(threads, list) else threads
    print(f"{made_by['device']}; threads: {shown}; torch {made_by['versions']['torch']}; one line added to {out}")


def show(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: the first column to the left, numbers to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        rest = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join([row[0].ljust(widths[0]), *rest]).rstrip())
