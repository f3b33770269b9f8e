"""The comparison: every system makes its outputs of the same test set; differences are given against the
base trained as long, or the base where nothing trains.

A row holds the task's metrics with signatures, intervals and p-values by paired bootstrap, heads, parameters
and speed.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from headgates.analysis.metrics import Metric
from headgates.analysis.significance import (
    RESAMPLES,
    Scored,
    above_trivial,
    compare,
    resample_counts,
    score,
)
from headgates.configs.cli import config_hash
from headgates.data.ranks import first
from headgates.data.text import digest_lines
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite, Subnet, heads_left
from headgates.gates.depth import StackLayers, layers_left
from headgates.models.progress import say
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name
from headgates.records.row import BASE, MEASURED, EvaluationRecord, Measure, ResultRow, StageRecord
from headgates.records.source import Lines, Source
from headgates.tasks.base import Predictor, Task


def measures_of(scored: Scored, reference: Scored | None = None, counts: Any = None) -> dict[str, Measure]:
    """Each metric of a system with its signature and, beside a reference on the same lines, with intervals,
    difference and p by the paired bootstrap of `counts` (`resample_counts`)."""
    found = {} if reference is None else compare(scored, reference, counts)
    return {
        name: Measure(scored[name], signature, **{each: found.get(f"{name}_{each}") for each in MEASURED[1:]})
        for name, signature in scored.signatures.items()
    }


def open_head_fields(model: nn.Module, open_heads: HeadMap | None) -> dict[str, Any]:
    """The fields of a row that say which heads are open: of the sites of `open_heads` those, elsewhere all
    that were not removed. Heads are numbered as before any removal. Those of neurons, where the model lost
    some or `open_heads` has some; of layers, where some are gone or skipped."""
    given = {} if open_heads is None else {site.name: row.bool() for site, row in open_heads.items()}
    present, open_now = heads_left(model, ALL_KINDS), dict[HeadSite, torch.Tensor]()
    for site, left in present.items():
        is_open, row = left.clone(), given.get(site.name, left)
        is_open[left] = row[left] if len(row) == len(left) else row
        open_now[site] = is_open
    heads, neurons = (HeadMap({s: r for s, r in open_now.items() if s.kind in g}) for g in (KINDS, FFN_KINDS))
    layers = layers_left(model, skipped=False)
    fields: dict[str, Any] = {
        "heads_open": heads.count(),
        "heads_total": heads.heads_total,
        "heads_by_kind": {kind: int(number) for kind, number in heads.by_kind().items()},
        "heads_by_site": {site.name: row.nonzero().flatten().tolist() for site, row in heads.items()},
    }
    if not all(map(all, layers.values())):
        fields["layers_left"] = layers
    if neurons.count() == neurons.heads_total and not any(site.name in given for site in neurons):
        return fields
    return fields | {
        "neurons_open": neurons.count(),
        "neurons_total": neurons.heads_total,
    }


def size_without(model: nn.Module, closed: HeadMap | None, layers: StackLayers | None = None) -> int:
    """The parameters of a model, without those of its gates, of the `closed` heads and of some layers."""
    if closed is not None:
        return Subnet.of(model).without(closed, layers).parameters(model)
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith("head_gates."))


def scored_on(source: Source, test: Lines, metrics: Sequence[Metric]) -> Scored:
    """A run's system on another test set."""
    return score(outputs_on(source, test), test[1], metrics, test[0])


def outputs_on(source: Source, test: Lines) -> list[str]:
    """What a run's system makes of another test set, which its folder keeps."""
    key = evaluation_key(source.task.prediction_settings(source.predictor), test)
    kept, name = RunFolder(source.folder / f"evaluations/{config_hash(key)}"), source.system
    if not (kept / f"hypotheses/{name}.txt").is_file():
        kept.write_outputs(name, source.task.outputs(source.predictor, test[0]))
    return kept.outputs(name)


def evaluation_key(settings: dict[str, Any], test: Lines) -> EvaluationRecord:
    """All that outputs of the test set depend on beside the model. settings: of the prediction."""
    found: Any = {**settings, "sentences": len(test[0]), "test_digest": digest_lines(*test)}
    return cast(EvaluationRecord, found)


def kept_evaluation(run: RunFolder, key: EvaluationRecord) -> RunFolder:
    """Where a run keeps its outputs of other test lines, or by another search, than its result is of."""
    return RunFolder(run / f"evaluations/{config_hash(key)}")


def evaluated(run: RunFolder, key: EvaluationRecord, system: str) -> tuple[RunFolder, ResultRow] | None:
    """The row of a run's own model, called `system`, on the test lines and with the search of a key, and the
    folder of its outputs; None where there is none yet."""
    for folder in (kept_evaluation(run, key), run):
        for row in first(folder.rows):
            if row.system == system and row.evaluation == key:
                return folder, row
    return None


