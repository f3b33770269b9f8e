"""A file beside a run folder that says which process makes the run, and that it lives: for other machines on
the same disk, whose locks are not ours.

The file's time is renewed every BEAT seconds. Who finds it looks whether the time changes, and compares no
clocks.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Literal, TypedDict

from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_file
from headgates.data.atomic_file import is_running
from headgates.models.progress import say

BEAT = 15.0  # seconds
BEGIN = '{"machine": '  # of the file
# seconds without a beat after which a process counts as dead: a network disk may show a change after a minute
SILENT = 180.0
LOOK_SECONDS = 1.0  # seconds between looks at another's beat


def machine(locks: Path) -> str:
    """Among which processes locks in this folder work: equal on one machine, for one user. Elsewhere than on
    POSIX nothing says harmlessly whether a process runs, so there each is a machine of its own."""
    status = locks.stat()
    own = "" if os.name == "posix" else f" {os.getpid()}"
    return f"{socket.gethostname()} {status.st_dev}:{status.st_ino}{own}"


class Holder(TypedDict):
    """What the file says."""

    machine: str
    process: int
    run_hash: str


class Heartbeat:
    """Of this process, for one run folder. machine: where it runs, as `machine` says."""

    def __init__(self, folder: Path, run_hash: str, machine: str):
        self.folder, self.path = folder, folder.with_name(f".{folder.name}.lock")
        self.own: Holder = {"machine": machine, "process": os.getpid(), "run_hash": run_hash}
        self._end = threading.Event()

    def take(self) -> Literal["ours", "waited", "another's"]:
        """Begin to beat; the caller holds the lock of this run among the processes of its machine.

        another's: the folder is written by another run. waited: ours, but another machine made this run until
        now, or died over it. Raises OSError where nothing can be written."""
        waited = False
        while not self.make():
            holder = self.holder()
            here = holder is not None and holder["machine"] == self.own["machine"]
            other = holder is not None and holder["run_hash"] != self.own["run_hash"]
            if holder and other and not (here and not is_running(holder["process"])):
                return "another's"
            if here:
                self.path.unlink(missing_ok=True)
            else:
                self.wait(holder)
                waited = True
        threading.Thread(target=self.beat, daemon=True).start()
        return "waited" if waited else "ours"

    def make(self) -> bool:
        """Make the file; False where there is one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(self.own))
        except FileExistsError:
            if self.path.exists():
                return False
            raise
        except OSError as error:
            raise OSError(
                f"cannot write in {self.path.parent}: {error.strerror}; choose another folder with --runs"
            ) from error
        return True

    def holder(self) -> Holder | None:
        """What the file says; None where it is gone, or not written yet. Raises ValueError where it is not
        what a process writes: nobody keeps it alive, and nobody would take it away."""
        try:
            text = own_file(self.path.parent, self.path.name).read_text(encoding="utf-8", errors="replace")
            if text == BEGIN[: len(text)] or (text.startswith(BEGIN) and not text.endswith("}")):
                return None
            found = load_json(self.path, Holder, cure="remove it: no run holds that lock")
        except OSError:
            return None
        if found["machine"].strip() and 0 < found["process"] < 2**31:
            return found
        raise ValueError(f"{self.path} names no process; remove it: no run holds that lock")

    def wait(self, holder: Holder | None) -> None:
        """Return once the file is gone; remove it where it has not changed for SILENT seconds."""
        who = f"process {holder['process']} on {holder['machine'].split()[0]}" if holder else "a process"
        say(f"{who} is making {self.folder}; waiting until it ends, or gives no sign for {SILENT:g} s")
        seen, since = self.last_beat(), time.monotonic()
        while seen is not None and time.monotonic() - since < SILENT:
            time.sleep(LOOK_SECONDS)
            if (now := self.last_beat()) != seen:
                seen, since = now, time.monotonic()
        if seen is not None and self.last_beat() == seen:
            self.path.unlink(missing_ok=True)

    def last_beat(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size

    def beat(self) -> None:
        while not self._end.wait(BEAT):
            with contextlib.suppress(OSError):  # a disk that is away for a moment; the next beat may find it
                os.utime(self.path)

    def end(self) -> None:
        """Stop, and remove the file where it is still ours."""
        self._end.set()
        if self.holder() == self.own:
            self.path.unlink(missing_ok=True)
