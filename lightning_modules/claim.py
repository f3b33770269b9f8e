"""Which folder a run gets: a finished one of the same configuration, an unfinished one to resume, or a new one."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from configs.cli import config_hash, to_yaml
from configs.schema import FitConfig
from models.run import RunFolder, find_runs


def claim(
    config: FitConfig,
    name: str,
    identity: dict[str, Any],
    *,
    facts: dict[str, Any],
    gate: Literal["l0", "none"],
    base: RunFolder | None = None,
    fresh: bool = False,
    strict: bool = False,
) -> tuple[RunFolder, bool]:
    """The folder for a run with this identity, and whether it is finished already.

    A finished run of the same identity is found under any name. `strict`: a name taken by another configuration is refused, else
    the new run's name gets a hash."""
    root = Path(config.runs)
    wanted = config_hash(identity)
    found = [folder for folder in find_runs(root) if run_hash(folder) == wanted]
    finished = [folder for folder in found if folder.finished()]
    if finished and not fresh:
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
    settings = replace(config, gate=gate, base=str(base.path) if base else None, name=folder.path.name, resume=False, fresh=False)
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
