"""What `compare.py` makes: points, each a method at a number of heads with so much training, on one base;
each is one run of fit.py.

All runs share one configuration, the base's own unless --fit says otherwise, so that base, text, steps and
search are the same; a point says only its method, heads, epochs and seed. The hash of its run is known before
it starts, so that a finished one is found again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from headgates.configs.cli import from_dict, to_yaml
from headgates.configs.closing import CLOSINGS
from headgates.configs.compare import CompareConfig
from headgates.configs.fields import to_dict
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.configs.scores import SCORES
from headgates.configs.source import is_foreign
from headgates.configs.speed_methods import SPEED_METHODS
from headgates.configs.systems import ScoreRow
from headgates.configs.yaml_file import load_yaml
from headgates.gates import KINDS, WIDTH, heads_left
from headgates.lab.base_settings import flat, open_base, with_base_settings
from headgates.lab.distilled_text import distilled_lines
from headgates.lab.experiment_text import ExperimentText
from headgates.lab.lab import check_count
from headgates.pruning.grid import run_hashes
from headgates.pruning.point import Point, Size, merged
from headgates.pruning.protocol import make_runs
from headgates.pruning.scores import ScoreRequest, head_scores
from headgates.records.folder import RunFolder, closes_heads

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
        self.unpruned = self.text.source(self.base)  # the base as it is, for its scores
        self.others = [self.unpruned.other(corpus) for corpus in config.also]
        self.sizes = self.sizes_asked()
        self.base_hash, self.plan = str(self.base.run_hash()), []
        for point in points(config, self.sizes):
            run_hash, (_, *needs) = run_hashes(point.config(self.shared), self.text, self.base_hash)
            self.plan.append(replace(point, run_hash=run_hash, needs=tuple(needs)))

    def sizes_asked(self) -> list[Size]:
        """Every number of heads with every number of neurons, the most first; without numbers SHARES of what
        may close. Raises ValueError at more than there are, at a number of what the kinds do not name, or
        where heads and neurons may both close and one has no number."""
        if self.config.speedups:
            return [Size(speedup=each) for each in sorted({*self.config.speedups})]
        kinds, asked = self.shared.kinds, {"heads": self.config.heads, "neurons": self.config.neurons}
        gated = {"heads": [kind for kind in kinds if kind in KINDS], "neurons": self.shared.gated_neurons}
        numbers: dict[str, Sequence[int | None]] = {}
        for what, of_kinds in gated.items():
            if asked[what] and not of_kinds:
                raise ValueError(
                    f"--{what}: --kinds {','.join(kinds)} names none of them; leave it out, or take --kinds "
                    "all"
                )
            if of_kinds:
                total = heads_left(self.unpruned.model, of_kinds).count()
                block = WIDTH if what == "neurons" else 1
                shares = dict.fromkeys(block * max(1, round(share * total / block)) for share in SHARES)
                chosen = sorted(asked[what] or shares, reverse=True)
                check_count(what, chosen[0], total, of_kinds)
                numbers[what] = chosen
        if len(numbers) > 1 and (missing := [what for what in numbers if not asked[what]]):
            raise ValueError(
                f"--kinds {','.join(kinds)} closes heads and neurons, each to numbers of its own: give "
                f"--{' and --'.join(missing)} too"
            )
        none: list[int | None] = [None]
        return [Size(h, n) for h in numbers.get("heads", none) for n in numbers.get("neurons", none)]

    @property
    def sizes_words(self) -> str:
        """The sizes, and how many heads and neurons the base has of what may close."""
        if self.config.speedups:
            return ", ".join(size.words for size in self.sizes)
        found = []
        for place, (what, word) in enumerate({"heads": "heads", "neurons": "ffn"}.items()):
            numbers = dict.fromkeys(size[place] for size in self.sizes if size[place] is not None)
            if numbers:
                left = heads_left(self.unpruned.model, self.shared.kinds).select([word])
                found.append(f"{', '.join(map(str, numbers))} of {left.count()} {what}")
        return " with ".join(found)

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

    def make_here(self, point: Point) -> None:
        """Make the run of a point in this process: for points without training, of which a process of their
        own would take longer to start than to make them. Raises ValueError or OSError as fit.py."""
        config, ours = point.config(self.shared), self.config
        make_runs(replace(config, runs=ours.runs, logger=ours.logger, resume=True, unique=True), self.text)

    def keep_scores(self, points: Sequence[Point]) -> None:
        """Compute the scores that these points close by, each once, and keep them in the base's folder, where
        their runs find them."""
        seeds = dict.fromkeys(
            (point.method, point.seed if SCORES[point.method].drawn else self.config.seed)
            for point in points
            if not point.learned and point.speedup is None
        )
        for score, seed in seeds:
            request = ScoreRequest(
                self.unpruned,
                valid=self.unpruned.lines("valid"),
                kinds=self.shared.kinds if self.shared.gated_neurons else None,
                seed=seed,
                sentences=self.shared.sentences,
            )
            head_scores(score, request)

    def keep_translations(self, points: Sequence[Point]) -> None:
        """Let the base make the translations that the training of these points learns from, once, in its
        folder."""
        if self.shared.distill.sequences and any(point.epochs for point in points):
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
        "neurons": FitConfig().neurons,
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


def points(config: CompareConfig, sizes: Sequence[Size]) -> Iterator[Point]:
    """The points of a command: whole seeds one after the other, sizes in their order. Without training only
    what is sampled has seeds."""
    for seed in config.all_seeds:
        for epochs in config.finetune:
            for heads, neurons, speedup in sizes:
                for method in config.methods:
                    row = ScoreRow.parse(method)
                    if speedup is not None:
                        if epochs or SPEED_METHODS[method].prunes:
                            yield Point(method, epochs, seed, speedup=speedup, runtime=config.runtime)
                    elif row is not None:
                        drawn = SCORES[row.score].drawn or CLOSINGS[row.closing].calibrated
                        if epochs or seed == config.seed or drawn:
                            yield Point(
                                row.score, epochs, seed, asked=heads, neurons=neurons, closing=row.closing
                            )
                    elif epochs and METHODS[method].controlled_by == "heads":
                        yield Point(method, epochs, seed, asked=heads, neurons=neurons)
            for lam in sorted(config.lambdas) if epochs else []:
                for method in config.methods:
                    if method in METHODS and METHODS[method].controlled_by == "lambda":
                        yield Point(method, epochs, seed, lam=lam)
