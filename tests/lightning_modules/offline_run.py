"""A tiny experiment that W&B follows offline, and its runs read back by W&B's own reader."""

import contextlib
import csv
import io
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.workbench.stages import make_runs


@contextlib.contextmanager
def without_login(home: Path) -> Iterator[Path]:
    """A home without a login, no W&B settings but these, and no network."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "XDG_"))]:
            patch.delenv(name)
        patch.delenv("NETRC", raising=False)
        patch.setenv("HOME", str(home))
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        connect = socket.socket.connect

        def local_only(self, address):  # W&B's own service is reached over a file or localhost
            if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
                raise OSError(f"no network in this test: {address}")
            return connect(self, address)

        patch.setattr(socket.socket, "connect", local_only)
        yield home


def fit(flags, runs, *more):
    """The finished run and what was printed."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run = make_runs(read(FitConfig, [*flags, "--runs", str(runs), *more]))
    return run, out.getvalue()


def fragments(folder):
    """The .wandb files of a run folder, oldest first."""
    return sorted(folder.path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def records(folder):
    """(kind, content) of every record, as `wandb leet inspect` prints them."""
    found = []
    from wandb.util import get_core_path  # here: wandb need not be installed

    for path in fragments(folder):
        words = [get_core_path(), "leet", "inspect", "-json", "-no-observability", "-run-file", str(path)]
        lines = subprocess.run(
            words, capture_output=True, text=True, timeout=100, check=True
        ).stdout.splitlines()
        found += [(record["type"], record[record["type"]]) for record in map(json.loads, lines)]
    return found


def of(kind, found):
    return [content for each, content in found if each == kind]


def run_record(folder):
    return of("run", records(folder))[0]


def history(found):
    """The rows without W&B's own columns."""
    return [
        {name: value for name, value in row["item"].items() if not name.startswith("_")}
        for row in of("history", found)
    ]


def summary(found):
    return {name: value for record in of("summary", found) for name, value in record["update"].items()}


def table(folder, found, name):
    """The last version of a logged table, a dict a row."""
    (path,) = folder.path.glob(f"wandb/offline-run-*/files/{summary(found)[f'{name}.path']}")
    content = json.loads(path.read_text(encoding="utf-8"))
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def artifacts(found):
    return {record["name"]: record for record in of("artifact", found) if record["type"] != "run_table"}


def metrics(folder, stage):
    """step -> numbers of metrics.csv."""
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] == stage]
    return {
        int(row.pop("step")): {name: float(x) for name, x in row.items() if x and name != "stage"}
        for row in rows
    }


def seen(found, stage, prefix=""):
    """[(step, numbers)] of the history, pictures and tables left out."""
    rows = [
        row
        for row in history(found)
        if row.get("stage") == stage and not any("._type" in name for name in row)
    ]
    return [
        (
            row.pop(f"{prefix}step"),
            {name.removeprefix(prefix): x for name, x in row.items() if name != "stage"},
        )
        for row in rows
    ]


def assert_same_history(rows, expected):
    """Every row stands in metrics.csv at its step, and every number of metrics.csv in a row."""
    assert rows
    for step, numbers in rows:
        assert numbers == pytest.approx({name: expected[step][name] for name in numbers})
    for name in {name for numbers in expected.values() for name in numbers}:
        values = {numbers[name] for numbers in expected.values() if name in numbers}
        assert sorted({numbers[name] for _, numbers in rows if name in numbers}) == pytest.approx(
            sorted(values)
        )


def draw(run, rows):
    """Called in a process of its own, as rank zero's is where there are several devices."""
    run.log_gates(rows, epoch=1, step=0)
