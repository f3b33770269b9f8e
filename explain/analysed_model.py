"""What `analyze.py` analyses: one model, the text that it reads, and the runs that pruned it.

Without `--system` the model is the base of the runs: roles are those of the base, and each run that was made
of it says which heads it left open. Results are written to `analysis/<system>/` (with --kinds,
`analysis/<system>-<kinds>/`) in the folder of the run whose model it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headgates.configs.analyses import MOST_EXAMPLES, Analyses
from headgates.configs.source import SourceOptions
from headgates.data import Corpus
from headgates.data.batch import Batch
from headgates.data.conllu import read_conllu
from headgates.data.corpus import TranslationData
from headgates.data.text import DataError, ParallelText, digest_lines
from headgates.data.text_file import read_lines, unpacked_name
from headgates.gates import KINDS, HeadMap, find_sites, heads_left
from headgates.gates.depth import layers_left
from headgates.gates.headmap import head_name
from headgates.models.progress import Report, reported
from headgates.records.folder import RunFolder, base_of
from headgates.records.provenance import device_name, provenance
from headgates.records.related import MadeRun, is_part, open_made_run, siblings
from headgates.records.row import BASE
from headgates.records.source import Source, find_run, open_source

TEXT = "text"  # the split that --text makes
EXAMPLES = "examples"  # the split that --examples-from makes
PASS_TOKENS = 4000  # in one batch of the pass; no result depends on it


@dataclass(frozen=True)
class AnalysedModel:
    """A model in evaluation mode and its text. `folder` is the run whose model it is, `base` that of the
    unpruned model; often they are one."""

    config: Analyses
    source: Source
    base: RunFolder
    folders: list[RunFolder]  # those that were named
    made_runs: list[MadeRun]  # those that were asked for, with the most open heads first
    shown_runs: list[MadeRun]  # on the page: of the base all that are finished
    corpus: Corpus  # its valid or test text is cut to --sentences
    data: TranslationData
    provenance: dict[str, Any]  # as in result.json
    report: Report  # is told how far a long pass is

    @property
    def folder(self) -> RunFolder:
        return self.source.folder

    @property
    def system(self) -> str:
        return self.source.system

    @property
    def predictor(self) -> Any:
        return self.source.with_vocabularies

    @cached_property
    def weights(self) -> str:
        """The digest of the model's weights, computed once."""
        return self.source.weights

    @classmethod
    def open(
        cls, sources: Sequence[str], config: Analyses, report: Report, *, corpus: Corpus | None = None
    ) -> "AnalysedModel":
        """The model and text of these runs. corpus: the runs' corpus, where the caller has read it already.

        Raises ValueError if a run is missing or unfinished, if the runs are on different bases, if there is
        no such system or it has no heads, or if the text has changed since the run."""
        if config.threads:
            torch.set_num_threads(config.threads)
        folders = list(
            {Path(path).resolve(): find_run(path, config) for path in sources}.values()
        )  # runs/a is runs/a/
        base = one_base(folders)
        for folder in [base, *folders]:
            folder.check_finished()
        made = [folder for folder in folders if is_part(folder)]
        asked = {folder.path for folder in made}
        found = siblings(base, besides=made, report=report if config.siblings else lambda text: None)
        own = config.system in (None, BASE)
        if not own and len(folders) > 1:
            raise ValueError(
                f"--system {config.system} looks at one run's model; expected one run, got {len(folders)}"
            )
        source = open_source(
            base.path if own else folders[0].path,
            None if own else config.system,
            options=SourceOptions(data_dir=config.data_dir),
        )
        if not find_sites(source.model):
            raise ValueError(f"{source.folder.path}: {source.system} has no attention heads to look at")
        if corpus is not None:
            source.corpus = corpus
        corpus = cut_corpus(source.corpus, config.split, config.sentences)
        if config.text is not None:
            text = source_text(config.text, config.sentences)
            if not source.task.searches:  # labels are no empty lines
                text = replace(text, targets=source.task.outputs(source.predictor, text.sources))
            corpus = replace(corpus, extra={TEXT: text})
            config = replace(config, kinds=["enc-self"])
        if config.examples_from is not None:
            corpus = replace(
                corpus, extra=corpus.extra | {EXAMPLES: own_examples(config.examples_from, source)}
            )
        runs = sorted(map(open_made_run, made + found), key=lambda run: (-run.row.heads_open, run.name))
        chosen = [run for run in runs if config.siblings or run.folder.path in asked]
        shown = runs if source.folder.path == base.path else chosen
        made_by = provenance(device_name(), "32", source.config["seed"])
        return cls(config, source, base, folders, chosen, shown, corpus, source.data(corpus), made_by, report)

    @property
    def results_folder(self) -> str:
        """Where results lie, relative to the run folder: those of some kinds in a folder of their own,
        so that they do not take the place of those of all."""
        named = "" if self.config.text is None else f"-{Path(unpacked_name(Path(self.config.text))).stem}"
        if self.config.text is None and set(self.config.attention) != set(KINDS):
            named = f"-{'+'.join(self.config.attention)}"
        return f"analysis/{self.config.name or self.system + named}"

    @property
    def cards_folder(self) -> str:
        """Where the cards of its page lie, which for a base are those of all kinds."""
        return f"analysis/{self.system}" if self.is_whole else self.results_folder

    @property
    def closed(self) -> HeadMap | None:
        """The heads that the system keeps and does not use; None where there are none."""
        gates = self.folder.systems()[self.system]["xi"]
        return None if gates is None else HeadMap.from_json(gates).map(lambda row: row == 0)

    @cached_property
    def before(self) -> dict[tuple[str, int], str]:
        """(site, head) -> what the head was called before heads and layers went, where that is another
        name."""
        model, names = self.predictor.model, dict[tuple[str, int], str]()
        layers = layers_left(model)
        for site, row in heads_left(model).items():
            places = [number for number, stays in enumerate(layers.get(site.stack, ())) if stays]
            was = replace(site, layer=places[site.layer]) if places else site
            for head, number in enumerate(row.nonzero()[:, 0].tolist()):
                if (site.layer, head) != (was.layer, number):
                    names[site.name, head] = head_name((was, number))
        return names

    @property
    def is_base(self) -> bool:
        return self.folder.path == self.base.path

    @property
    def is_whole(self) -> bool:
        """True for the base on its own text: what the page of a run shows."""
        return self.is_base and self.config.text is None and self.config.name is None

    @property
    def shown_kinds(self) -> list[str]:
        """The kinds of attention that the page has: all of a base, whichever are looked at now."""
        return list(KINDS) if self.is_whole else self.config.attention

    @property
    def toy(self) -> bool:
        """True where the trees and alignments of the text are known."""
        return self.corpus.name == "toy" and self.config.text is None

    @property
    def split(self) -> str:
        """`valid`, `test`, or `text` for the source sentences of --text."""
        return self.config.split if self.config.text is None else TEXT

    @property
    def examples_split(self) -> str:
        """The split whose sentences the report draws attention on."""
        return self.split if self.config.examples_from is None else EXAMPLES

    @property
    def text(self) -> ParallelText:
        """All pairs that are read; a pair's number is its index."""
        return self.corpus.split(self.split)

    def batches(self, what: str) -> Iterator[Batch]:
        """All pairs once; from time to time a line says how far `what` is."""
        batches, pairs = self.data.batches(self.split, PASS_TOKENS), len(self.data.split(self.split))
        return reported(batches, pairs, len, what=what, report=self.report)

    def fingerprint(self) -> dict[str, Any]:
        """What every analysis depends on: the system, its weights and the text."""
        text = digest_lines(self.text.sources, self.text.targets)
        return {
            "system": self.system,
            "weights": self.weights,
            "split": self.split,
            "sentences": len(self.text),
            "text": text,
        }


