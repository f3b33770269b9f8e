"""Batches of labelled sentences: the unit of the loss is a sentence, and its target is one label."""

from typing import Any, ClassVar

import numpy as np
import torch

from headgates.data.batch import Batch, pad
from headgates.data.batching import TokenBatches
from headgates.data.corpus import EncodedSplit, TranslationData


class LabelledSplit(EncodedSplit):
    """Pairs of (ids of a sentence or two, [number of the label])."""

    def collated(self, chosen: list[int], step_sentences: int) -> Batch:
        """These pairs as a batch: target_out (B, 1) labels, target_in (B, 0); its target tokens are its
        sentences."""
        source = pad([self.pairs.arrays(i)[0] for i in chosen], self.source_specials, end=True)
        labels = torch.tensor([self.pairs[i][1] for i in chosen])  # (B, 1)
        index = torch.tensor(self.numbers[chosen].tolist())
        return Batch(source, labels[:, :0], labels, index, step_sentences, len(chosen))

    def sampler(self, **options: Any) -> TokenBatches:
        return TokenBatches(self.pairs.lengths("source") + 1, np.ones(len(self), dtype=np.uint8), **options)


class LabelledData(TranslationData):
    """Encodes labelled text once and serves its batches."""

    split_class: ClassVar[type[EncodedSplit]] = LabelledSplit

    @property
    def report(self) -> dict[str, Any]:
        """What result.json says of the text; of the vocabulary its sizes alone, as the encoder's tokenizer
        normalises in its own way."""
        return super().report | {
            "vocabulary": {"source": len(self.source_vocab), "labels": len(self.target_vocab)}
        }
