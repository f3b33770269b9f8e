"""What the stages of one configuration work on: the corpus, its batches, the test lines, and fresh copies of a base."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.importance import importance
from configs.schema import FitConfig, StageConfig
from data import Corpus, load_corpus
from data.batch import Batch
from data.corpus import TranslationData
from gates import HeadMap
from models.checkpoint import load_model
from models.progress import say
from models.translator import Translator, load_vocabs
from runfolder.folder import RunFolder
from runfolder.source import best_device

IMPORTANCE_TOKENS = 4000  # of one batch of the importance pass; the scores do not depend on it


class Material:
    """prefix: `<data>-<src>-<tgt>`, how the names of its runs begin; test: the source and reference lines that are translated."""

    def __init__(self, config: FitConfig):
        self.config = config
        self.corpus: Corpus = load_corpus(
            config.data,
            data_dir=config.data_dir,
            src=config.src,
            tgt=config.tgt,
            train_files=config.train_files,
            valid_files=config.valid_files,
            test_files=config.test_files,
        )
        self.prefix = f"{'files' if config.train_files else Path(config.data).name}-{config.src}-{config.tgt}"
        self.test = (self.corpus.test.sources, self.corpus.test.targets)
        if config.test_sentences:
            self.test = (self.test[0][: config.test_sentences], self.test[1][: config.test_sentences])
        self._data: TranslationData | None = None

    def data(self, folder: RunFolder) -> TranslationData:
        """Batches in the vocabulary of a run, which all runs on one base share; what training leaves out is said once."""
        if self._data is None:
            self._data = TranslationData(**self._arguments(folder))
            skipped = {name: part["skipped"] for name, part in self._data.report.items() if part.get("skipped")}
            if skipped:
                say("skipped: " + "; ".join(f"{name}: {n} {why}" for name, why_n in skipped.items() for why, n in why_n.items()))
        return self._data

    def first(self, count: int, folder: RunFolder) -> TranslationData:
        """The data with its first `count` training pairs alone, 0 for all."""
        if not count:
            return self.data(folder)
        return TranslationData(**(self._arguments(folder) | {"train_sentences": count}))

    def importance_batches(self, count: int, folder: RunFolder) -> Iterator[Batch]:
        """The first `count` training pairs, 0 for all, for gradients of heads."""
        return self.first(count, folder).batches("train", IMPORTANCE_TOKENS)

    def sample(self, stage: StageConfig) -> tuple[list[str], list[str]]:
        """The validation lines that are translated after an epoch."""
        n = stage.bleu_sentences
        return self.corpus.valid.sources[:n], self.corpus.valid.targets[:n]

    def load(self, base: RunFolder) -> Translator:
        """A fresh copy of a base's best model."""
        return Translator(load_model(base / "best.pt").to(best_device()), *load_vocabs(base.path), self.config.search)

    def gradient_scores(self, base: RunFolder) -> HeadMap:
        """Michel's importance of the base's heads, per sentence, over the training pairs; kept with the base."""
        count = self.config.greedy_sentences
        name = f"scores/gradient-{self.corpus.digest()}{f'-{count}' if count else ''}.json"  # another text, other scores
        if (base / name).is_file():
            return HeadMap.load(base / name)
        say(f"importance: one forward and backward pass over {len(self.first(count, base).train_pairs):,} training pairs")
        scores = importance(self.load(base).model, self.importance_batches(count, base))
        base.write_json(name, scores.to_json())
        return scores

    def about(self, folder: RunFolder) -> dict[str, Any]:
        """What result.json says of the data."""
        about = {"corpus": self.corpus.name, "description": self.corpus.description, "text_digest": self.corpus.digest()}
        return about | self.data(folder).report

    def _arguments(self, folder: RunFolder) -> dict[str, Any]:
        source_vocab, target_vocab = load_vocabs(folder.path)
        text = self.config.text
        return {
            "corpus": self.corpus,
            "source_vocab": source_vocab,
            "target_vocab": target_vocab,
            "max_tokens": text.max_tokens,
            "max_length": text.max_length,
            "seed": self.config.seed,
            "train_sentences": text.train_sentences,
        }
