"""The model that prune.py closes heads of, a run's model without gates, and the lines on which its outputs
are scored.

For a run with gates this is the model of its base, and results are written to the folder of the base.
"""

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from headgates.configs.prune import PruneConfig
from headgates.data.parallel import digest_lines
from headgates.models.translator import Translator
from headgates.records.provenance import device_name, provenance
from headgates.records.related import open_gate_run, siblings
from headgates.records.source import Lines, Source, open_source
from headgates.records.table import with_ends


@dataclass
class UnprunedModel(Source):
    """A trained model without gates, in evaluation mode, with the command's search settings; facts:
    provenance."""

    valid: Lines
    test: Lines
    facts: dict[str, Any]
    test_sentences: int = 0

    @classmethod
    def open(cls, config: PruneConfig) -> "UnprunedModel":
        """Open the model of `SOURCE`. Raises ValueError if there is no such run, its base is missing or was
        replaced, the run is not finished, or its text has changed since."""
        if config.threads:
            torch.set_num_threads(config.threads)
        return cls.of(open_source(config.source, unpruned=True, options=config, finished=True), config)

    @classmethod
    def of(cls, source: Source, config: PruneConfig) -> "UnprunedModel":
        """An open model without gates, with the command's search settings from now on."""
        if isinstance(source.predictor, Translator):
            source.predictor.search = replace(source.predictor.search, beam=config.beam)
        unpruned = cls(
            **{each.name: getattr(source, each.name) for each in fields(Source)},
            valid=source.lines("valid", config.valid_sentences or config.test_sentences),
            test=source.lines("test", config.test_sentences),
            facts=provenance(device_name(), "32", config.seed),
            test_sentences=config.test_sentences,
        )
        unpruned.corpus = source.corpus
        return unpruned

    def learned(self) -> list[dict[str, Any]]:
        """Points of the gated runs on this base whose test set and search are those of this command: label,
        heads_open, heads_total, and the deciding metric with its interval."""
        evaluation = self.task.prediction_settings(self.predictor)
        evaluation |= {"test_digest": digest_lines(*self.test)}
        points = []
        for run in siblings(self.folder, report=lambda text: warnings.warn(text, stacklevel=4)):
            gated = open_gate_run(run)
            row, main = gated.row, gated.row.main
            if evaluation.items() <= row.evaluation.items():
                point = {
                    "label": f"{row.system}, {gated.label}",
                    "heads_open": row.heads_open,
                    "heads_total": row.heads_total,
                    row.metric: main.value,
                }
                points.append(point | with_ends(row.metric, main.ci95 or (main.value, main.value)))
        return points
