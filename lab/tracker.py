"""Follow the runs of a command with Weights & Biases, with one W&B run for every run folder, or with nothing.

RUN/wandb.json keeps the id of the W&B run, so that a resumed command continues it, and whether its results
are logged. Without a login the runs are kept offline in RUN/wandb, and the command ends with the line that
uploads them. Under `wandb agent` the run that the command asks for is the agent's point of the sweep; a base
that is trained on the way is a separate W&B run. A failure of W&B never stops a run: it becomes one line on
stderr."""

import csv
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger, WandbLogger

from headgates.data.ranks import is_first
from headgates.lab import wandb_tables
from headgates.lightning_modules.remembers import Remembers
from headgates.lightning_modules.stage_callback import Watcher
from headgates.models.progress import say
from headgates.records.folder import RunFolder
from headgates.records.source import Lines
from headgates.records.table import read_table

STATE = "wandb.json"
PROJECT = "headgates"
CHOICE = ": choice"  # the end of the name of a stage that trains gates alone
AGAIN, WITHOUT = "tries again next time", "goes on without it"
AGENT = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH")  # the run that `wandb agent` wants
# Nothing of the machine is logged but the load of its processors and memory.
OFF = ("disable_code", "disable_git", "disable_job_creation", "label_disable", "x_disable_meta", "quiet")
ON = ("save_code", "symlink", "x_save_requirements")


class Tracker:
    """Follows the runs of one command. This class follows nothing; a subclass overrides its methods.

    They are called in this order: for each folder `open`, then `loggers` and `watchers` for each of its
    stages, then `finish`; after all folders `complete`, for the run that was asked for, and `close`."""

    def open(self, folder: RunFolder, kind: str, base: RunFolder, *, asked: bool) -> None:
        """Follow this folder from now on. kind: base, base-continued or pruned; base: the run it starts from,
        itself for a base; asked: whether the command was started for this run."""

    def loggers(self, stage: str) -> list[Logger]:
        """Where a stage's numbers go beside metrics.csv."""
        return []

    def watchers(self, stage: str) -> list[Watcher]:
        """Who looks on while a stage trains."""
        return []

    def finish(self, test: Lines) -> None:
        """Log the results of the folder, whose result.json is written. test: source and reference lines."""

    def complete(self, folder: RunFolder, kind: str, base: RunFolder, test: Lines) -> None:
        """Log what is not logged yet of a finished run, even if an earlier command finished it."""

    def close(self) -> None:
        """End what is still open, however the command ends."""


def make_tracker(logger: str, facts: dict[str, Any]) -> Tracker:
    """A tracker that logs to W&B for --logger wandb, else one that does nothing. facts: commit, device and
    versions of this process. Raises ValueError as `is_followed` does."""
    return WandbTracker(facts) if is_first() and is_followed(logger) else Tracker()


def is_followed(logger: str) -> bool:
    """Whether W&B follows a command. Raises ValueError where the logger's package is not installed, or W&B
    refuses the name in WANDB_PROJECT."""
    if logger != "csv" and find_spec(logger) is None:
        raise ValueError(f"--logger {logger} needs its package: pip install {logger}, or take --logger csv")
    if logger != "wandb" or os.environ.get("WANDB_MODE") == "disabled":
        return False
    import wandb  # here: a second to import, and most runs do not use it

    try:
        wandb.Settings(project=project_name())
    except wandb.Error as error:
        raise ValueError(f"WANDB_PROJECT: {error}; choose another name") from error
    return True


def project_name() -> str:
    return os.environ.get("WANDB_PROJECT") or PROJECT


