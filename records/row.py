"""The typed row of a result: one system of a run's comparison, as result.json holds it.

In the file the numbers of a metric stand flat beside the others: `bleu`, `bleu_signature`, `bleu_ci95`,
`bleu_difference`, `bleu_difference_ci95`, `bleu_p_value`, `bleu_p_sacrebleu`; here they are one `Measure`.
What this version does not know is kept as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NotRequired, TypedDict

from headgates.configs.json_file import parsed
from headgates.configs.recipe import Recipe, Speed

BASE, CONTINUED, PRUNED = "base", "base-continued", "pruned"  # systems of a run
UNPRUNED_LABELS = {BASE: "unpruned", CONTINUED: "unpruned, trained as long"}  # what tables call them
Interval = tuple[float, float]  # of 95%, most by bootstrap
REACHED = 0.95  # of the speed that was asked for: two timings of one model differ by 3%
ENDLESS = 0.5  # of the test lines
COMPUTE_PARTS = ("choice", "refit", "text", "training")  # of `ResultRow.compute`


class Ratio(TypedDict):
    """How many times as fast as the unpruned model, over rounds."""

    median: float


class RuntimeRecord(TypedDict):
    """By one runtime. other_lines: 95% interval of the speed on as many other lines. milliseconds: a line,
    of this model and of the unpruned one, whose metrics `unpruned` has; this model's own stand beside."""

    measured: Ratio
    other_lines: NotRequired[Interval | None]
    milliseconds: tuple[float, float]
    unpruned: NotRequired[dict[str, float]]


class ListRecord(TypedDict):
    """The shortlist of a planned model. by: a number of pieces, or Marian's file. rows: of the output layer,
    `of` so many, that a batch of the timed text computes on average."""

    by: str
    rows: float
    of: int


class SpeedRecord(TypedDict):
    """Of a planned model. budget: what was asked for. predicted: how many times less it costs, of `unit`;
    predicted_on_other_lines: the 95% interval of that where a model without training was timed on what it
    writes itself. shortlist: where it has one that its base has not."""

    budget: str
    predicted: float
    predicted_on_other_lines: NotRequired[Interval]
    unit: str
    measured: Ratio
    tokens: float
    timed: str
    runtimes: dict[str, RuntimeRecord]
    shortlist: NotRequired[ListRecord]


def other_words(interval: Interval | None) -> str:
    """Beside a speed that was measured on some lines: what it may be on others."""
    return f" ({interval[0]:.2f} to {interval[1]:.2f} on other lines)" if interval else ""


class StageRecord(TypedDict):
    """How a model was trained last (`lightning_modules.stage`)."""

    epochs: int
    steps: int
    seconds: float
    best_epoch: int
    losses: list[float]
    converged: bool | None


class PathRecord(TypedDict):
    """A model that was tried on the way to one that loses little. asked: what for. score: on validation, by
    the metric that decides; lost, bound: points less than the base, and the 95% bound (`analysis.knee`).
    loss: on validation, where it was measured."""

    asked: str
    heads: int
    score: float
    lost: float
    bound: float
    loss: float | None
    accepted: bool


class EvaluationRecord(TypedDict, total=False):
    """What outputs depend on beside the model; tasks have further keys."""

    search: dict[str, Any]
    sentences: int
    test_digest: str


@dataclass
class Measure:
    """One metric of a system on the test set, and its difference from the reference of the comparison.

    p_value: two-sided, paired bootstrap. p_sacrebleu: what sacreBLEU prints for the same comparison
    (analysis.significance). p_mcnemar: of McNemar's test, for a metric that says of each line whether it is
    right."""

    value: float
    signature: str = ""
    ci95: Interval | None = None
    difference: float | None = None
    difference_ci95: Interval | None = None
    p_value: float | None = None
    p_sacrebleu: float | None = None
    p_mcnemar: float | None = None

    def columns(self, metric: str) -> dict[str, Any]:
        """Under the names of result.json; what is not known is left out."""
        named = {name: getattr(self, name) for name in MEASURED}
        return {metric: self.value} | {f"{metric}_{name}": v for name, v in named.items() if v is not None}


