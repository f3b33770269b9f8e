"""The frame of every benchmark: its command line, its table, and one JSON line with what made the numbers."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headgates.lab.measure import load_average, set_threads
from headgates.records.provenance import device_name, provenance
from headgates.report.table import show

ROOT = Path(__file__).resolve().parents[1]
Flag = tuple[str, dict[str, Any]]  # name and options of ArgumentParser.add_argument


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {number}")
    return number


def count_flag(name: str, default: int, meaning: str) -> Flag:
    """A flag that takes a whole number of at least 1."""
    return name, {"type": at_least_one, "default": default, "help": f"{meaning} (default: %(default)s)"}


THREADS: Flag = (
    "--threads",
    {"type": int, "default": 0, "help": "CPU threads, 0 for all (default: %(default)s)"},
)


@dataclass(frozen=True)
class Answer:
    """numbers: the entries of the JSON line; header, rows: the printed table, with `title` above it; seed: of
    random weights and batches; peers: packages whose versions are recorded too."""

    numbers: Mapping[str, Any]
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    precision: str = "32"
    seed: int = 1
    peers: Sequence[str] = ()


def run(
    name: str,
    question: str,
    about: str,
    flags: Sequence[Flag],
    answer: Callable[[argparse.Namespace], Answer],
) -> int:
    """One question that is answered by a measurement: `python -m benchmarks.NAME` prints a table, and with
    --record adds a line to results/NAME.jsonl. Returns 1 after a ValueError.

    about: the text of --help; flags: those beside --record and --threads; answer: takes the parsed flags."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    file = f"results/{name}.jsonl"
    about_record = f"add a JSON line to FILE, {file} unless named"
    record: Flag = ("--record", {"nargs": "?", "const": file, "metavar": "FILE", "help": about_record})
    for flag, flag_options in [*flags, record, THREADS]:
        parser.add_argument(flag, **flag_options)
    options = parser.parse_args()
    set_threads(options.threads)
    load = load_average()
    try:
        found = answer(options)
    except ValueError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return 1
    show(found.title or question, found.header, [list(map(str, row)) for row in found.rows])
    if options.record:
        made_by = provenance(device_name(), found.precision, found.seed)
        made_by["command"] = made_by["command"].replace(f"{name}.py", f"-m benchmarks.{name}", 1)
        made_by["versions"] |= {peer: version(peer) for peer in found.peers}
        entry = {"benchmark": name, "question": question, **found.numbers, "load_average_before": load}
        line = json.dumps(entry | made_by, ensure_ascii=False, allow_nan=False)
        path = Path(options.record)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")
        print(f"{made_by['device']}; threads: {made_by['threads']}; one line added to {path}")
    return 0
