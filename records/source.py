"""The one way to a trained model: `open_source(SOURCE)` gives it with its tokenizer, its text and its run
folder.

    source = open_source("runs/toy-en-de-l0-0.01-e3-s1")       # or system="base"
    source.translator.translate(["The dog sleeps."])
    source.corpus.valid                                        # the text that the run was trained on, read
    when it is asked for

To add a library whose models are a SOURCE: a file in bridges/ with a function that reads PLACE into a
ForeignModel, and a line in foreign_source.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headgates.analysis.significance import above_trivial, score
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.registry import imported
from headgates.configs.settings import Settings
from headgates.configs.source import SourceOptions
from headgates.data import Corpus
from headgates.data.batch import Batch
from headgates.data.corpus import TranslationData
from headgates.data.ranks import after_first, first
from headgates.data.special_tokens import MOST_UNKNOWN
from headgates.data.text import SAMPLE_SEED
from headgates.gates import HeadMap, attach
from headgates.models.checkpoint import weights_digest
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder, base_of
from headgates.records.foreign_run import foreign_run
from headgates.records.foreign_source import OPTIONS, SOURCES, is_foreign, split_source
from headgates.records.row import search_words, unlearned
from headgates.tasks import task_of
from headgates.tasks.base import Task

LOOKED_AT = 200  # test lines by which a model without a row has learned its task or not
BATCH_TOKENS = 4000  # of one batch of a pass over the training pairs; scores of heads do not depend on it
Lines = tuple[list[str], list[str]]  # source and reference lines


@dataclass
class Source:
    """A trained model in evaluation mode, with the run that it belongs to.

    system: one of the run's (base, l0, greedy, ...). data_dir: the folder with local copies of named
    corpora."""

    folder: RunFolder
    system: str
    task: Task
    predictor: Any  # of the task: a Translator, for translation
    config: dict[str, Any]  # the run's config.yaml
    data_dir: str | None

    @property
    def translator(self) -> Translator:
        """The predictor of a run that translates. Raises ValueError for another task."""
        if not isinstance(self.predictor, Translator):
            raise ValueError(f"{self.folder.path} does not translate: its task is {self.config.get('task')}")
        return self.predictor

    @property
    def with_vocabularies(self) -> Any:
        """The predictor where it has two vocabularies: a Translator, or what another task has. Raises
        ValueError for one without."""
        return self.predictor if hasattr(self.predictor, "source_vocab") else self.translator

    @property
    def model(self) -> Any:
        return self.predictor.model

    @cached_property
    def corpus(self) -> Corpus:
        """The text that the run was trained on. Raises ValueError if it is not there, or has changed
        since."""
        return after_first(lambda: run_corpus(self.folder, self.data_dir))  # it may be downloaded

    @property
    def search(self) -> str:
        """How it searches for outputs, in words; empty for a task without a search."""
        return search_words(self.task.prediction_settings(self.predictor))

    @property
    def weights(self) -> str:
        """12 hexadecimal digits that tell the model's weights, as they are now, from others."""
        return weights_digest(self.model)

    @cached_property
    def unlearned(self) -> str:
        """Why nothing can be said of the heads of this model, in one sentence; empty where it has learned its
        task. As its row says; where it has none that does, by its outputs of the first test lines."""
        row = next((row for row in self.folder.rows() if row.system == self.system), None)
        if row is not None and row.above_trivial is not None:
            return row.unlearned
        (lines, references), metric = self.lines("test", LOOKED_AT), self.task.metrics[0]
        outputs = self.task.outputs(self.predictor, lines, quick=True)
        above = above_trivial(outputs, references, metric)
        if above is None or above[0] > 0:
            return ""
        return unlearned(self.system, score(outputs, references, (metric,)).main, above)

    def data(self, corpus: Corpus | None = None, *, train_sentences: int = 0) -> TranslationData:
        """The text in the run's vocabulary, for batches.

        corpus: another text in its place. train_sentences: the first so many training pairs, 0 for as many as
        the run had."""
        return self.task.data(
            self.folder.path, corpus or self.corpus, self.config, train_sentences=train_sentences
        )

    @property
    def train_sentences(self) -> int:
        """The first so many training pairs are the run's; 0 for all."""
        return (self.config.get("text") or {}).get("train_sentences", 0)

    def sampled(self, sentences: int) -> int:
        """How many training pairs are sampled where so many are asked for; 0 where that is all of the run's,
        or 0."""
        return self.corpus.sampled(sentences, of=self.train_sentences)

    def train_batches(self, sentences: int = 0, seed: int = SAMPLE_SEED) -> Iterator[Batch]:
        """Every training pair once, longest first; of the seed's sample of so many `sentences` alone unless
        0. Nothing is read before the first."""
        corpus, sampled = self.corpus, self.sampled(sentences)
        if sampled:
            corpus = replace(corpus, train=corpus.train.first(self.train_sentences).sample(sampled, seed))
        yield from self.data(corpus, train_sentences=sampled).batches("train", BATCH_TOKENS)

    def lines(self, split: str, count: int = 0) -> Lines:
        """The first `count` source and reference lines of a split, all for 0."""
        text = self.corpus.split(split).first(count)
        return list(text.sources), list(text.targets)

    def other(self, corpus: str, count: int = 0) -> tuple[str, Lines]:
        """The name and the first `count` test lines (0: all) of another corpus, or of two files
        (SOURCE:REFERENCE), between the run's languages. Raises ValueError if there is none, or the run's
        vocabularies do not know its script."""
        settings = self.config | {"data_dir": self.data_dir}
        name, text = self.task.other_text(settings, corpus, self.corpus)
        text = text.first(count)
        lines, vocabs = (list(text.sources), list(text.targets)), self.with_vocabularies
        for side, vocab, own in zip(
            ("source", "reference"), (vocabs.source_vocab, vocabs.target_vocab), lines, strict=True
        ):
            share = vocab.specials.unknown_share(vocab.encode(own))
            if share > MOST_UNKNOWN:
                raise ValueError(
                    f"the vocabulary of {self.folder.path} cannot encode {name}: {share:.0%} of its {side} "
                    f"pieces are unknown "
                    f"(at most {MOST_UNKNOWN:.0%} are taken); give a test set from {self.config.get('src')} "
                    f"to {self.config.get('tgt')}"
                )
        return name, lines


