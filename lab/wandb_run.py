"""The W&B run of a run folder. A failure of W&B never stops a run: it becomes one line on stderr.

RUN/wandb.json keeps the id of the W&B run, so that a resumed command continues it, and whether its results
are logged."""

import os
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from headgates.lab import wandb_tables
from headgates.models.progress import say
from headgates.records.folder import RunFolder
from headgates.records.source import Lines

STATE = "wandb.json"
PROJECT = "headgates"
CHOICE = ": choice"  # the end of the name of a stage that trains gates alone
AGAIN, WITHOUT = "tries again next time", "goes on without it"
# Nothing of the machine is logged but the load of its processors and memory.
OFF = ("disable_code", "disable_git", "disable_job_creation", "label_disable", "x_disable_meta", "quiet")
ON = ("save_code", "symlink", "x_save_requirements")


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

    def log_stage(self, stage: str, numbers: Mapping[str, Any], step: int) -> None:
        """Log a row of a stage: names of the one that chooses heads on frozen weights begin with `choice`,
        those of others stand alone."""
        prefix = "choice/" if stage.endswith(CHOICE) else ""
        self.log({f"{prefix}{name}": float(number) for name, number in numbers.items()}, step)

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


class State(TypedDict):
    """wandb.json."""

    project: str
    entity: str | None
    id: str
    logged: bool


def state_of(folder: RunFolder) -> Mapping[str, Any]:
    """The content of wandb.json; an empty dictionary if the folder has no W&B run."""
    if not (folder / STATE).is_file():
        return {}
    return folder.read_json(STATE, State, cure="remove it, and the run is logged anew")


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
        run = wandb.init(
            name=folder.path.name,
            dir=folder.path,
            id=run_id,
            resume="allow",
            group=f"{base.path.name}-{base_hash[:6]}",  # siblings stand together
            job_type=kind,
            mode=mode,
            config=config,
            settings=wandb.Settings(console="off", host="", silent=silent, **private),
            **where,
        )
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return FollowedRun(run, folder, config)
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


def mode_without_asking() -> Literal["offline"] | None:
    """ "offline" where W&B would ask for a login, else None, which leaves the mode to W&B's own settings."""
    import wandb

    if os.environ.get("WANDB_MODE"):
        return None
    settings = wandb.setup(settings=wandb.Settings(silent=True)).settings  # or it says who is logged in
    return None if settings.mode == "disabled" or wandb.login(prompt=False, verify=False) else "offline"
