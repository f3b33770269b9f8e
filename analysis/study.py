"""What is analysed: one model, the runs that pruned it, and the text that is read to it.

Without `--system` the model is the base of the runs, the model before any gate touched it: roles are the base's, and the runs say which
heads they left open. Results lie in the analysed run's folder, `analysis/<system>/`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from configs.analyze import AnalyzeConfig
from data import Corpus
from data.batch import Batch
from data.conllu import read_conllu
from data.corpus import TranslationData
from data.parallel import DataError, ParallelText, digest_lines, read_lines
from gates import KINDS, find_sites
from models.progress import Report
from models.translator import Translator
from runfolder.folder import RunFolder, dense_run
from runfolder.provenance import device_name, provenance
from runfolder.related import GateRun, open_gate_run, siblings
from runfolder.source import Source, find_run, open_source

TEXT = "text"  # the split that --text makes
BATCH_TOKENS = 4000  # of one batch of the pass; no result depends on it


@dataclass(frozen=True)
class Study:
    """A model in evaluation mode and its text. folder: the run whose model it is; base: the run without gates, often the same."""

    config: AnalyzeConfig
    source: Source
    base: RunFolder
    gate_runs: list[GateRun]  # most open heads first
    corpus: Corpus  # its valid or test text cut to --sentences
    data: TranslationData
    facts: dict[str, Any]  # provenance

    @property
    def folder(self) -> RunFolder:
        return self.source.folder

    @property
    def system(self) -> str:
        return self.source.system

    @property
    def translator(self) -> Translator:
        return self.source.translator

    @cached_property
    def weights(self) -> str:
        """The digest of the model; taken once, as every analysis asks for it."""
        return self.source.weights

    @property
    def text_digest(self) -> str:
        """Of the run's whole text."""
        return self.source.corpus.digest()

    @classmethod
    def open(cls, config: AnalyzeConfig, report: Report, *, corpus: Corpus | None = None) -> "Study":
        """The study that the command asks for. corpus: the run's, where it is read already. Raises ValueError if a run is missing or not
        finished, if the runs have not one base, if the system is not there, or the text has changed since."""
        if config.threads:
            torch.set_num_threads(config.threads)
        folders = list({Path(path).resolve(): find_run(path) for path in config.runs}.values())  # runs/a is runs/a/
        base = one_base(folders)
        for folder in [base, *folders]:
            folder.check_finished()
        gated = [folder for folder in folders if folder.config().get("gate", "none") != "none"]
        if config.siblings:
            gated += siblings(base, besides=gated, report=report)
        if config.system in (None, "base"):
            source = open_source(base.path, data_dir=config.data_dir)
        else:
            source = open_source(folders[0].path, config.system, data_dir=config.data_dir)
        if not find_sites(source.model):
            raise ValueError(f"{source.folder.path}: {source.system} has no attention heads to look at")
        if corpus is not None:
            source.corpus = corpus
        corpus = cut(source.corpus, config.split, config.sentences)
        if config.text is not None:
            corpus = replace(corpus, extra={TEXT: source_text(config.text, config.sentences)})
            config = replace(config, kinds=["enc-self"])
        runs = sorted(map(open_gate_run, gated), key=lambda run: (-run.row.heads_open, run.name))
        facts = provenance(device_name(), "32", source.config["seed"])
        return cls(config, source, base, runs, corpus, source.data(corpus), facts)

    @property
    def place(self) -> str:
        """The folder of results inside the run folder."""
        text = "" if self.config.text is None else f"-{Path(self.config.text).name.split('.')[0]}"
        return f"analysis/{self.config.out or self.system + text}"

    @property
    def is_base(self) -> bool:
        return self.folder.path == self.base.path

    @property
    def is_whole(self) -> bool:
        """The base, on its own text, all kinds: what the page of a run shows."""
        config = self.config
        return self.is_base and config.text is None and config.out is None and set(config.kinds) == set(KINDS)

    @property
    def toy(self) -> bool:
        """Trees and alignments of the text are known."""
        return self.corpus.name == "toy" and self.config.text is None

    @property
    def split(self) -> str:
        """valid, test, or the source sentences of --text."""
        return self.config.split if self.config.text is None else TEXT

    @property
    def text(self) -> ParallelText:
        """All pairs that are read; a pair's number is its place."""
        return self.corpus.split(self.split)

    def batches(self) -> Iterator[Batch]:
        return self.data.batches(self.split, BATCH_TOKENS)

    def made_of(self) -> dict[str, Any]:
        """All that every analysis depends on."""
        text = digest_lines(self.text.sources, self.text.targets)
        return {"system": self.system, "weights": self.weights, "split": self.split, "sentences": len(self.text), "text": text}


def one_base(folders: list[RunFolder]) -> RunFolder:
    """The base of all. Raises ValueError where they differ."""
    bases = {folder.path: dense_run(folder) for folder in folders}
    first, *others = bases
    for other in others:
        if bases[other].path.resolve() != bases[first].path.resolve():
            raise ValueError(
                f"the runs have not one base: that of {first} is {bases[first].path}, that of {other} is {bases[other].path}; heads are "
                "compared over runs on one base, so give those of one"
            )
    return bases[first]


def cut(corpus: Corpus, split: str, sentences: int) -> Corpus:
    """The corpus with the first so many pairs of a split, all for 0."""
    if not sentences:
        return corpus
    text = corpus.split(split)
    first: Any = {split: ParallelText(text.sources[:sentences], text.targets[:sentences], text.skipped)}
    return replace(corpus, **first)


def source_text(path: str, sentences: int) -> ParallelText:
    """Source sentences without translations, the first so many, all for 0. Empty lines are left out and counted. Raises DataError at a
    file without a sentence."""
    trees = path.endswith((".conllu", ".conllu.gz"))
    lines = [tree.text for tree in read_conllu(path)] if trees else read_lines(path)
    kept = [line for line in lines if line][: sentences or None]
    if not kept:
        raise DataError(f"{path} has no sentence to look at")
    return ParallelText(kept, [""] * len(kept), {"empty": lines.count("")})
