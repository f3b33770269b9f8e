"""A tiny experiment that W&B follows offline, and its runs read back by W&B's own reader."""

import contextlib
import io
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headgates.configs.cli import read_command
from headgates.configs.settings import Settings
from tests.worlds.finished_runs import LEARNED, made


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


def fit(flags, runs, *more, recipe=LEARNED):
    """The finished run and what was printed."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run = made(read_command(Settings, [*flags, "--runs", str(runs), *more]), recipe).run
    return run, out.getvalue()


def fragments(folder):
    """The .wandb files of a run folder, oldest first."""
    return sorted(folder.path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def records(folder):
    """(kind, content) of every record, as `wandb leet inspect` prints them."""
    from wandb.util import get_core_path  # here: wandb need not be installed

    found = []
    for path in fragments(folder):
        words = [get_core_path(), "leet", "inspect", "-json", "-no-observability", "-run-file", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
        found += [
            (record["type"], record[record["type"]]) for record in map(json.loads, done.stdout.splitlines())
        ]
    return found


def of(kind, found):
    return [content for each, content in found if each == kind]


def summary(found):
    return {name: value for record in of("summary", found) for name, value in record["update"].items()}


def table(folder, found, name):
    """The last version of a logged table, a dict a row."""
    (path,) = folder.path.glob(f"wandb/offline-run-*/files/{summary(found)[f'{name}.path']}")
    content = json.loads(path.read_text(encoding="utf-8"))
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def artifacts(found):
    return {record["name"]: record for record in of("artifact", found) if record["type"] != "run_table"}


def history(found):
    """{(step, name): value} of the numbers; pictures and tables left out."""
    step = "trainer/global_step"
    rows = [row["item"] for row in of("history", found) if step in row["item"]]
    wanted = ("train/", "val/", "gates/")
    return {
        (row[step], name): value
        for row in rows
        for name, value in row.items()
        if "." not in name
        and (name.endswith("epoch") or any(room in name for room in wanted))
        and name != step
    }