def measure_again(run: RunFolder, task: Task, test: Lines) -> None:
    """Add the metrics that the user asks for to the finished result of a run, by the outputs that it keeps.
    It stays as it is where these are of other test lines, or the folder is another user's."""
    rows, result, digest = run.rows(), run.result(), digest_lines(*test)
    if not task.further or any(row.evaluation.get("test_digest") != digest for row in rows):
        return
    scored = {row.system: score(run.outputs(row.system), test[1], task.further, test[0]) for row in rows}
    reference, counts = scored.get(result.get("reference") or ""), resample_counts(len(test[0]), RESAMPLES)
    found = {name: measures_of(each, reference, counts) for name, each in scored.items()}
    if any(row.measures.get(name) != own for row in rows for name, own in found[row.system].items()):
        again = [replace(row, measures=row.measures | found[row.system]).to_json() for row in rows]
        with suppress(OSError):
            run.write_json("result.json", {**result, "rows": again})


def measured_here() -> dict[str, Any]:
    """What a row's seconds depend on beside the model."""
    return {"device": device_name(), "threads": torch.get_num_threads()}


def stage_of(run: RunFolder) -> StageRecord | None:
    """How the run's own model was trained; None where others trained it."""
    own = first(run.own_system)
    return next((row.stage for row in first(run.rows) if row.system == own), None)


class Evaluation:
    """The rows of one run's comparison, one for each system. test: source and reference lines; settings: what
    the outputs depend on besides the model."""

    def __init__(self, folder: RunFolder, task: Task, test: Lines, settings: dict[str, Any]):
        self.folder, self.task, self.test = folder, task, test
        self.fingerprint = evaluation_key(settings, test)
        self.rows: list[ResultRow] = []
        self.scored: dict[str, Scored] = {}
        self.counts = resample_counts(len(test[0]), RESAMPLES)
        self.reference: str | None = None

    def add(
        self,
        system: str,
        weights: Path,
        predictor: Predictor,
        open_heads: HeadMap | None,
        *,
        xi: HeadMap | None = None,
        **facts: Any,
    ) -> ResultRow:
        """Make the outputs of a system, add them as `add_scored`, and return the row.

        weights, xi: the checkpoint of the system and the values of its gates, None without gates. open_heads:
        those of the gated sites, numbered as before any removal; at other sites every head that was not
        removed is open. facts: further
        fields of the row."""
        begin = time.perf_counter()
        outputs = self.task.outputs(predictor, self.test[0])
        seconds = time.perf_counter() - begin
        heads = open_head_fields(predictor.model, open_heads)
        gated = hasattr(predictor.model, "head_gates")
        present = heads_left(predictor.model, ALL_KINDS if "neurons_open" in heads else None).count()
        closed = heads["heads_open"] + heads.get("neurons_open", 0) < present
        masked = closed and (gated or open_heads is not None)
        row = ResultRow(
            system=system,
            measures={},
            **heads,
            parameters=size_without(predictor.model, ~open_heads if masked and open_heads else None),
            seconds=None if masked else seconds,
            evaluation=self.fingerprint,
            **facts,
        )
        self.add_scored(row, outputs, weights, xi)
        metric = self.task.metrics[0]
        say(f"{row.label}: {row.open_words}, {metric.title} {row.main.value:.2f}")
        return row

    def add_scored(self, row: ResultRow, outputs: Sequence[str], weights: Path, xi: HeadMap | None) -> None:
        """Record a system in systems.json, write its outputs, score them into its row, and add the row to the
        comparison."""
        gates = None if xi is None else xi.to_json()
        self.folder.add_system(row.system, weights, gates, tokenizer=self.task.tokenizer_files)
        self.folder.write_outputs(row.system, outputs)
        scored = score(outputs, self.test[1], self.task.metrics, self.test[0])
        self.scored[row.system] = scored
        row.measures = measures_of(scored)
        row.above_trivial = None  # a copy of a base's row may be another system's
        if row.is_base:
            row.above_trivial = above_trivial(outputs, self.test[1], self.task.metrics[0])
        self.rows.append(row)
        if self.reference is not None:
            self.against_reference(row)

    def borrow(self, system: str, run: RunFolder, folder: RunFolder, row: ResultRow) -> None:
        """Add the row of a base run, which may be a smaller model itself, under another name. folder: of its
        outputs."""
        measured, here = first(folder.result), measured_here()
        same = all(measured.get(name) == value for name, value in here.items())
        outputs = folder.outputs(row.system)
        unknown = ("reference", "p_value_vs_base", "recipe", "compute", "subnet", "speed")
        plain: dict[str, Any] = dict.fromkeys(unknown if same else (*unknown, "seconds"))
        row = replace(row, system=system, measures={}, others={}, **plain)
        self.add_scored(row, outputs, run / "best.pt", None)

    def choose_reference(self) -> None:
        """Compare every row with the base trained on for as long, or with the base where nothing trains on:
        what training alone gains, or spoils, is no merit of a smaller model. Losses do not decide, as
        learning from a teacher raises them while it raises the metrics."""
        self.reference = [row for row in self.rows if row.is_base][-1].system
        for row in self.rows:
            self.against_reference(row)

    def against_reference(self, row: ResultRow) -> None:
        assert self.reference is not None
        scored, row.reference = self.scored[row.system], self.reference
        row.measures = measures_of(scored, self.scored[self.reference], self.counts)
        if BASE in self.scored:
            row.p_value_vs_base = measures_of(scored, self.scored[BASE], self.counts)[row.metric].p_value
