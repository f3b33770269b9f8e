"""What made a number: command, commit, seed, device and versions, without the machine's name or paths."""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

# the folders of an absolute path, alone or within a word (--data-dir=/a/b, "/a/b/c.en,/a/b/c.de",
# marian:/a/b); not of ../a/b or http://a/b
_FOLDERS = re.compile(r"(?<![\w.~/])(?!(?<=:)//)/[^,'\"\s]*/")
_PACKAGES = ("torch", "pytorch-lightning", "sentencepiece", "sacrebleu", "numpy")
version_of = cache(version)


def provenance(device: str, precision: str, seed: int) -> dict[str, Any]:
    """What made a number: command, commit, seed, device, versions, time. Machine names and paths are left
    out."""
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in _PACKAGES}
    script, *rest = Path(sys.argv[0]).name, *sys.argv[1:]
    program = script if script.startswith("headgates ") else f"python {shlex.quote(script)}"
    return {
        "command": " ".join([program, *(shlex.quote(_FOLDERS.sub(".../", word)) for word in rest)]),
        "commit": commit(),
        "seed": seed,
        "device": device,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "versions": versions,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


@cache
def commit() -> str:
    """The commit that was checked out when this was first asked, with + where files differed from it;
    'unknown' outside a git checkout."""
    checkout = Path(__file__).resolve().parents[1]
    try:
        top, head, dirty = (
            subprocess.run(
                ["git", *words], cwd=checkout, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (
                ["rev-parse", "--show-toplevel"],
                ["rev-parse", "--short=12", "HEAD"],
                ["status", "--porcelain", "-uno"],
            )
        )
        if not checkout.samefile(top):  # of the user's own repository, in which it is installed
            return "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if dirty else "")


def device_name() -> str:
    """The GPU's or the CPU's name, with its number of cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"model name\s*:\s*(.+)", info.read_text())
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores"