class FollowedRun:
    """The open W&B run of a folder."""

    def __init__(self, run: Any, folder: RunFolder, config: dict[str, Any]):
        self.run, self.folder, self.config = run, folder, config
        self.ended = self.lost = False
        self.state = {"project": run.project, "entity": run.entity or None, "id": run.id, "logged": False}
        self.offline = run.settings.mode == "offline"
        if not (state_of(folder) and folder.finished()):  # else it stays with the W&B run that saw it trained
            folder.write_json(STATE, self.state)

    def log(self, numbers: dict[str, Any], step: int) -> None:
        """Log a row of the history, until that fails."""
        row = numbers | {"trainer/global_step": step}
        self.lost = self.lost or not self.attempt({"history": lambda: self.run.log(row)}, WITHOUT)

    def attempt(self, actions: dict[str, Callable[[], Any]], consequence: str = AGAIN) -> bool:
        """Whether all actions succeed; what fails is one line on stderr."""
        failed: dict[str, Exception] = {}
        for what, action in actions.items():
            try:
                action()
            except Exception as error:  # of the disk, the network or W&B itself: none may cost the run
                failed[what] = error
        if failed:
            why = " ".join(str(next(iter(failed.values()))).split())
            results = f"all results are in {self.folder.path}"
            text = f"could not log {', '.join(failed)} ({why}); the command {consequence}"
            print(f"wandb: {text}, and {results}", file=sys.stderr, flush=True)
        return not failed

    def finish(self, test: Lines) -> None:
        """Log summary, tables and files, and end the run."""
        files = [name for name in wandb_tables.ARTIFACTS if (self.folder / name).is_file()]
        logged = self.attempt(
            {
                "summary": lambda: self.run.summary.update(wandb_tables.run_summary(self.folder)),
                "comparison": lambda: self.log_table("comparison", wandb_tables.comparison(self.folder)),
                "translations": lambda: self.log_table(
                    "translations", wandb_tables.translation_table(self.folder, test)
                ),
                **{name: lambda name=name: self.log_file(name) for name in files},  # type: ignore[misc]
            }
        )
        self.end(0)
        if state_of(self.folder).get("id") == self.state["id"]:
            self.folder.write_json(STATE, {**self.state, "logged": logged})

    def log_table(self, name: str, table: wandb_tables.TableContent) -> None:
        import wandb

        self.run.log({name: wandb.Table(columns=table[0], data=table[1])})

    def log_file(self, name: str) -> None:
        """Log a file as the artifact `<run>-<file>`."""
        import wandb

        kind, row = wandb_tables.ARTIFACTS[name], self.folder.row_of(self.folder.own_system())
        known = {key: self.config[key] for key in ("run_hash", "base_hash", "seed") if key in self.config}
        about = known | {"heads_open": row.heads_open, row.metric: row.main.value}
        artifact = wandb.Artifact(wandb_tables.artifact_name(self.folder, name), type=kind, metadata=about)
        # a model never changes: it is uploaded from where it lies, the others are copied
        policy: Any = "immutable" if kind == "model" else "mutable"
        artifact.add_file(str(self.folder / name), name=name, policy=policy, skip_cache=True)
        self.run.log_artifact(artifact, aliases=wandb_tables.aliases(self.config))

    def end(self, exit_code: int) -> None:
        """End the W&B run; later calls do nothing. exit_code: not 0 for a run that was interrupted."""
        if not self.ended:
            self.ended = True
            self.attempt({"the end of the run": lambda: self.run.finish(exit_code=exit_code)})


class StageLogger(WandbLogger):
    """Lightning's logger, for one stage: names of the stage that chooses heads on frozen weights begin with
    `choice`, those of others stand alone."""

    LOGGER_JOIN_CHAR = "/"

    def __init__(self, followed: FollowedRun, stage: str):
        super().__init__(experiment=followed.run, prefix="choice" if stage.endswith(CHOICE) else "")
        self.followed = followed

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        named = {f"{self._prefix}/{name}" if self._prefix else name: float(x) for name, x in metrics.items()}
        self.followed.log(named, int(step or 0))


