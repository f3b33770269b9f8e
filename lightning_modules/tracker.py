"""Follow the runs of a command with Weights & Biases, with one W&B run for every run folder, or with nothing.

Without a login the runs are kept offline in RUN/wandb, and the command ends with the line that uploads them.
Under `wandb agent` the run that the command asks for is the agent's point of the sweep; a base that is
trained on the way is a separate W&B run.
"""

import os
import re
import secrets
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger

from headgates.configs.schema import FitConfig
from headgates.data.ranks import is_first
from headgates.lightning_modules.wandb_run import (
    GateMaps,
    StageLogger,
    WandbRun,
    complain,
    final_items,
    read_state,
)
from headgates.lightning_modules.wandb_tables import LONGEST, configuration
from headgates.models.progress import say
from headgates.workbench.folder import RunFolder
from headgates.workbench.source import Lines

PROJECT = "headgates"
REFUSED = "/\\#?%:"  # W&B takes no name with one of these
AGENT = (
    "WANDB_SWEEP_ID",
    "WANDB_RUN_ID",
    "WANDB_SWEEP_PARAM_PATH",
)  # by which `wandb agent` names the run that it wants
# Nothing of the machine is logged but the load of its processors and memory.
PRIVATE: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "",
    "label_disable": True,
    "save_code": False,
    "symlink": False,
    "x_disable_meta": True,
    "x_save_requirements": False,
}


class Tracker:
    """Follows the runs of one command. This class follows nothing; a subclass overrides its methods.

    They are called in this order: for each folder `open`, then `loggers` and `watchers` for each of its
    stages, then `finish`; after all folders `complete`, for the run that was asked for, and `close`."""

    def open(self, folder: RunFolder, job: str, base: RunFolder | None = None) -> None:
        """Follow this folder from now on. job: base, base-continued, scores or gates, which is also its first
        stage; base: the run it starts from."""

    def loggers(self, stage: str) -> list[Logger]:
        """Return the loggers that a stage's numbers go to beside metrics.csv."""
        return []

    def watchers(self, stage: str) -> list[pl.Callback]:
        """Return the callbacks that follow a stage while it trains."""
        return []

    def finish(self, test: Lines) -> None:
        """Log the results of the folder, whose result.json is written. test: source and reference lines of
        the test set."""

    def complete(self, folder: RunFolder, job: str, base: RunFolder | None, test: Lines) -> None:
        """Log the final results of a finished run where they are not logged yet, even if an earlier command
        finished the run."""

    def close(self) -> None:
        """End what is still open, however the command ends."""


def make_tracker(config: FitConfig, facts: dict[str, Any]) -> Tracker:
    """Return a tracker that logs to W&B for --logger wandb, else one that does nothing. facts: commit, device
    and versions of this process.

    Raises ValueError where W&B is not installed or would refuse a name in its environment variables."""
    return WandbTracker(config.job, facts) if is_first() and is_followed(config.logger) else Tracker()


def is_followed(logger: str) -> bool:
    """Whether W&B follows a command. Raises ValueError where W&B is not installed or would refuse a name in
    its environment variables."""
    if logger != "wandb" or os.environ.get("WANDB_MODE") == "disabled":
        return False
    if find_spec("wandb") is None:
        raise ValueError("--logger wandb needs the package wandb: pip install wandb, or take --logger csv")
    for variable in ("WANDB_PROJECT", "WANDB_ENTITY"):
        check_name(variable, os.environ.get(variable) or PROJECT)
    return True


def check_name(variable: str, name: str) -> None:
    """Raises ValueError, saying what W&B takes, where it would refuse the name of a project or an entity."""
    if not name.strip() or len(name) > LONGEST or set(name) & set(REFUSED):
        cure = re.sub(r"[^\w.-]+", "-", name).strip("-")[:LONGEST] or PROJECT
        takes = f"1 to {LONGEST} letters, digits, '-', '_' and '.', and none of {' '.join(REFUSED)}"
        raise ValueError(f"{variable}: W&B takes {takes}; got {name!r}; take for example {cure}")


