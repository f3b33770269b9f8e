"""Which folder a run gets: a finished one of the same configuration, an unfinished one to resume, or a new one.

Two processes never make one run at once: the second waits, and finds it finished.
"""

import hashlib
import os
import shutil
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal

from configs.cli import config_hash, to_yaml
from configs.schema import FitConfig
from models.progress import say
from runfolder.folder import RunFolder, find_runs


class Locks:
    """The runs that this process is making. The system gives a lock back when the process ends, however it ends."""

    def __init__(self) -> None:
        self.files: list[IO[str]] = []

    def hold(self, root: Path, run_hash: str) -> None:
        """Wait until no other process makes the run of this hash, then keep others from it until `release`."""
        try:
            import fcntl
        except ImportError:  # Windows has none: there, do not start two at once
            return
        # beside other temporary files: the folder of the runs holds runs alone
        name = hashlib.sha256(f"{root.resolve()} {run_hash}".encode()).hexdigest()[:16]
        file = (Path(tempfile.gettempdir()) / f"headgates-{os.getuid()}-{name}.lock").open("w")
        said = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    say(f"another process is making the run {run_hash} in {root}; waiting for it")
                    said = True
                time.sleep(1)
        self.files.append(file)

    def release(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()


def claim(
    config: FitConfig,
    name: str,
    identity: dict[str, Any],
    *,
    facts: dict[str, Any],
    locks: "Locks",
    gate: Literal["l0", "none"],
    base: RunFolder | None = None,
    fresh: bool = False,
    strict: bool = False,
) -> tuple[RunFolder, bool]:
    """The folder for a run with this identity, and whether it is finished already. `locks` keeps other processes from making it meanwhile.

    A finished run of the same identity is found under any name. `strict`: a name taken by another configuration is refused, else
    the new run's name gets a hash."""
    root = Path(config.runs)
    wanted = config_hash(identity)
    locks.hold(root, wanted)
    found = [folder for folder in find_runs(root) if run_hash(folder) == wanted]
    finished = [folder for folder in found if folder.finished()]
    if finished and not fresh:
        locks.release()  # others may use it at the same time
        return finished[0], True
    folder = found[0] if found else RunFolder(root / name)
    if fresh and config.name == name:  # repeated under a name of its own, the first stays
        folder = RunFolder(root / name)
    if folder.path not in [each.path for each in found] and (folder / "config.yaml").exists():
        if strict or config.name == name:
            raise ValueError(
                f"{folder.path} holds a run with another configuration; give this one a --name of its own, or remove that folder"
            )
        folder = RunFolder(root / f"{name}-{wanted[:6]}")
    unfinished = (folder / "last.pt").is_file() and not folder.finished()
    if unfinished and not config.resume and not fresh:
        raise ValueError(f"{folder.path} is unfinished: --resume continues it after its last epoch, --fresh begins again")
    if fresh and folder.path.exists():
        shutil.rmtree(folder.path)
    folder.path.mkdir(parents=True, exist_ok=True)
    recorded: dict[str, Any] = {"run_hash": wanted}
    if base is not None:
        recorded |= {"base_hash": run_hash(base)}
        for vocab in base.path.glob("vocab*.model"):
            shutil.copyfile(vocab, folder / vocab.name)
    settings = replace(config, gate=gate, base=str(base.path) if base else None, name=folder.path.name)
    settings = replace(settings, resume=False, fresh=False, unique=False)  # how the folder is found is not part of the run
    folder.write_text("config.yaml", to_yaml(settings, **recorded))
    before = (folder / "command.txt").read_text(encoding="utf-8") + "\nresumed\n" if (folder / "command.txt").is_file() else ""
    folder.write_text("command.txt", before + "\n".join(f"{key}: {value}" for key, value in facts.items()) + "\n")
    return folder, False


def run_hash(folder: RunFolder) -> str | None:
    """What the run was made from; None, with a warning, where config.yaml cannot be read: one broken run must not stop all commands."""
    try:
        return folder.config().get("run_hash")
    except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
        return None
