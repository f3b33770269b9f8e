"""What `compare.py` makes: points, each a method at a number of heads with so much training, on one base;
each is one run of fit.py.

All runs share one configuration, the base's own unless --fit says otherwise, so that base, text, steps and
search are the same; a point says only its method, heads, epochs and seed. The hash of its run is known before
it starts, so that a finished one is found again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgates.configs.cli import from_dict, to_yaml
from headgates.configs.compare import CompareConfig
from headgates.configs.fields import to_dict
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.configs.scores import SCORES
from headgates.configs.source import is_foreign
from headgates.configs.systems import ScoreRow
from headgates.configs.yaml_file import load_yaml
from headgates.gates import heads_left
from headgates.models.progress import say
from headgates.workbench.base_settings import flat, open_base, with_base_settings
from headgates.workbench.distilled_text import distilled_lines
from headgates.workbench.experiment_text import ExperimentText
from headgates.workbench.fingerprint import SCORED
from headgates.workbench.folder import RunFolder, closes_heads
from headgates.workbench.grid import run_hashes
from headgates.workbench.protocol import make_runs
from headgates.workbench.scores import ScoreRequest, head_scores

SHARES = (0.75, 0.5, 0.25, 0.125)  # of all heads, without --heads
OF_THE_COMMAND = (
    "runs",
    "threads",
    "logger",
    "resume",
    "unique",
    "fresh",
    "name",
    "data_dir",
    "checkpoint_minutes",
    "checkpoint_steps",
)  # no part of the protocol
PROTOCOL = "fit.yaml"  # the configuration that all runs of a comparison share


@dataclass(frozen=True)
class Point:
    """A method at a number of heads. method: one that learns, or a row of a score. epochs: of training, 0 for
    none; heads: as asked for, None where lambda (`lam`) controls."""

    method: str
    epochs: int
    seed: int
    heads: int | None = None
    lam: float | None = None

    @property
    def learned(self) -> bool:
        return self.method in METHODS

    @property
    def system(self) -> str:
        """The row of its run that it is."""
        row = self.row
        return METHODS[self.method].exact if row is None else replace(row, trained=self.epochs > 0).name

    @property
    def row(self) -> ScoreRow | None:
        """Of a score, as closed; None for a method that learns."""
        return ScoreRow.parse(self.method)

    @property
    def flags(self) -> dict[str, Any]:
        """What fit.py gets beside the shared configuration, by the names of settings."""
        bases = ["base", "base-continued"] if self.epochs else ["base"]
        flags: dict[str, Any] = {
            "gate": self.method if self.learned else SCORED,
            "systems": [*bases, self.system],
            "seed": self.seed,
        }
        flags |= {"heads": self.heads} if self.heads is not None else {"lambda": self.lam}
        return flags | ({"finetune": {"epochs": self.epochs}} if self.epochs else {})

    @property
    def words(self) -> list[str]:
        """The same as words of a command line."""
        return [
            f"--{name}={','.join(value) if isinstance(value, list) else value}"
            for name, value in flat(self.flags).items()
        ]

    def config(self, shared: FitConfig) -> FitConfig:
        """The configuration of its run. Raises ValueError where fit.py would."""
        return from_dict(FitConfig, merged(to_dict(shared), self.flags))


@dataclass(frozen=True)
class PlannedPoint:
    """A point with the hash of its run, and that of the continued base which runs of its seed and epochs
    share (none without training)."""

    point: Point
    run_hash: str
    needs: tuple[str, ...]


class Comparison:
    """What a command asks for: the base, the configuration of all runs, the text, and the points in the order
    in which they are made."""

    def __init__(self, config: CompareConfig):
        """Raises ValueError, before anything is made, where the source is no finished base or a point cannot
        be made on it."""
        self.config = config
        shared = shared_settings(config)
        self.base = open_base(shared)
        self.shared = with_base_settings(shared, self.base)
        self.text = ExperimentText(self.shared)
        self.kept = self.text.source(self.base)  # the base as it is, for its scores
        self.total = heads_left(self.kept.model).select(self.shared.kinds).count()
        self.heads = list(config.heads) or list(
            dict.fromkeys(max(1, round(share * self.total)) for share in SHARES)
        )
        for count in self.heads:
            if count > self.total:
                kinds = ", ".join(self.shared.kinds)
                raise ValueError(
                    f"--heads: cannot keep {count} of {self.total} heads of {kinds}; give a smaller number"
                )
        self.base_hash, self.plan = str(self.base.run_hash()), []
        for point in points(config, self.heads):
            run_hash, (_, *needs) = run_hashes(point.config(self.shared), self.text, self.base_hash)
            self.plan.append(PlannedPoint(point, run_hash, tuple(needs)))

    @property
    def name(self) -> str:
        return self.config.name or self.base.path.resolve().name

    @property
    def protocol(self) -> str:
        """The text of PROTOCOL: what all runs share, and nothing of the command that makes them."""
        default = FitConfig()
        plain = replace(self.shared, **{name: getattr(default, name) for name in OF_THE_COMMAND})
        return to_yaml(plain, base_hash=self.base_hash)

    def check_folder(self, folder: RunFolder) -> None:
        """Raises ValueError where the folder holds the comparison of another base, or of other settings."""
        if not (folder / PROTOCOL).is_file():
            return
        before, now = map(
            flat, (load_yaml(folder / PROTOCOL), {**to_dict(self.shared), "base_hash": self.base_hash})
        )
        left_out = {*OF_THE_COMMAND, "base"}  # a base may have moved: its hash tells it
        other = [name for name in now if name not in left_out and before.get(name) != now[name]]
        if other:
            raise ValueError(
                f"{folder.path} holds a comparison with other settings "
                f"({', '.join(other[:5])}{', ...' if len(other) > 5 else ''}); "
                "give this one a --name of its own, or remove that folder"
            )

    def make_here(self, planned: PlannedPoint) -> None:
        """Make the run of a point in this process: for points without training, of which a process of their
        own would take longer to start than to make them. Raises ValueError or OSError as fit.py."""
        config, ours = planned.point.config(self.shared), self.config
        make_runs(replace(config, runs=ours.runs, logger=ours.logger, resume=True, unique=True), self.text)

    def keep_scores(self, planned: Sequence[PlannedPoint]) -> None:
        """Compute the scores that these points close by, each once, and keep them in the base's folder, where
        their runs find them."""
        seeds: dict[tuple[str, int], None] = {}
        for point in (each.point for each in planned):
            if (row := point.row) is not None:
                seeds[row.score, point.seed if SCORES[row.score].seeded else self.config.seed] = None
        for score, seed in seeds:
            sentences = self.shared.sentences
            head_scores(
                score, ScoreRequest(self.kept, valid=self.kept.lines("valid"), seed=seed, sentences=sentences)
            )

    def keep_translations(self, planned: Sequence[PlannedPoint]) -> None:
        """Let the base make the translations that the training of these points learns from, once, in its
        folder."""
        if self.shared.distill.sequences and any(each.point.epochs for each in planned):
            distilled_lines(self.text, self.base)


def shared_settings(config: CompareConfig) -> FitConfig:
    """The configuration of all runs: the base's own, what --fit changes, and the base itself. Raises
    ValueError where the source is no base, or a file holds no settings of fit.py."""
    settings: dict[str, Any] = {}
    if is_foreign(config.source):
        text = ("data", "src", "tgt")
        settings |= {name: getattr(config, name) for name in text if getattr(config, name) is not None}
    else:
        folder = RunFolder.open(config.source)
        settings |= folder.config()
        if closes_heads(settings):
            raise ValueError(
                f"{config.source} closes heads already; a comparison starts from its base, "
                f"{settings.get('base')}"
            )
        if given := [name for name in ("data", "src", "tgt") if getattr(config, name) is not None]:
            raise ValueError(
                f"--{given[0].replace('_', '-')} is for models of other libraries; {config.source} is a "
                f"run, which has its own"
            )
    if config.fit is not None:
        changes = load_yaml(config.fit)
        from_dict(FitConfig, changes, origin=config.fit)  # its errors name the file
        settings = merged(settings, changes)
    settings |= {
        "base": config.source,
        "name": None,
        "gate": "none",
        "heads": FitConfig().heads,
        "systems": [],
        "seed": 1,
        "dynamics": [],
        "runs": config.runs,
        "resume": False,
        "fresh": False,
        "unique": False,
        "threads": 0,
        "logger": "csv",
    }
    settings |= {"kinds": list(config.kinds)} if config.kinds else {}
    settings |= {"data_dir": config.data_dir} if config.data_dir else {}
    return from_dict(FitConfig, settings)


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The settings with the changes, group by group."""
    new = dict(settings)
    for name, value in changes.items():
        key = str(name).replace("-", "_")
        new[key] = merged(new.get(key) or {}, value) if isinstance(value, dict) else value
    return new


def points(config: CompareConfig, heads: Sequence[int]) -> Iterator[Point]:
    """The points of a command: whole seeds one after the other, the most heads first. Without training only
    what is sampled has seeds."""
    for seed in config.all_seeds:
        for epochs in config.finetune:
            for count in sorted(heads, reverse=True):
                for method in config.methods:
                    if method in METHODS:
                        made = bool(epochs) and METHODS[method].controlled_by == "heads"
                    else:
                        made = bool(epochs) or seed == config.seed or SCORES[method.split(":")[0]].seeded
                    if made:
                        yield Point(method, epochs, seed, heads=count)
            for lam in sorted(config.lambdas) if epochs else []:
                for method in config.methods:
                    if method in METHODS and METHODS[method].controlled_by == "lambda":
                        yield Point(method, epochs, seed, lam=lam)


def tell_plan(comparison: Comparison, waiting: int) -> None:
    """Say what will be made."""
    plan = comparison.plan
    heads = ", ".join(map(str, comparison.heads))
    say(
        f"{comparison.name}: {len(plan)} points at {heads} of {comparison.total} heads, {waiting} of "
        f"them to make"
    )
