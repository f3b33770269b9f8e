"""The model that prune.py closes heads of, a run's model without gates, and the lines on which its outputs
are scored.

For a run with gates this is the model of its base, and results are written to the folder of the base.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headgates.configs.prune import PruneConfig
from headgates.data.batch import Batch
from headgates.data.parallel import digest_lines
from headgates.data.vocab import Vocabulary
from headgates.models.translator import Translator
from headgates.workbench.folder import RunFolder
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.related import open_gate_run, siblings
from headgates.workbench.source import Lines, Source, open_source
from headgates.workbench.table import with_ends

MOST_UNKNOWN = 0.1  # share of unknown pieces above which a text is taken to be in another language or script


@dataclass
class DenseModel:
    """A trained model without gates, in evaluation mode, with the command's search settings, its text and its
    folder."""

    source: Source
    valid: Lines
    test: Lines
    facts: dict[str, Any]  # provenance
    test_sentences: int = 0

    @property
    def folder(self) -> RunFolder:
        return self.source.folder

    @property
    def translator(self) -> Translator:
        return self.source.translator

    @classmethod
    def open(cls, config: PruneConfig) -> "DenseModel":
        """Open the model of `SOURCE`. Raises ValueError if there is no such run, its base is missing or was
        replaced, the run is not finished, or its text has changed since."""
        if config.threads:
            torch.set_num_threads(config.threads)
        source = open_source(config.source, dense=True, options=config, finished=True)
        if isinstance(source.predictor, Translator):
            source.predictor.search = replace(source.predictor.search, beam=config.beam)
        valid = source.lines("valid", config.valid_sentences or config.test_sentences)
        test = source.lines("test", config.test_sentences)
        return cls(source, valid, test, provenance(device_name(), "32", config.seed), config.test_sentences)

    def train_batches(self, sentences: int = 0) -> Iterator[Batch]:
        return self.source.train_batches(sentences)

    def other(self, corpus: str) -> tuple[str, Lines]:
        """The name and the test lines of another corpus, between the run's languages. Raises ValueError if
        there is none, or the run's vocabularies do not know its script."""
        settings = self.source.config | {"data_dir": self.source.data_dir}
        name, text = self.source.task.other_text(settings, corpus, self.source.corpus)
        return name, self.encodable(name, text.sources, text.targets)

    def learned(self) -> list[dict[str, Any]]:
        """Points of the gated runs on this base whose test set and search are those of this command: label,
        heads_open, heads_total, and the deciding metric with its interval."""
        evaluation = self.source.task.prediction_settings(self.source.predictor) | {
            "test_digest": digest_lines(*self.test)
        }
        points = []
        for run in siblings(self.folder, report=lambda text: warnings.warn(text, stacklevel=4)):
            gated = open_gate_run(run)
            row, low_high = gated.row, gated.row.main.ci95 or (gated.row.main.value, gated.row.main.value)
            if evaluation.items() <= row.evaluation.items():
                point = {
                    "label": f"{row.system}, {gated.label}",
                    "heads_open": row.heads_open,
                    "heads_total": row.heads_total,
                    row.metric: row.main.value,
                }
                points.append(point | with_ends(row.metric, low_high))
        return points

    def encodable(self, name: str, sources: Sequence[str], references: Sequence[str]) -> Lines:
        """The first --test-sentences lines. Raises ValueError if the vocabularies cannot encode them."""
        count = self.test_sentences or None
        lines = list(sources[:count]), list(references[:count])
        predictor = (
            self.source.predictor if hasattr(self.source.predictor, "source_vocab") else self.translator
        )
        for side, vocab, text in zip(
            ("source", "reference"), (predictor.source_vocab, predictor.target_vocab), lines, strict=True
        ):
            share = unknown_share(vocab, text)
            if share > MOST_UNKNOWN:
                config = self.source.config
                raise ValueError(
                    f"the vocabulary of {self.folder.path} cannot encode {name}: {share:.0%} of its {side} "
                    f"pieces are unknown "
                    f"(at most {MOST_UNKNOWN:.0%} are taken); give a test set from {config.get('src')} to "
                    f"{config.get('tgt')}"
                )
        return lines


def unknown_share(vocab: Vocabulary, lines: Sequence[str]) -> float:
    """The share of unknown pieces among all pieces of the lines, 0 to 1."""
    pieces = vocab.encode(lines)
    return sum(ids.count(vocab.specials.unknown) for ids in pieces) / max(1, sum(map(len, pieces)))
