"""What is pruned: the dense model of a run, and the text that its curves are measured on.

A run with gates stands for its base: greedy orders close heads of the model before any gate touched it. Results go to the base's folder.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from configs.prune import PruneConfig
from data import Corpus, load_corpus
from data.batch import Batch
from data.corpus import TranslationData
from data.parallel import digest_lines, read_pairs
from data.vocab import Vocabulary
from models.translator import Translator
from runfolder.folder import RunFolder, dense_run, find_runs
from runfolder.provenance import device_name, provenance
from runfolder.source import open_source, run_corpus

BATCH_TOKENS = 4000  # of one batch of the importance pass; sentence and token scores do not depend on it
MOST_UNKNOWN = 0.1  # share of unknown pieces above which a text is in another language or script than the vocabulary

Lines = tuple[list[str], list[str]]  # sources and references


@dataclass
class Subject:
    """A trained model without gates, in evaluation mode, with the command's search settings; its text; where results go."""

    folder: RunFolder
    translator: Translator
    corpus: Corpus
    valid: Lines
    test: Lines
    facts: dict[str, Any]  # provenance: what made the numbers
    settings: dict[str, Any]  # of the run: its config.yaml
    test_sentences: int = 0
    data_dir: str | None = None

    @classmethod
    def open(cls, config: PruneConfig) -> "Subject":
        """The subject of `SOURCE`. Raises ValueError if there is no such run, its base is gone or was made anew, the run is not finished,
        or its text has changed since."""
        if config.threads:
            torch.set_num_threads(config.threads)
        folder = dense_run(RunFolder.open(config.source))
        result = folder.result()
        if result is None or not folder.finished():
            raise ValueError(f"{folder.path} is not finished; the command in its command.txt with --resume continues it")
        settings = folder.config()
        data_dir = config.data_dir if config.data_dir is not None else settings.get("data_dir")
        corpus = run_corpus(folder, data_dir)
        translator = open_source(folder.path, result.get("system", "base")).translator
        translator.search = replace(translator.search, beam=config.beam)
        translator.model.eval()
        valid = first(corpus.valid.sources, corpus.valid.targets, config.valid_sentences)
        test = first(corpus.test.sources, corpus.test.targets, config.test_sentences)
        facts = provenance(device_name(), "32", config.seed)
        return cls(folder, translator, corpus, valid, test, facts, settings, config.test_sentences, data_dir)

    def train_batches(self, sentences: int = 0) -> Iterator[Batch]:
        """Every training pair of the run once, longest first; of the first so many `sentences` alone unless 0."""
        text = self.settings["text"]
        data = TranslationData(
            corpus=self.corpus,
            source_vocab=self.translator.source_vocab,
            target_vocab=self.translator.target_vocab,
            max_tokens=text["max_tokens"],
            max_length=text["max_length"],
            seed=self.settings["seed"],
            train_sentences=sentences or text["train_sentences"],
        )
        return data.batches("train", BATCH_TOKENS)

    def other(self, corpus: str) -> tuple[str, Lines]:
        """The name and the test lines of another corpus, between the run's languages. Raises ValueError if there is none, or the run's
        vocabularies do not know its script."""
        found = load_corpus(corpus, data_dir=self.data_dir, src=self.settings.get("src"), tgt=self.settings.get("tgt"))
        return found.name, self.encodable(found.name, found.test.sources, found.test.targets)

    def other_files(self, source: str, reference: str) -> tuple[str, Lines]:
        """The same for two aligned files; the name is made of the source file's folder and name."""
        text = read_pairs(source, reference, skip_empty=False)
        path = Path(source)
        name = f"{path.resolve().parent.name}-{path.name.removesuffix('.gz').removesuffix('.' + str(self.settings.get('src')))}"
        return name, self.encodable(name, text.sources, text.targets)

    def learned(self) -> list[dict[str, Any]]:
        """The gated runs on this base beside it, where their test set and search are those of this command: label, heads_open, heads_total,
        bleu and its interval."""
        points = []
        evaluation = {"search": asdict(self.translator.search), "test_digest": digest_lines(*self.test)}
        for run in find_runs(self.folder.path.parent):
            try:
                config, result = run.config(), run.result()
            except ValueError as error:
                warnings.warn(str(error), stacklevel=2)  # another run that is broken must not stop this one
                continue
            if result is None or config.get("base_hash") != self.settings.get("run_hash"):
                continue
            for row in result["rows"]:
                if row["system"] == "l0" and evaluation.items() <= row["evaluation"].items():
                    low, high = row["bleu_ci95"]
                    point = {name: row[name] for name in ("heads_open", "heads_total", "bleu")} | {"bleu_low": low, "bleu_high": high}
                    points.append({"label": f"l0, lambda {config['lambda']:g}", **point})
        return points

    def encodable(self, name: str, sources: Sequence[str], references: Sequence[str]) -> Lines:
        """The lines, as many as --test-sentences; raises ValueError where the vocabularies cannot encode them."""
        lines = first(sources, references, self.test_sentences)
        for side, vocab, text in zip(
            ("source", "reference"), (self.translator.source_vocab, self.translator.target_vocab), lines, strict=True
        ):
            share = unknown_share(vocab, text)
            if share > MOST_UNKNOWN:
                raise ValueError(
                    f"the vocabulary of {self.folder.path} cannot encode {name}: {share:.0%} of its {side} pieces are unknown "
                    f"(at most {MOST_UNKNOWN:.0%} are taken); give a test set from {self.settings.get('src')} to {self.settings.get('tgt')}"
                )
        return lines


def first(sources: Sequence[str], references: Sequence[str], count: int) -> Lines:
    """The first `count` pairs, all for 0."""
    return list(sources[: count or None]), list(references[: count or None])


def unknown_share(vocab: Vocabulary, lines: Sequence[str]) -> float:
    """Unknown pieces among all pieces of the lines, 0 to 1."""
    pieces = vocab.encode(lines)
    return sum(ids.count(vocab.specials.unknown) for ids in pieces) / max(1, sum(map(len, pieces)))
