"""What a task has to offer, and nothing that fit.py, prune.py or a score needs beside it. A new task is one
file like translation.py."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from headgates.analysis.metrics import Metric
from headgates.configs.settings import Settings
from headgates.configs.stages import DistillConfig
from headgates.data import Corpus
from headgates.data.corpus import TranslationData
from headgates.data.parallel import read_pairs
from headgates.data.ranks import shared_out
from headgates.data.text import ParallelText
from headgates.data.text_file import unpacked_name
from headgates.data.vocab import load_vocabs


class Predictor(Protocol):
    """A model with what turns lines into its input and its output into lines."""

    @property
    def model(self) -> Any: ...


class Task(ABC):
    """Data, loss, metrics and evaluation of what a model is trained for.

    Texts have source and target lines (a class's name is a target line too). A batch counts the units that
    its loss is a sum over: `target_tokens` in it, `step_tokens` in the whole optimiser step."""

    unit: ClassVar[str] = "target tokens"  # what a batch counts, in words
    pretrained: ClassVar[bool] = False  # whether a new model begins with weights that were trained
    searches: ClassVar[bool] = False  # whether outputs are searched for with a beam
    batches: ClassVar[type[TranslationData]] = TranslationData
    tokenizer_files: ClassVar[str] = "vocab*"  # of a run folder; runs on a base take them along

    def __init__(self, target_language: str = "", further: Sequence[Metric] = ()):
        """target_language: of a text with two; BLEU of some languages is of characters. further: metrics that
        the user asks for (tasks/own_metric.py)."""
        self.target_language, self.further = target_language, tuple(further)

    @property
    @abstractmethod
    def own_metrics(self) -> tuple[Metric, ...]:
        """The first decides what is better."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return *self.own_metrics, *self.further

    @abstractmethod
    def load_text(self, settings: Mapping[str, Any]) -> Corpus:
        """The text of a configuration (the mapping that config.yaml holds). Raises ValueError where it is not
        there."""

    def other_text(self, settings: Mapping[str, Any], place: str, own: Corpus) -> tuple[str, ParallelText]:
        """The name and the test lines of another corpus, or of SOURCE:REFERENCE, two aligned files, for a run
        of these settings and the text `own`.
        Raises ValueError where it is not there, or is not of the run's kind."""
        source, _, reference = place.partition(":")
        if (path := Path(source)).is_file():
            stem = unpacked_name(path).removesuffix(f".{settings.get('src')}")
            return f"{path.resolve().parent.name}-{stem}", read_pairs(source, reference, skip_empty=False)
        found = self.load_text({**settings, "data": place})
        return found.name, found.test

    def run_words(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        """What the names of runs begin with, such as toy-en-de, and what is done to the text, in words: en to
        de."""
        text = text_name(settings.get("data"))
        src, tgt = settings.get("src"), settings.get("tgt")
        return f"{text}-{src}-{tgt}", f"{src} to {tgt}"

    def cache_key(self, config: Settings) -> dict[str, Any]:
        """What a new base depends on beside the text and the settings that all tasks have: plain values."""
        return {}

    @abstractmethod
    def prepare_folder(self, folder: Path, corpus: Corpus, config: Settings) -> None:
        """Write what a new base needs beside its weights: its tokenizer."""

    @abstractmethod
    def new_predictor(self, folder: Path, config: Settings) -> Predictor:
        """An untrained model, with the tokenizer that `prepare_folder` wrote."""

    @abstractmethod
    def load_predictor(self, folder: Path, checkpoint: Path, settings: Mapping[str, Any]) -> Predictor:
        """A trained model in evaluation mode; settings: the run's config.yaml. Raises ValueError at a broken
        file."""

    @abstractmethod
    def describe(self, model: Any) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that `load_predictor` can build the model: plain
        values."""

    @abstractmethod
    def save_model(self, path: Path, predictor: Predictor) -> None:
        """Write a model without gates, heads removed or not, so that `load_predictor` reads it."""

    def vocabs(self, folder: Path) -> tuple[Any, Any]:
        """What cuts source and target lines of a run folder up. Raises ValueError where it holds that of
        another task."""
        return load_vocabs(folder)

    def data(
        self, folder: Path, corpus: Corpus, settings: Mapping[str, Any], *, train_sentences: int = 0
    ) -> TranslationData:
        """Batches of a text, in the tokenizer of a folder. train_sentences: the first so many training pairs,
        0 for those of settings."""
        source_vocab, target_vocab = self.vocabs(folder)
        text = settings["text"]
        return self.batches(
            corpus=corpus,
            source_vocab=source_vocab,
            target_vocab=target_vocab,
            max_tokens=text["max_tokens"],
            max_length=text["max_length"],
            seed=settings["seed"],
            train_sentences=train_sentences or text["train_sentences"],
        )

    @abstractmethod
    def loss(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Tensor:
        """Nats, summed over the batch's units: a scalar with a gradient."""

    def losses(self, model: Any, batch: Any) -> Tensor:
        """(B,) nats of each sentence, which sum to `loss` without smoothing. Raises ValueError where the task
        does not say."""
        raise ValueError(f"{type(self).__name__} has no loss of single sentences")

    def sampled(self, model: Any, batch: Any, generator: torch.Generator) -> Any:
        """The batch with targets sampled from what the model says of each, so that squared gradients of its
        loss make the true Fisher information; the batch as it is, where a task does not sample. generator: on
        the CPU."""
        return batch

    def distilled_loss(
        self, model: Any, teacher: Any, batch: Any, *, smoothing: float, distill: DistillConfig
    ) -> Tensor:
        """Nats, summed over the batch's units: (1 - weight) `loss` + weight temperature^2 KL(teacher ||
        model), both softened by the temperature. Raises ValueError where the task does not say."""
        raise ValueError(f"{type(self).__name__} has no distillation; leave --distill.weight at 0")

    @abstractmethod
    def counted(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """A batch's loss, summed over its units, and of how many units the output is the right one; called
        without autocast."""

    @abstractmethod
    def validation(self, loss: Tensor, right: Tensor) -> dict[str, Tensor]:
        """The numbers of an epoch by name, `loss` first, of the loss in nats per unit and the share of units
        that are predicted."""

    @abstractmethod
    def predict(self, predictor: Any, lines: Sequence[str], *, quick: bool = False) -> list[str]:
        """One output line for every source line; quick: for a look between epochs, by the cheapest search."""

    def outputs(self, predictor: Any, lines: Sequence[str], *, quick: bool = False) -> list[str]:
        """`predict`, the lines shared out among the ranks; every rank calls it, and gets all outputs."""
        return shared_out(lines, lambda share: self.predict(predictor, share, quick=quick))

    @abstractmethod
    def prediction_settings(self, predictor: Any, *, quick: bool = False) -> dict[str, Any]:
        """What `predict` depends on beside the model, as result.json records it; outputs on disk are used
        again only where it is the same."""

    def top_logits(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Where relevance starts: (B, T) largest logits, with a gradient, and (B, T) bool, False at padding.
        Raises ValueError where the task does not say."""
        raise ValueError(f"{type(self).__name__} does not say at which logits relevance starts")


def text_name(data: Any) -> str:
    """What a text is called in the names of its runs: its folder's name, or its own without hf:."""
    path = Path(str(data).removeprefix("hf:"))
    return (path if path.name.strip(".") else path.resolve()).name.replace(":", "-")
