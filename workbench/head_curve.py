"""One run, many numbers of heads (`fit.py --curve`, `--max-drop`): each count starts from the smaller model
of the count before, and the fewest heads at an accepted drop are found on validation and confirmed once on
the test set.

Files: `K-heads.pt`, the model with K heads; `K-stage.json`, how it was trained; `hypotheses/valid-K.txt`;
`curve.csv`, a row for each count; `knee.json`, what was accepted and what was found; `heads-curve.png` and
`.svg`.
"""

from collections.abc import Sequence

from headgates.analysis.knee import SLACK, Drop, drop, knee
from headgates.analysis.significance import Scored, resample_counts, score
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.data.ranks import first, wait
from headgates.gates import detach, heads_left, remove
from headgates.models.progress import say
from headgates.tasks.base import Predictor
from headgates.workbench.evaluation import RESAMPLES
from headgates.workbench.folder import RunFolder
from headgates.workbench.lab import Lab, Run
from headgates.workbench.scores import kinds_suffix
from headgates.workbench.source import best_device
from headgates.workbench.stages import train_gates
from headgates.workbench.table import Row, write_table

SHARES = (
    0.75,
    0.625,
    0.5,
    0.375,
    0.25,
    0.1875,
    0.125,
    0.0625,
)  # of the gated heads, where --curve names no counts
KNEE = "knee.json"


def curve_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """The run of a configuration with `curve` or `max_drop`. The knee of a finished one is found again where
    another drop is accepted.

    Raises ValueError at counts that the model does not have."""
    config = lab.config
    words = ["curve" if config.curve else "fewest", *kinds_suffix(config.kinds), f"s{config.seed}"]
    name = "-".join([lab.text.prefix, config.gate, *words])
    counts = counts_of(lab.text.load(base), config)
    with lab.run(name, gate=config.gate, on=base, curve=config.curve or "fewest") as run:
        if not run.done or run.folder.read_json(KNEE)["max_drop"] != config.drop_limit:
            HeadCurve(run).make(continued, counts)
    return run.folder


def counts_of(predictor: Predictor, config: FitConfig) -> list[int]:
    """The numbers of heads, in the gated kinds, from many to few. Raises ValueError where the model has no
    more than one of them."""
    total = heads_left(predictor.model).select(config.kinds).count()
    chosen = config.curve or sorted({round(total * share) for share in SHARES} - {0, total}, reverse=True)
    if too_many := [count for count in chosen if count >= total]:
        kinds = ", ".join(config.kinds)
        raise ValueError(
            f"--curve: expected fewer heads than the {total} of {kinds}, got {', '.join(map(str, too_many))}"
        )
    return chosen


