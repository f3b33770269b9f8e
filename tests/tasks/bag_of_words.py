"""A task that is not translation: which words will the answer hold? One encoder, no decoder, no search.

The loss of a pair is the cross-entropy of every target token against one distribution, made of the mean of
the encoder's outputs. Letters: B pairs, S source, T target tokens, D model width, V vocabulary."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from headgates.analysis.metrics import Metric
from headgates.configs.schema import ModelConfig
from headgates.data.batch import pad
from headgates.data.special_tokens import SpecialTokens
from headgates.data.vocab import Vocab, load_vocabs
from headgates.models.checkpoint import load_file
from headgates.models.transformer import Encoder, padding_bias
from headgates.tasks.base import Validator
from headgates.tasks.translation import Translation

PAD = SpecialTokens().padding
HITS = Metric(
    "hits",
    "hits",
    lambda outputs, references: np.array(
        [[word in line.split(), 1] for word, line in zip(outputs, references, strict=True)], dtype=float
    ),
    lambda sums: 100 * sums[0] / sums[1],
    lambda sums: 100 * sums[:, 0] / sums[:, 1],
    lambda: "share of lines whose word is in the reference",
)


class Bag(nn.Module):
    """Ids (B, S) to log-probabilities of words (B, V)."""

    def __init__(self, vocab: int):
        super().__init__()
        config = ModelConfig(d_model=14, heads=7, ffn=11, encoder_layers=1)
        self.embedding, self.encoder = nn.Embedding(vocab, 14), Encoder(config, {})
        self.output = nn.Linear(14, vocab)

    def forward(self, source):
        real = (source != PAD).float()[..., None]  # (B, S, 1)
        memory = self.encoder(self.embedding(source), padding_bias(source, PAD))  # (B, S, D)
        return self.output((memory * real).sum(1) / real.sum(1)).log_softmax(-1)


@dataclass
class BagPredictor:
    model: Bag
    source: Vocab
    target: Vocab


class BagValidator(Validator):
    def __init__(self):
        super().__init__()
        self.reset()

    def update(self, model, batch):
        self.total += float(BagOfWords().loss(model, batch))
        self.tokens += batch.target_tokens

    def compute(self):
        return {"loss": torch.tensor(self.total / self.tokens)}

    def reset(self):
        self.total, self.tokens = 0.0, 0


class BagOfWords(Translation):
    """The text and batches of a translation."""

    metrics, searches = (HITS,), False

    def new_predictor(self, folder, config):
        source, target = load_vocabs(folder)
        return BagPredictor(Bag(len(target)), source, target)

    def load_predictor(self, folder, checkpoint, settings):
        predictor = self.new_predictor(folder, None)
        predictor.model.load_state_dict(load_file(checkpoint)["model"])
        return predictor

    def describe(self, model: Any):
        return {}

    def loss(self, model, batch, *, smoothing=0.0):
        logits = model(batch.source)[:, :, None].expand(-1, -1, batch.target_out.shape[1])  # (B, V, T)
        return F.cross_entropy(
            logits, batch.target_out, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
        )

    def validator(self, model):
        return BagValidator()

    @torch.no_grad()
    def predict(self, predictor, lines, *, quick=False):
        scores = predictor.model(pad(predictor.source.encode(lines), predictor.source.specials, end=True))
        scores[:, :4] = -torch.inf  # specials
        return predictor.target.decode([[best] for best in scores.argmax(1).tolist()])
