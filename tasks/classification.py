"""Classification: cross-entropy per sentence, accuracy. A Hugging Face encoder is fine-tuned, as BERT in
Michel et al. 2019.

The loss of a step is the sum over its sentences, or pairs of sentences, of the cross-entropy of the label,
divided by their number: lambda is nats per sentence, per expected open head."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headgates.analysis.batches import sampled
from headgates.analysis.metrics import ACCURACY
from headgates.bridges.classifier import (
    Labeller,
    describe,
    encoder_digest,
    encoder_folder,
    load_classifier,
    longest_input,
    new_classifier,
    save_classifier,
)
from headgates.configs.settings import ModelConfig, Settings
from headgates.configs.stages import DistillConfig
from headgates.data import Corpus
from headgates.data.batch import Batch
from headgates.data.encoder_vocab import EncoderVocab, LabelVocab, write_vocabs
from headgates.data.label_batches import LabelledData
from headgates.data.labelled import labelled_corpus, labels_of, other_labelled
from headgates.data.text import ParallelText
from headgates.data.vocab import load_vocabs
from headgates.tasks.base import Task, text_name


class Classification(Task):
    """Sentences, or pairs of them, to labels, by an encoder of Hugging Face's."""

    own_metrics = (ACCURACY,)
    unit = "sentences"
    batches = LabelledData
    pretrained = True

    def load_text(self, settings: Mapping[str, Any]) -> Corpus:
        return labelled_corpus(settings.get("data"))

    def other_text(self, settings: Mapping[str, Any], place: str, own: Corpus) -> tuple[str, ParallelText]:
        return other_labelled(place, like=own.train)

    def run_words(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        encoder = Path(str(settings.get("encoder"))).name
        return f"{text_name(settings.get('data'))}-{encoder}", f"labels by {encoder}"

    def cache_key(self, config: Settings) -> dict[str, Any]:
        sampled = {"sampled": True} if config.text.train_sentences else {}  # not the first ones
        return {"encoder": encoder_digest(encoder_of(config)), **sampled}

    def prepare_folder(self, folder: Path, corpus: Corpus, config: Settings) -> None:
        encoder = encoder_of(config)
        write_vocabs(encoder, folder, labels_of(corpus.train), max_positions=longest_input(encoder))

    def new_predictor(self, folder: Path, config: Settings) -> Labeller:
        source_vocab, labels = self.vocabs(folder)
        return Labeller(
            new_classifier(encoder_of(config), len(labels), source_vocab.specials),
            source_vocab,
            labels,
        )

    def load_predictor(self, folder: Path, checkpoint: Path, settings: Mapping[str, Any]) -> Labeller:
        return Labeller(load_classifier(checkpoint), *self.vocabs(folder))

    def describe(self, model: Any) -> dict[str, Any]:
        return {"classifier": describe(model)}

    def save_model(self, path: Path, predictor: Any) -> None:
        save_classifier(path, predictor.model)

    def vocabs(self, folder: Path) -> tuple[EncoderVocab, LabelVocab]:
        source_vocab, labels = load_vocabs(folder)
        if not isinstance(source_vocab, EncoderVocab) or not isinstance(labels, LabelVocab):
            raise ValueError(
                f"{folder} holds the vocabularies of a translation model; expected a run of --task classify"
            )
        return source_vocab, labels

    def loss(self, model: Any, batch: Batch, *, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(
            model(batch.source), batch.target_out[:, 0], label_smoothing=smoothing, reduction="sum"
        )

    def losses(self, model: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.source), batch.target_out[:, 0], reduction="none")

    @torch.no_grad()
    def sampled(self, model: Any, batch: Batch, generator: torch.Generator) -> Batch:
        targets = sampled(model(batch.source), generator)  # (B,)
        return replace(batch, target_out=torch.cat([targets[:, None], batch.target_out[:, 1:]], dim=1))

    def distilled_loss(
        self, model: Any, teacher: Any, batch: Batch, *, smoothing: float, distill: DistillConfig
    ) -> Tensor:
        weight, temperature = distill.weight, distill.temperature
        with torch.no_grad():
            dense = F.log_softmax(teacher(batch.source) / temperature, dim=-1)
        logits = model(batch.source)
        own = F.cross_entropy(logits, batch.target_out[:, 0], label_smoothing=smoothing, reduction="sum")
        divergence = F.kl_div(
            F.log_softmax(logits / temperature, dim=-1), dense, log_target=True, reduction="sum"
        )
        return (1 - weight) * own + weight * temperature**2 * divergence

    def counted(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = model(batch.source), batch.target_out[:, 0]
        return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(1) == labels).sum()

    def validation(self, loss: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"loss": loss, "label_accuracy": right}

    def predict(self, predictor: Any, lines: Sequence[str], *, quick: bool = False) -> list[str]:
        return predictor.label(lines)

    def prediction_settings(self, predictor: Any, *, quick: bool = False) -> dict[str, Any]:
        return {}

    def top_logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return model.top_logits(batch.source)


def encoder_of(config: Settings) -> Path:
    """The folder of the encoder that a base is made of. Raises ValueError where there is none, or settings of
    our own model are given with it."""
    if config.encoder is None:
        raise ValueError(
            "--task classify needs --encoder: a Hugging Face encoder's folder or name on the hub"
        )
    if config.model != ModelConfig():
        raise ValueError("--model.* are of the translation model; --task classify takes an encoder as it is")
    return encoder_folder(config.encoder)
