"""What is analysed: one model, the runs that pruned it, and the text that is read to it.

Without `--system` the model is the base of the runs, the model before any gate touched it: roles are the base's, and the runs say which
heads they left open. Results lie in the analysed run's folder, `analysis/<system>/`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from configs.analyze import AnalyzeConfig
from data import Corpus
from data.batch import Batch
from data.conllu import read_conllu
from data.corpus import TranslationData
from data.parallel import DataError, ParallelText, digest_lines, read_lines
from gates import KINDS, HeadMap, find_sites
from models.checkpoint import weights_digest
from models.progress import Report
from models.translator import Translator
from runfolder.folder import RunFolder, dense_run, find_runs
from runfolder.provenance import device_name, provenance
from runfolder.source import open_source, run_corpus

TEXT = "text"  # the split that --text makes
BATCH_TOKENS = 4000  # of one batch of the pass; no result depends on it


@dataclass(frozen=True)
class GateRun:
    """A finished run with gates on the base: its own system's row of result.json, and which heads are open (of the sites it gates)."""

    folder: RunFolder
    config: dict[str, Any]
    row: dict[str, Any]
    open: HeadMap

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name

    @property
    def label(self) -> str:
        """As figures call it."""
        return f"λ {self.config['lambda']:g}"


@dataclass(frozen=True)
class Study:
    """A model in evaluation mode and its text. folder: the run whose model it is; base: the run without gates, often the same."""

    config: AnalyzeConfig
    folder: RunFolder
    base: RunFolder
    system: str
    gate_runs: list[GateRun]  # most open heads first
    translator: Translator
    corpus: Corpus  # its valid or test text cut to --sentences
    data: TranslationData
    weights: str  # digest of the model
    text_digest: str  # of the run's whole text
    facts: dict[str, Any]  # provenance

    @classmethod
    def open(cls, config: AnalyzeConfig, report: Report, *, corpus: Corpus | None = None) -> "Study":
        """The study that the command asks for. corpus: the run's, where it is read already. Raises ValueError if a run is missing or not
        finished, if the runs have not one base, if the system is not there, or the text has changed since."""
        if config.threads:
            torch.set_num_threads(config.threads)
        folders = list({Path(path).resolve(): RunFolder.open(path) for path in config.runs}.values())  # runs/a is runs/a/
        base = one_base(folders)
        for folder in [base, *folders]:
            check_finished(folder)
        gated = [folder for folder in folders if has_gates(folder)]
        if config.siblings:
            gated += siblings(base, known=gated, report=report)
        if config.system in (None, "base"):
            folder, system = base, (base.result() or {}).get("system", "base")
        else:
            folder, system = folders[0], config.system
        translator = open_source(folder.path, system).translator
        translator.model.eval()
        if not find_sites(translator.model):
            raise ValueError(f"{folder.path}: {system} has no attention heads to look at")
        whole = corpus or run_corpus(folder, config.data_dir)
        corpus = cut(whole, config.split, config.sentences)
        if config.text is not None:
            corpus = replace(corpus, extra={TEXT: source_text(config.text, config.sentences)})
            config = replace(config, kinds=["enc-self"])
        settings = folder.config()
        data = TranslationData(
            corpus=corpus,
            source_vocab=translator.source_vocab,
            target_vocab=translator.target_vocab,
            max_tokens=settings["text"]["max_tokens"],
            max_length=settings["text"]["max_length"],
            seed=settings["seed"],
            train_sentences=settings["text"]["train_sentences"],
        )
        runs = sorted(map(gate_run, gated), key=lambda run: (-run.row["heads_open"], run.name))
        facts = provenance(device_name(), "32", settings["seed"])
        weights, digest = weights_digest(translator.model), whole.digest()
        return cls(config, folder, base, system, runs, translator, corpus, data, weights, digest, facts)

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


def check_finished(folder: RunFolder) -> None:
    if not folder.finished():
        raise ValueError(f"{folder.path} is not finished; the command in its command.txt with --resume continues it")


def has_gates(folder: RunFolder) -> bool:
    return folder.config().get("gate", "none") != "none"


def siblings(base: RunFolder, *, known: list[RunFolder], report: Report) -> list[RunFolder]:
    """The finished runs with gates beside the base and on it; of others on it is said why they are left out."""
    found = []
    have = {folder.path.resolve() for folder in known}
    own = base.config().get("run_hash")
    for folder in find_runs(base.path.resolve().parent):
        try:
            config = folder.config()
            if folder.path in have or own is None or config.get("base_hash") != own or not has_gates(folder):
                continue
            check_finished(folder)
        except ValueError as error:
            report(f"left out: {error}")
            continue
        found.append(folder)
    return found


def gate_run(folder: RunFolder) -> GateRun:
    """Raises ValueError if it has no row or no gates of its own system."""
    result, systems = folder.result() or {}, folder.systems()
    name = result.get("system", "l0")
    rows = [row for row in result.get("rows", []) if row["system"] == name]
    xi = systems.get(name, {}).get("xi")
    if not rows or xi is None:
        lacks = "gates" if rows else "row"
        raise ValueError(f"{folder.path} is a run with gates, but has no {lacks} of {name}; repeat it with --fresh")
    return GateRun(folder, folder.config(), rows[0], HeadMap.from_json(xi).map(lambda row: row > 0))


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
