"""The state of a sweep, from which it continues: RUNS/sweep-NAME with trials.json, sweep.yaml (a copy of the
sweep file) and logs/.

trials.json: {"seed", "trials": [{"number", "parameters", "status", "run", "same_as", "exit_code", "seconds",
"error", "result"}]}; status is waiting, running, done, failed, or skipped (an earlier trial has the very same
values: same_as).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from headgates.configs.fields import shortened
from headgates.configs.json_file import load_json
from headgates.configs.yaml_file import load_yaml
from headgates.workbench.folder import RunFolder
from headgates.workbench.sweeps.parameters import Draw
from headgates.workbench.sweeps.sweep_file import SweepFile

STATUSES = ("waiting", "running", "done", "failed", "skipped")
TYPES = {
    "number": int,
    "parameters": dict,
    "run": str | None,
    "seconds": int | float,
    "result": dict | None,
}  # of a record's fields
DECISIVE_KEYS = ("program", "method", "parameters", "command")  # keys of a sweep file that define its trials


@dataclass
class Record:
    """One trial. status: one of STATUSES; run: the name of its folder; seconds: of all its starts together;
    error: why it failed."""

    number: int
    parameters: dict[str, Any]
    status: str = "waiting"
    run: str | None = None
    same_as: int | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    error: str | None = None
    result: dict[str, Any] | None = None

    @property
    def log(self) -> str:
        """The path of its log in the sweep's folder."""
        return f"logs/{self.number:03d}.log"


def record_from_json(content: Any) -> Record:
    """One trial of trials.json. Raises ValueError where it is not what a sweep writes."""
    try:
        record = Record(**content)
        if record.status in STATUSES and all(
            isinstance(getattr(record, name), kind) for name, kind in TYPES.items()
        ):
            return record
    except TypeError:  # no mapping, or other keys
        pass
    raise ValueError(f"trials.json has no trial in {shortened(content)}")


class SweepState:
    """The records of a sweep by number, and where they are kept."""

    def __init__(self, folder: Path, seed: int, records: Sequence[Record]):
        self.folder, self.seed = folder, seed
        self.retried: set[int] = set()  # numbers of the trials that failed before and wait again
        self.records = {record.number: record for record in records}

    @classmethod
    def open(
        cls, folder: Path, sweep: SweepFile, draws: Sequence[Draw], *, seed: int, retry: bool = False
    ) -> "SweepState":
        """Return the state of the sweep, new or as it was left. Trials that were running wait again; so do
        failed ones with `retry`. Raises ValueError if the folder holds another sweep."""
        records = [Record(draw.number, as_json(draw.values), same_as=draw.same_as) for draw in draws]
        for record in records:
            record.status = "waiting" if record.same_as is None else "skipped"
        state = cls(folder, seed, records)
        if (folder / "trials.json").is_file():
            state.continue_from_disk(sweep)
        state.retried = {record.number for record in state.records_with("failed")} if retry else set()
        for record in state.records.values():
            if record.status == "running" or record.number in state.retried:
                record.status, record.error, record.exit_code = "waiting", None, None
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        # before trials.json: a state always has its sweep file
        RunFolder(folder).write_text("sweep.yaml", sweep.path.read_text(encoding="utf-8"))
        state.save()
        return state

    def continue_from_disk(self, sweep: SweepFile) -> None:
        """Replace new records by those on disk; records beyond the requested trials are kept."""
        cure = f"give this one a --name of its own, or remove {self.folder}"
        try:
            before = load_yaml(self.folder / "sweep.yaml", yaml.SafeLoader)
            content = load_json(
                self.folder / "trials.json",
                keys={"seed": int, "trials": list},
                cure="it is not what sweep.py writes",
            )
            seed, old = content["seed"], [record_from_json(record) for record in content["trials"]]
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{self.folder} holds no sweep that can continue ({' '.join(str(error).split())}); {cure}"
            ) from None
        if {record.status for record in old} <= {"waiting", "skipped"}:
            return  # no trial was started, so there is none to continue
        # as text: the order of the parameters counts in a grid
        other = [
            key
            for key in DECISIVE_KEYS
            if json.dumps(before.get(key), default=str) != json.dumps(sweep.content.get(key), default=str)
        ]
        if other or (seed != self.seed and sweep.method == "random"):
            differs = ", ".join(other) or f"seed {seed}, not {self.seed}"
            raise ValueError(f"{self.folder} holds another sweep ({differs}); {cure}")
        for record in old:
            new = self.records.get(record.number)
            if new is not None and new.parameters != record.parameters:
                was, now = described(record.parameters), described(new.parameters)
                raise ValueError(
                    f"{self.folder}: trial {record.number} was {was} and is drawn as {now} now; {cure}"
                )
            if new is None or record.same_as is None:
                self.records[record.number] = record
        self.records = dict(sorted(self.records.items()))

    def save(self) -> None:
        content = {"seed": self.seed, "trials": [asdict(record) for record in self.records.values()]}
        RunFolder(self.folder).write_json("trials.json", content)

    def records_with(self, status: str) -> list[Record]:
        """The records of this status, by number."""
        assert status in STATUSES
        return [record for record in self.records.values() if record.status == status]


def as_json(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as they will be once written to JSON and read again."""
    result: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return result


def described(parameters: dict[str, Any], names: Sequence[str] | None = None) -> str:
    """Return text such as `lambda 0.0123, seed 1`, for the named parameters or for all."""
    shown = parameters if names is None else {name: parameters[name] for name in names if name in parameters}
    return ", ".join(f"{name} {short(value)}" for name, value in shown.items())


def short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