@dataclass
class ResultRow:
    """A system: how many heads are open, and how good it is.

    heads_by_kind: open heads of each kind. heads_by_site: the open heads of every site. neurons_open,
    neurons_total: of feed-forward layers, where some neurons are closed. layers_left: of each stack,
    whether each of its first layers is there, where some are not. evaluation: what the outputs depend on
    beside the model. measures: metric -> numbers, the metric that decides first. compute: seconds of what
    made it of the base: the `choice` of heads, the `refit`, the base's translations (`text`), `training`.
    parameters: without those of closed heads. seconds: of translating the test set once; None where
    closed heads were only masked, which saves no time, or on another machine. stage: how it was trained
    last (lightning_modules.stage). above_trivial: of a base (`analysis.significance`). subnet: what stays
    of the base (`gates.Subnet`). recipe: how it was made; None of a base. loss: on validation, in nats
    per unit. endless: the share of the outputs that run to the length limit, where the base's do not.
    path: the models that were tried, of which this is one."""

    system: str
    heads_open: int
    heads_total: int
    heads_by_kind: dict[str, int]
    measures: dict[str, Measure]
    heads_by_site: dict[str, list[int]] | None = None
    neurons_open: int | None = None
    neurons_total: int | None = None
    layers_left: dict[str, list[bool]] | None = None
    parameters: int | None = None
    seconds: float | None = None
    evaluation: EvaluationRecord = field(default_factory=EvaluationRecord)
    recipe: Recipe | None = None
    loss: float | None = None
    stage: StageRecord | None = None
    compute: dict[str, float] | None = None
    above_trivial: Interval | None = None
    reference: str | None = None
    p_value_vs_base: float | None = None
    subnet: dict[str, Any] | None = None
    speed: SpeedRecord | None = None
    endless: float | None = None
    path: list[PathRecord] | None = None
    others: dict[str, Any] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The name of the metric that decides."""
        return next(iter(self.measures))

    @property
    def main(self) -> Measure:
        """The metric that decides."""
        return self.measures[self.metric]

    @property
    def label(self) -> str:
        """What figures and tables call it."""
        return UNPRUNED_LABELS.get(self.system) or (self.recipe.label if self.recipe else self.system)

    @property
    def losses(self) -> list[float]:
        """The validation loss of each epoch of its last training; none where it is not known."""
        return self.stage["losses"] if self.stage else []

    @property
    def open_words(self) -> str:
        """What is open, in words: "54 of 72 heads"; with the neurons and layers where some are closed or
        gone."""
        parts = [f"{self.heads_open} of {self.heads_total} heads"]
        if self.neurons_open is not None:
            parts.append(f"{self.neurons_open:,} of {self.neurons_total:,} feed-forward neurons")
        left = (self.layers_left or {}).items()
        parts += [f"{sum(row)} of {len(row)} {stack} layers" for stack, row in left if not all(row)]
        *most, last = parts
        return f"{', '.join(most)} and {last}" if most else last

    @property
    def search(self) -> str:
        """How its outputs were searched for, in words; empty for a task without a search."""
        return search_words(self.evaluation)

    @property
    def unlearned(self) -> str:
        """Why nothing can be said of the heads of this model, in one sentence; empty where it has learned its
        task, or it was not asked."""
        if self.above_trivial is None or self.above_trivial[0] > 0:
            return ""
        return unlearned(self.system, self.main.value, self.above_trivial)

    @property
    def is_endless(self) -> bool:
        """Whether it forgot how to end, so that it is no result."""
        return (self.endless or 0.0) >= ENDLESS

    @property
    def missed(self) -> str:
        """What it lacks of what was asked for, in words: the speed, or an end of its outputs; empty where it
        lacks neither."""
        found = []
        if self.speed and self.recipe and isinstance(self.recipe.budget, Speed):
            asked, reached = self.recipe.budget.factor, self.speed["measured"]["median"]
            found += [f"{reached:.2f} of {asked:g} times the speed"] * (reached < REACHED * asked)
        if self.is_endless:
            found.append(f"{self.endless:.0%} of its outputs run to the length limit")
        return ", ".join(found)

    @property
    def is_base(self) -> bool:
        return self.system in UNPRUNED_LABELS

    def to_json(self) -> dict[str, Any]:
        row = {name: value for name in PLAIN_FIELDS if (value := getattr(self, name)) is not None}
        if self.recipe is not None:
            row["recipe"] = self.recipe.to_json()
        for metric, measure in self.measures.items():
            row |= measure.columns(metric)
        if self.main.p_value is not None:
            row["p_value_vs_reference"] = self.main.p_value
        return row | self.others

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> "ResultRow":
        """Raises ValueError where a row lacks what every row has, or a field is of another type."""
        rest = {name: value for name, value in row.items() if name != "p_value_vs_reference"}
        recipe = rest.pop("recipe", None)
        try:
            measures = {metric: read_measure(metric, rest) for metric in metric_names(row)}
            known = {name: rest.pop(name) for name in PLAIN_FIELDS if name in rest}
            if not measures:
                raise ValueError("no metric with its signature")
            found: ResultRow = parsed({**known, "measures": {}}, cls)
            if found.stage and not 0 <= (best := found.stage["best_epoch"]) < len(found.losses):
                raise ValueError(f"stage.best_epoch is {best}, of {len(found.losses)} losses")
            made_by = None if recipe is None else Recipe.from_json(recipe)
            return replace(found, measures=measures, recipe=made_by, others=rest)
        except ValueError as error:
            raise ValueError(
                f"a row of result.json is not what `fit` writes ({error}); repeat the run with --fresh"
            ) from error


def search_words(settings: Mapping[str, Any]) -> str:
    """The search of settings of prediction, in words; empty where there is none."""
    beam = settings.get("search", {}).get("beam")
    return "" if beam is None else "greedy search" if beam == 1 else f"beam {beam}"


def unlearned(system: str, value: float, above: Sequence[float]) -> str:
    """What is said of a model that is not above outputs that ignore the source."""
    return (
        f"{system} has not learned its task: its {value:.2f} is not above outputs that ignore the source "
        f"(95%: {above[0]:+.2f} to {above[1]:+.2f}), so nothing is said of its heads; train it for longer"
    )


def read_measure(metric: str, rest: dict[str, Any]) -> Measure:
    """Take a metric's columns out of `rest`. Raises ValueError at one of another type."""
    columns = {"value": rest.pop(metric, None)} | {
        name: rest.pop(f"{metric}_{name}") for name in MEASURED if f"{metric}_{name}" in rest
    }
    measure: Measure = parsed(columns, Measure, metric)
    return measure


def metric_names(row: Mapping[str, Any]) -> list[str]:
    """The metrics that a row of result.json has, in its order: those with a signature, or an interval."""
    ends = [(name, end) for name in row for end in ("_signature", "_ci95") if name.endswith(end)]
    names = {name.removesuffix(end) for name, end in ends if not name.endswith(f"_difference{end}")}
    return sorted(names, key=lambda name: list(row).index(name) if name in row else len(row))


MEASURED = [each.name for each in fields(Measure)[1:]]
PLAIN_FIELDS = [each.name for each in fields(ResultRow) if each.name not in ("measures", "recipe", "others")]
