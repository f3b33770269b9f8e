"""What the stages of one configuration work on: the text, its batches, the test lines, and fresh copies of a
base."""

from copy import copy
from typing import Any

import torch

from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings
from headgates.configs.stages import StageConfig
from headgates.data import Corpus
from headgates.data.corpus import TranslationData
from headgates.data.doubts import doubts
from headgates.data.ranks import after_first, first
from headgates.data.special_tokens import MOST_UNKNOWN
from headgates.data.text import DataError
from headgates.models.description import most_tokens
from headgates.models.progress import say
from headgates.records.folder import RunFolder
from headgates.records.source import Lines, Source, best_device
from headgates.tasks import task_named
from headgates.tasks.base import Predictor
from headgates.tasks.own_metric import check_metrics


class ExperimentText:
    """prefix: how the names of its runs begin, `<data>-<src>-<tgt>` for translation; test: the source and
    reference lines that are evaluated."""

    def __init__(self, config: Settings, corpus: Corpus | None = None):
        """corpus: the text, where it has been read already."""
        self.config, self.settings = config, to_dict(config)
        self.task = task_named(config.task, config.tgt, config.metrics)
        # it may be downloaded
        self.corpus = corpus or after_first(lambda: self.task.load_text(self.settings))
        self.prefix, _ = self.task.run_words(self.settings)
        test = self.corpus.split("test").first(config.test_sentences)  # raises where there is none
        self.test: Lines = (list(test.sources), list(test.targets))
        first(lambda: check_metrics(self.task.further, *self.test))  # before anything is trained
        for doubt in doubts(self.corpus):
            say(doubt)
        self._data: TranslationData | None = None
        self.distilled: dict[str, TranslationData] = {}  # with translations of a base (distilled_text.py)

    def with_settings(self, config: Settings) -> "ExperimentText":
        """The same text for a configuration that reads the same, such as another method's on the same
        base."""
        other = copy(self)
        other.config, other.settings = config, to_dict(config)
        return other

    def data(self, folder: RunFolder) -> TranslationData:
        """Batches in the vocabulary of a run, which all runs on one base share; what training leaves out is
        said once."""
        if self._data is None:
            self._data = self.task.data(folder.path, self.corpus, self.settings)
            skipped = [
                f"{name}: {count} {why}"
                for name, counts in self._data.report.items()
                for why, count in (counts.get("skipped") or {}).items()
            ]
            if skipped:
                say("skipped: " + "; ".join(skipped))
            self.check_test(self._data)
            counts = self._data.report["valid"]
            share = counts["unknown_pieces"] / max(1, counts["source_pieces"] + counts["target_pieces"])
            if share > MOST_UNKNOWN:
                say(
                    f"{self.corpus.name}: {share:.0%} of its validation pieces are unknown to the vocabulary "
                    f"of {folder.path}; is it text in another language or script?"
                )
        return self._data

    def check_test(self, data: TranslationData) -> None:
        """Raises DataError at a test line that the model has no positions for, before anything is trained."""
        most = most_tokens(self.config.model) if self.task.searches else None
        lengths = [len(ids) for ids in data.source_vocab.encode(self.test[0])] if most else []
        if most and max(lengths) >= most:
            raise DataError(
                f"test line {lengths.index(max(lengths)) + 1} has {max(lengths) + 1} tokens, and the model's "
                f"positions, which are learned, end at {most}: split it, or train with a larger "
                "model.max_positions"
            )

    def sample(self, stage: StageConfig) -> Lines:
        """The validation lines whose outputs are looked at after an epoch; none that is too long for it."""
        valid, count = self.corpus.valid, stage.bleu_sentences
        if not count:
            return [], []
        if self._data is not None:
            numbers = self._data.split("valid").numbers
            valid = valid.only((numbers if valid.columns else numbers[:count]).tolist())
        valid = valid.first(count)
        return list(valid.sources), list(valid.targets)

    def load(self, base: RunFolder) -> Predictor:
        """A fresh copy of a base's best model, with the settings of this configuration, in fp32, which
        training needs. Raises ValueError where its heads are closed and still in it."""
        if base.systems()[base.own_system()].get("xi") is not None:
            raise ValueError(
                f"{base.path}: its closed heads stay in the model, whose outputs are sampled anew; that is "
                "measured, and leaves no model to go on with: give its base"
            )
        predictor = self.task.load_predictor(base.path, base.weights_of(base.own_system()), self.settings)
        predictor.model.to(best_device(), torch.float32)
        return predictor

    def source(self, base: RunFolder, predictor: Predictor | None = None) -> Source:
        """A fresh copy of a base's best model, or the one that is given, on the text of this
        configuration."""
        source = Source(
            base,
            base.own_system(),
            self.task,
            predictor or self.load(base),
            self.settings,
            self.config.data_dir,
        )
        source.corpus = self.corpus  # read already
        return source

    def about(self, folder: RunFolder) -> dict[str, Any]:
        """What result.json says of the data."""
        about = {
            "corpus": self.corpus.name,
            "description": self.corpus.description,
            "text_digest": self.corpus.digest(),
        }
        return about | self.data(folder).report