class WandbWatcher(Remembers, Watcher):
    """Logs the gates after every epoch, as a picture and a table of the heads after all epochs so far."""

    remembered = ("rows",)

    def __init__(self, followed: FollowedRun):
        self.followed, self.rows = followed, list[dict[str, Any]]()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Any) -> None:
        if module.gating is None or not trainer.is_global_zero:
            return
        epoch = trainer.current_epoch + 1
        now = wandb_tables.gate_rows(module.gate_bank, epoch)
        self.rows = [*(row for row in self.rows if row["epoch"] < epoch), *now]
        self.followed.attempt({"heat map": lambda: self.draw(now, trainer.global_step - 1)}, WITHOUT)

    def draw(self, now: Sequence[dict[str, Any]], step: int) -> None:
        import wandb
        from matplotlib.figure import Figure  # here: half a second, and most runs do not need it

        sites = list(dict.fromkeys(row["site"] for row in now))
        values = np.full((len(sites), 1 + max(row["head"] for row in now)), np.nan)
        for row in now:
            values[sites.index(row["site"]), row["head"]] = row["p_open"]
        figure = Figure(layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
        axes.set_yticks(range(len(sites)), sites)
        axes.set(xlabel="head", title=f"P(open), epoch {now[0]['epoch']}")
        figure.colorbar(image)
        table = wandb.Table(columns=list(now[0]), data=[list(row.values()) for row in self.rows])
        self.followed.log({"gates/heads": table, "gates/heatmap": wandb.Image(figure)}, step)

    def on_preempted(self) -> None:
        """Let a sweep start this run again elsewhere."""
        self.followed.attempt({"the preemption": self.followed.run.mark_preempting})


class WandbTracker(Tracker):
    """Follows runs with W&B."""

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts
        self.agent = {name: os.environ[name] for name in AGENT if name in os.environ}
        self.runs: list[FollowedRun] = []  # only the last may still be open

    def open(self, folder: RunFolder, kind: str, base: RunFolder, *, asked: bool) -> None:
        """Raises ValueError where W&B refuses: the name, the login, no network."""
        import wandb

        if self.agent:
            wandb.teardown()  # it reads its environment once
            for name in self.agent:
                os.environ.pop(name, None)
            os.environ.update(self.agent if asked else {})
        config = wandb_tables.configuration(folder, self.facts)
        self.runs.append(open_followed(folder, kind, config, base))

    def loggers(self, stage: str) -> list[Logger]:
        return [StageLogger(self.runs[-1], stage)]

    def watchers(self, stage: str) -> list[Watcher]:
        return [WandbWatcher(self.runs[-1])]

    def finish(self, test: Lines) -> None:
        self.runs[-1].finish(test)

    def complete(self, folder: RunFolder, kind: str, base: RunFolder, test: Lines) -> None:
        before = state_of(folder)
        seen = any(run.folder.path == folder.path for run in self.runs)
        if seen or (before.get("logged") and not self.agent):
            return
        self.open(folder, kind, base, asked=True)
        if self.runs[-1].state["id"] != before.get("id"):  # a W&B run that has not seen the training
            with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    logger, step = StageLogger(self.runs[-1], row.pop("stage")), int(row.pop("step"))
                    logger.log_metrics({name: value for name, value in row.items() if value}, step)
        self.finish(test)

    def close(self) -> None:
        if self.runs:
            import wandb

            self.runs[-1].end(1)  # `finish` has ended the others
            wandb.teardown()
        os.environ.update(self.agent)
        say_how_to_upload(self.runs)


def state_of(folder: RunFolder) -> dict[str, Any]:
    """The content of wandb.json; an empty dictionary if the folder has no W&B run."""
    return dict(folder.read_json(STATE)) if (folder / STATE).is_file() else {}


def open_followed(folder: RunFolder, kind: str, config: dict[str, Any], base: RunFolder) -> FollowedRun:
    """The open W&B run of a folder, in the group of its base.

    Raises ValueError where W&B refuses: the name, the login, no network."""
    import wandb

    base_hash = config.get("base_hash") or config.get("run_hash") or ""
    known = state_of(folder)
    run_id = os.environ.get("WANDB_RUN_ID") or known.get("id") or secrets.token_hex(4)
    where: dict[str, Any] = {"project": project_name(), "entity": os.environ.get("WANDB_ENTITY") or None}
    if run_id == known.get("id"):  # which stays where it is
        where = {name: known[name] for name in where}
    try:
        mode = mode_without_asking()
        silent = "offline" in (mode, os.environ.get("WANDB_MODE"))  # online it says where the run is seen
        private: dict[str, Any] = dict.fromkeys(OFF, True) | dict.fromkeys(ON, False)
        logger = WandbLogger(
            name=folder.path.name,
            save_dir=folder.path,
            id=run_id,
            group=f"{base.path.name}-{base_hash[:6]}",  # siblings stand together
            job_type=kind,
            mode=mode,
            config=config,
            settings=wandb.Settings(console="off", host="", silent=silent, **private),
            **where,
        )
        return FollowedRun(logger.experiment, folder, config)
    except wandb.Error as error:
        why = " ".join(str(error).split())
        raise ValueError(f"W&B: {why} (WANDB_MODE=offline keeps runs here for now)") from error


def say_how_to_upload(runs: Sequence[FollowedRun]) -> None:
    """Say the line that uploads the runs which are kept offline."""
    offline = dict.fromkeys(run.folder.path for run in runs if run.offline)
    if offline:
        why = "kept offline" if os.environ.get("WANDB_MODE") else "no login found, so runs are kept offline"
        paths = " ".join(f"{shlex.quote(str(path))}/wandb/offline-run-*" for path in offline)
        say(f"wandb: {why}; `wandb sync {paths}` uploads them later")


def mode_without_asking() -> str | None:
    """ "offline" where W&B would ask for a login, else None, which leaves the mode to W&B's own settings."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    settings = wandb.setup(settings=wandb.Settings(silent=True)).settings  # or it says who is logged in
    return None if settings.mode == "disabled" or wandb.login(prompt=False, verify=False) else "offline"


def log_grid(
    folder: RunFolder,
    name: str,
    *,
    logger: str,
    kind: str,
    base: RunFolder,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
) -> None:
    """Log a grid as one W&B run beside the runs of its points: NAME.csv and NAME.png of the grid's folder,
    into the same W&B run again where the command is repeated; nothing without --logger wandb. A failure costs
    one line on stderr. Raises ValueError where W&B refuses the name or the login."""
    if not is_followed(logger):
        return
    import wandb

    rows = read_table(folder, f"{name}.csv")
    table = list(rows[0]), [list(row.values()) for row in rows]
    run = open_followed(folder, kind, {"base_hash": base.run_hash(), **config}, base)
    try:
        run.attempt(
            {
                "points": lambda: run.log_table("points", table),
                "figure": lambda: run.run.log({"figure": wandb.Image(str(folder / f"{name}.png"))}),
                "summary": lambda: run.run.summary.update(dict(summary)),
            }
        )
        run.end(0)
    finally:
        run.end(1)
        wandb.teardown()
    say_how_to_upload([run])