class HeadCurve:
    """The points of one run, and its knee."""

    def __init__(self, run: Run):
        self.run, self.folder = run, run.folder
        self.config, self.task = run.config, run.task
        self.method = METHODS[run.config.gate]
        corpus = run.text.corpus
        self.valid = (list(corpus.valid.sources), list(corpus.valid.targets))
        self.resamples = resample_counts(len(self.valid[0]), RESAMPLES)

    def make(self, continued: RunFolder | None, counts: Sequence[int]) -> None:
        """Train what is not there yet, find the knee, and write the comparison."""
        run, predictor = self.run, self.run.load()
        evaluation = run.compare_with(continued, predictor)
        better = continued if evaluation.reference == "base-continued" and continued else run.base
        reference = self.validated("reference", run.text.load(better))
        rows, drops = [], []
        for count in counts:
            predictor = self.smaller(predictor, count)
            scored = self.validated(str(count), predictor)
            drops.append(drop(count, scored, reference, self.resamples))
            rows.append(self.row(count, predictor, scored, drops[-1]))
            write_table(self.folder, "curve.csv", rows)
            self.say_point(rows[-1])
        found = knee(drops, self.config.drop_limit)
        shown = found.heads_open if found is not None else drops[0].heads_open
        name, weights = f"{self.method.name}-{shown}", self.folder / f"{shown}-heads.pt"
        wait()  # for the first rank to have written it
        evaluation.add(
            name, weights, self.load(shown), None, stage=self.folder.read_json(f"{shown}-stage.json")
        )
        test_counts = resample_counts(len(run.text.test[0]), RESAMPLES)
        against = str(evaluation.reference)
        ours, theirs = evaluation.scored[name], evaluation.scored[against]
        tested = {
            metric.name: drop(shown, ours, theirs, test_counts, metric=metric.name)
            for metric in self.task.metrics
        }
        self.write_knee(found, against, tested)
        run.finish(name)

    # ---------------------------------------------------------------- points

    def smaller(self, predictor: Predictor, count: int) -> Predictor:
        """The model with `count` heads, trained from that of the count before unless it is there."""
        if first((self.folder / f"{count}-heads.pt").is_file):
            return self.load(count)
        name, prefix = f"{count} heads", f"{count}-"
        bank, _ = train_gates(self.run, self.method, predictor, target=count, name=name, prefix=prefix)
        closed = bank.closed()
        detach(predictor.model)
        remove(predictor.model, closed)
        self.task.save_model(self.folder / f"{count}-heads.pt", predictor)
        for name in ("best.pt", "last.pt"):
            (self.folder / f"{count}-{name}").unlink(missing_ok=True)
        return predictor

    def load(self, count: int) -> Predictor:
        predictor = self.task.load_predictor(
            self.folder.path, self.folder / f"{count}-heads.pt", self.run.text.settings
        )
        predictor.model.to(best_device())
        return predictor

    def validated(self, name: str, predictor: Predictor) -> Scored:
        """The model's outputs of all validation lines, scored; read from their file where they are there."""
        if first((self.folder / f"hypotheses/valid-{name}.txt").is_file):
            outputs = self.folder.outputs(f"valid-{name}")
        else:
            outputs = self.task.outputs(predictor, self.valid[0])
            self.folder.write_outputs(f"valid-{name}", outputs)
        return score(outputs, self.valid[1], self.task.metrics)

    def row(self, count: int, predictor: Predictor, scored: Scored, found: Drop) -> Row:
        stage = first(lambda: self.folder.read_json(f"{count}-stage.json"))
        left = heads_left(predictor.model)
        metrics = {f"valid_{metric.name}": scored[metric.name] for metric in self.task.metrics}
        return {
            "heads_open": count,
            "heads_total": left.heads_total,
            **{kind: int(number) for kind, number in left.by_kind().items()},
            **metrics,
            "valid_loss": min(stage["losses"]),
            "drop": found.mean,
            "drop_bound": found.bound,
            "detectable": found.detectable,
            "acceptable": found.acceptable(self.config.drop_limit),
            "parameters": sum(parameter.numel() for parameter in predictor.model.parameters()),
        }

    # ---------------------------------------------------------------- what is said

    def say_point(self, row: Row) -> None:
        metric = self.task.metrics[0]
        verdict = "accepted" if row["acceptable"] else "too much"
        say(
            f"{row['heads_open']} of {row['heads_total']} heads: {metric.title} "
            f"{row[f'valid_{metric.name}']:.2f} on validation, "
            f"{row['drop']:.2f} lost (95% bound {row['drop_bound']:.2f}): {verdict}"
        )

    def write_knee(self, found: Drop | None, reference: str, tested: dict[str, Drop]) -> None:
        """knee.json, and the same in words."""
        limit, first = self.config.drop_limit, self.task.metrics[0]
        content = {
            "max_drop": limit,
            "largest_bound": limit + SLACK,
            "metric": first.name,
            "reference": reference,
            "heads": found and found.heads_open,
            "validation": found and found.to_json(),
            "test": {name: each.to_json() for name, each in tested.items()},
        }
        self.folder.write_json(KNEE, content)
        accepted = f"at most {limit:g} {first.title} on validation (95% bound {limit + SLACK:g})"
        if found is None:
            say(f"no number of heads loses {accepted}; the largest is shown")
        else:
            say(f"the fewest heads that lose {accepted}: {found.heads_open}, {found.mean:.2f} lost")
        words = ", ".join(f"{metric.title} {-tested[metric.name].mean:+.2f}" for metric in self.task.metrics)
        smallest = tested[first.name].detectable
        say(
            f"once on the test set, against {reference}: {words}; these lines would show a loss of "
            f"{smallest:.2f} four times in five"
        )