def one_base(folders: list[RunFolder]) -> RunFolder:
    """The run that all these runs are based on. Raises ValueError where they have different bases."""
    bases = {folder.path: base_of(folder) for folder in folders}
    first, *others = bases
    for other in others:
        if bases[other].path.resolve() != bases[first].path.resolve():
            raise ValueError(
                f"the runs are on different bases: that of {first} is {bases[first].path}, that of {other} "
                f"is {bases[other].path}; heads "
                "are compared over runs on one base, so give runs of one base"
            )
    return bases[first]


def cut_corpus(corpus: Corpus, split: str, sentences: int) -> Corpus:
    """The corpus with `ParallelText.first` so many pairs of the split; 0 leaves all of them."""
    first: Any = {split: corpus.split(split).first(sentences)}
    return replace(corpus, **first)


def source_text(path: str, sentences: int) -> ParallelText:
    """The first `sentences` source sentences of a file (0: all), without translations. Empty lines are left
    out and counted.

    Raises DataError for a file without a sentence."""
    trees = path.endswith((".conllu", ".conllu.gz"))
    lines = [tree.text for tree in read_conllu(path)] if trees else read_lines(path)
    kept = [line for line in lines if line][: sentences or None]
    if not kept:
        raise DataError(f"{path} has no sentence")
    return ParallelText(kept, [""] * len(kept), {"empty": lines.count("")})


def own_examples(path: str, source: Source) -> ParallelText:
    """The sentences of a file with what the model makes of them. Raises DataError for a file of no sentence,
    or of too many."""
    lines = source_text(path, 0).sources
    if len(lines) > MOST_EXAMPLES:
        raise DataError(
            f"--examples-from {path}: expected at most {MOST_EXAMPLES} sentences, got {len(lines):,}; cut "
            f"the file"
        )
    return ParallelText(lines, source.task.outputs(source.predictor, lines))