def open_source(
    source: str | Path,
    system: str | None = None,
    *,
    unpruned: bool = False,
    finished: bool = False,
    device: str | None = None,
    options: SourceOptions | Settings | None = None,
) -> Source:
    """Open a trained model.

    system: the run's own unless given: pruned, or base of a base. unpruned: in place of a run that was made
    of a base its base. finished: a run that has not ended is refused.
    device: the first GPU if there is one, else the CPU, unless given. options: of a model of another library,
    its text, and the folder of corpora where it is not the run's own. Raises ValueError if the run or the
    system does not exist, or its
    files are broken."""
    folder = first(lambda: find_run(source, options))  # which writes what a foreign model becomes
    folder = base_of(folder) if unpruned else folder
    if finished:
        folder.check_finished()
    name = system or folder.own_system()
    systems = folder.systems()
    if name not in systems:
        raise ValueError(
            f"run {folder.path} has no system {name!r}{did_you_mean(name, systems)}; it has "
            f"{', '.join(sorted(systems))}"
        )
    config = folder.config()
    task = task_of(config)
    predictor = task.load_predictor(folder.path, folder.weights_of(name), config)
    model: Any = predictor.model.to(device or best_device())
    if (gates := systems[name].get("xi")) is not None:
        xi = HeadMap.from_json(gates)
        attach(model, gate="mask", kinds={site.kind for site in xi}, xi=xi).requires_grad_(False)
        model.eval()
    data_dir = getattr(options, "data_dir", None)
    return Source(
        folder, name, task, predictor, config, data_dir if data_dir is not None else config.get("data_dir")
    )


def find_run(source: str | Path, options: SourceOptions | Settings | None = None) -> RunFolder:
    """The run folder of a SOURCE; what a foreign model became lies in the options' `runs`. Raises ValueError
    if there is none, naming the nearest, or if a run is given options that are for other libraries'
    models."""
    options = options or SourceOptions()
    text = text_settings(options)
    if is_foreign(source):
        prefix, place, reading = split_source(source)
        foreign = imported(SOURCES[prefix])(place, reading)
        given = {f"{name}=": value for name, option in OPTIONS.items() if (value := getattr(reading, option))}
        return foreign_run(prefix, foreign, options.runs, given, text)
    if text and isinstance(options, SourceOptions):
        flag = f"--{next(iter(text)).replace('_', '-')}"
        raise ValueError(
            f"{flag} is for models of other libraries ({', '.join(SOURCES)}); {source} is a run, which has "
            f"its own: leave it out"
        )
    return RunFolder.open(source)


def text_settings(options: SourceOptions | Settings) -> dict[str, Any]:
    """The settings that name the text of a model of another library; none where it is given none."""
    names = ("data", "src", "tgt", "data_dir")
    given = {name: value for name in names if (value := getattr(options, name))}
    return given if "data" in given else {}


def prediction_settings(source: Source) -> dict[str, Any]:
    """Return what the outputs depend on besides the model, without the batch size, which changes none."""
    settings = source.task.prediction_settings(source.predictor)
    return {key: drop_batch(value) if isinstance(value, dict) else value for key, value in settings.items()}


def drop_batch(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "batch_tokens"}


def best_device() -> torch.device:
    """The first GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run_corpus(folder: RunFolder, data_dir: str | None = None) -> Corpus:
    """The corpus of a run. data_dir: folder with local copies of named corpora, the run's own unless given.

    Raises ValueError if it is not there, or is not the text that the run was trained on."""
    settings = folder.config()
    corpus = task_of(settings).load_text(settings if data_dir is None else settings | {"data_dir": data_dir})
    digest = (folder.result().get("data") or {}).get("text_digest")
    if digest not in (None, corpus.digest()):  # a model that others trained has none
        raise ValueError(
            f"the text of {settings.get('data')} is not what {folder.path} was trained on (digest "
            f"{corpus.digest()}, then {digest}); "
            "numbers on it would belong to no run: bring the old text back, or train on the new one"
        )
    return corpus
