"""Which folder a run gets: a finished one of the same fingerprint, an unfinished one to resume, or a new one.

Two processes never make one run at once, or write one folder: the second waits, and finds it finished. On one
machine by a lock of the system's; between machines that share a disk by a heartbeat.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from headgates.configs.cli import config_hash, to_yaml
from headgates.configs.own_file import own_file
from headgates.configs.recipe import Recipe
from headgates.configs.settings import Settings
from headgates.data.atomic_file import remove_leftovers
from headgates.data.cache import lock_folder, open_lock
from headgates.models.progress import say
from headgates.records.folder import RunFolder, far_base, find_runs
from headgates.records.heartbeat import Heartbeat, machine


class RunLocks:
    """The runs that this process is making, until the block ends. The system gives a lock back when the
    process ends, however it ends."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.beats: list[Heartbeat] = []

    def __enter__(self) -> "RunLocks":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, root: Path, run_hash: str, *, wait: bool = True) -> bool:
        """Wait until no other process makes the run of this hash, then keep others from it until `release`.
        Without `wait`, False where another does."""
        try:
            import fcntl
        except ImportError:  # Windows has none: there, do not start two at once
            return True
        descriptor = open_lock(hashlib.sha256(f"{root.resolve()} {run_hash}".encode()).hexdigest()[:16])
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                os.close(descriptor)
                return False
            say(f"another process is making the run {run_hash} in {root}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.descriptors.append(descriptor)
        return True

    def occupy(self, folder: Path, run_hash: str) -> Literal["ours", "waited", "another's"]:
        """Keep the processes of other machines, and other runs, from writing this folder until `release`: see
        `Heartbeat.take`."""
        beat = Heartbeat(folder, run_hash, machine(lock_folder()))
        taken = beat.take()
        if taken != "another's":
            self.beats.append(beat)
        return taken

    def release(self) -> None:
        for beat in self.beats:
            beat.end()
        self.beats.clear()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def claim_run(
    config: Settings,
    name: str,
    fingerprint: dict[str, Any],
    *,
    facts: dict[str, Any],
    locks: RunLocks,
    files: str,
    base: RunFolder | None = None,
    recipe: Recipe | None = None,
    fresh: bool = False,
    strict: bool = False,
) -> tuple[RunFolder, bool]:
    """The folder for a run with this fingerprint, and whether it is finished already. `locks` keeps other
    processes from making it meanwhile.

    A finished run of the same fingerprint is found under any name. config: what config.yaml will hold.
    files: the pattern of the base's tokenizer files, which are copied. strict: a name taken by another
    configuration is refused, else the new run's name gets a hash."""
    root = Path(config.runs)
    wanted = config_hash(fingerprint)
    while True:
        locks.hold(root, wanted)
        same_runs = [folder for folder in find_runs(root) if folder.run_hash() == wanted]
        same_runs.sort(key=lambda run: not run.is_original())  # a copy may come first by name
        finished = [folder for folder in same_runs if folder.finished()]
        if finished and not fresh:
            locks.release()  # others may use it at the same time
            return finished[0], True
        folder = same_runs[0] if same_runs else RunFolder(root / name)
        if fresh and config.name == name:  # repeated under a name of its own, the first stays
            folder = RunFolder(root / name)
        taken = any((folder / name).exists() for name in ("config.yaml", "result.json"))
        is_other = taken and folder.path not in [run.path for run in same_runs]
        occupied = "another's" if is_other else locks.occupy(folder.path, wanted)
        if occupied == "another's":
            if strict or config.name == name:
                raise ValueError(
                    f"{folder.path} holds a run with another configuration; give this one a --name of its "
                    f"own, or remove that folder"
                )
            folder = RunFolder(root / f"{name}-{wanted[:6]}")
            occupied = locks.occupy(folder.path, wanted)
        if occupied == "ours":
            own_file(root, folder.path.name)  # a link of this name is not written through
            break
        locks.release()  # another machine made it until now: it may be finished
    unfinished = folder.was_begun() and not folder.finished()
    if unfinished and not config.resume and not fresh:
        raise ValueError(
            f"{folder.path} is unfinished: --resume continues it from its last checkpoint, --fresh begins "
            f"again"
        )
    if fresh and folder.path.exists():
        if folder.run_hash() is None:  # whatever lies there, no run of ours would be lost with it
            raise ValueError(
                f"{folder.path} is no run folder, so --fresh does not empty it; give --name another name"
            )
        remove_run(folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    for place, _, _ in os.walk(folder.path):
        remove_leftovers(Path(place))
    recorded: dict[str, Any] = {"run_hash": wanted}
    if base is not None:
        # the name alone, which is what it is looked for by: a path may be a link, or "."
        recorded |= {"base": base.path.resolve().name, "base_hash": base.run_hash()}
        folder.copy_files(base, files)
        if base.path.resolve().parent != folder.path.resolve().parent:
            far_base(folder.path).parent.mkdir(parents=True, exist_ok=True)
            far_base(folder.path).write_text(str(base.path.resolve()), encoding="utf-8")
    if recipe is not None:
        recorded["recipe"] = recipe.to_json()
    settings = replace(
        config,
        name=folder.path.name,
        resume=False,  # how the folder is found is not part of the run
        fresh=False,
        unique=False,
    )
    folder.write_text("config.yaml", to_yaml(settings, **recorded))
    command = folder / "command.txt"
    before = command.read_text(encoding="utf-8") + "\nresumed\n" if command.is_file() else ""
    folder.write_command(facts, before)
    return folder, False


def remove_run(folder: RunFolder) -> None:
    """Delete a run's folder. Killed midway it leaves an unfinished run of the same configuration: its records
    go first, which would vouch for files that are gone, and config.yaml last."""
    for path in [*folder.path.rglob("*.json")]:
        path.unlink()
    for path in [*folder.path.iterdir()]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "config.yaml":
            path.unlink()
    shutil.rmtree(folder.path)


def abandon_run(folder: RunFolder, files: str) -> None:
    """Delete what `claim_run` wrote, the tokenizer (`files`, a pattern), the choice and the rows of the
    bases: nothing was trained, and the folder would block the corrected command. Other files stay, and so
    does a run that was being resumed."""
    if folder.was_begun():
        return
    names = ("config.yaml", "command.txt", "systems.json", "choice.json", "hypotheses/base*.txt", files)
    for path in (path for name in names for path in folder.path.glob(name)):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / "hypotheses").rmdir()
    if not any(folder.path.iterdir()):
        folder.path.rmdir()