class WandbTracker(Tracker):
    """Follows runs with W&B. asked: the job of the run that the command was started for."""

    def __init__(self, asked: str, facts: dict[str, Any]):
        self.asked, self.facts = asked, facts
        self.agent = {name: os.environ[name] for name in AGENT if name in os.environ}
        self.runs: list[WandbRun] = []  # only the last may still be open

    @property
    def run(self) -> WandbRun:
        return self.runs[-1]

    def open(self, folder: RunFolder, job: str, base: RunFolder | None = None) -> None:
        """Raises ValueError where W&B refuses: the name, the login, no network."""
        import wandb  # here: a second to import, and most runs do not use it

        if self.agent:
            wandb.teardown()  # it reads its environment once
            for name in self.agent:
                os.environ.pop(name, None)
            os.environ.update(self.agent if job == self.asked else {})
        config = configuration(folder, self.facts)
        self.runs.append(open_run(folder, job, config, base or folder))

    def loggers(self, stage: str) -> list[Logger]:
        self.run.begin(stage)
        return [StageLogger(self.run, stage)]

    def watchers(self, stage: str) -> list[pl.Callback]:
        return [GateMaps(self.run)] if stage == "gates" else []

    def finish(self, test: Lines) -> None:
        self.run.finish(test)

    def complete(self, folder: RunFolder, job: str, base: RunFolder | None, test: Lines) -> None:
        state = read_state(folder)
        lacks = set(final_items(folder)) - set(state.get("logged", ()))
        if any(run.folder.path == folder.path for run in self.runs) or not (lacks or self.agent):
            return
        self.open(folder, job, base)
        if (
            self.run.state["id"] != state.get("id") and (folder / "metrics.csv").is_file()
        ):  # a W&B run that has not seen the training
            self.run.replay()
        self.finish(test)

    def close(self) -> None:
        if self.runs:
            import wandb

            self.run.end(1)  # `finish` has ended the others
            wandb.teardown()
        os.environ.update(self.agent)
        say_how_to_upload(self.runs)


def open_run(folder: RunFolder, job: str, config: dict[str, Any], base: RunFolder) -> WandbRun:
    """Return the open W&B run of a folder, in the group of its base.

    Raises ValueError where W&B refuses: the name, the login, no network."""
    import wandb

    base_hash = config.get("base_hash") or config.get("run_hash") or ""
    group = f"{base.path.name}-{base_hash[:6]}"  # siblings stand together
    arguments: dict[str, Any] = {
        "dir": str(folder.path),
        "name": folder.path.name,
        "group": group,
        "job_type": job,
        "resume": "allow",
    }
    try:
        arguments["mode"] = mode = mode_without_asking()
        offline = "offline" in (mode, os.environ.get("WANDB_MODE"))
        settings = wandb.Settings(
            **PRIVATE, silent=offline, quiet=True
        )  # online it says where the run is seen
        run = wandb.init(**arguments, **project_and_id(folder), config=config, settings=settings)
    except wandb.Error as error:
        raise ValueError(
            f"W&B: {' '.join(str(error).split())} (WANDB_MODE=offline keeps runs here for now)"
        ) from error
    return WandbRun(run, folder, job, config)


def say_how_to_upload(runs: Sequence[WandbRun]) -> None:
    """Say the line that uploads the runs which are kept offline."""
    offline = dict.fromkeys(run.folder.path for run in runs if run.state["mode"] == "offline")
    if offline:
        why = "kept offline" if os.environ.get("WANDB_MODE") else "no login found, so runs are kept offline"
        paths = " ".join(f"{shlex.quote(str(path))}/wandb/offline-run-*" for path in offline)
        say(f"wandb: {why}; `wandb sync {paths}` uploads them later")


def mode_without_asking() -> str | None:
    """Return "offline" where W&B would ask for a login, else None, which leaves the mode to W&B's own
    settings."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    settings = wandb.setup(
        settings=wandb.Settings(silent=True)
    ).settings  # silent: or it says who is logged in
    return None if settings.mode == "disabled" or wandb.login(prompt=False, verify=False) else "offline"


def project_and_id(folder: RunFolder) -> dict[str, Any]:
    """Return project, entity and id of the folder's W&B run, or new ones; nothing under an agent, whose own
    W&B reads by itself."""
    if os.environ.get("WANDB_SWEEP_ID"):
        os.environ.setdefault("WANDB_PROJECT", PROJECT)
        return {}
    state, wanted = read_state(folder), os.environ.get("WANDB_PROJECT") or PROJECT
    run_id = os.environ.get("WANDB_RUN_ID") or state.get("id") or secrets.token_hex(4)
    if run_id != state.get("id"):
        return {"project": wanted, "entity": os.environ.get("WANDB_ENTITY") or None, "id": run_id}
    if os.environ.get("WANDB_PROJECT") and wanted != state["project"]:
        complain(
            f"{folder.path} is in the project {state['project']} already, so WANDB_PROJECT={wanted} is not "
            "used"
        )
    return {"project": state["project"], "entity": state["entity"], "id": run_id}
