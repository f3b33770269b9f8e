"""From text to training batches: pieces, skips that are counted, token-budget batches, as a LightningDataModule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset

from data.batch import Batch, collate
from data.batching import TokenBatches
from data.parallel import Corpus, DataError, ParallelText
from data.special_tokens import SpecialTokens
from data.vocab import NORMALIZATION, Vocab, Vocabulary

Pair = tuple[list[int], list[int]]


def make_vocabs(corpus: Corpus, folder: str | Path, *, size: int, joint: bool) -> tuple[Vocab, Vocab]:
    """The source and the target vocabulary, the same object twice where joint: loaded from `folder` if they are there, otherwise trained on
    the training text and stored there, as vocab.model or as vocab.src.model and vocab.tgt.model."""
    folder = Path(folder)
    if joint:
        both = _load_or_train(folder / "vocab.model", [*corpus.train.sources, *corpus.train.targets], size=size)
        return both, both
    return (
        _load_or_train(folder / "vocab.src.model", corpus.train.sources, size=size),
        _load_or_train(folder / "vocab.tgt.model", corpus.train.targets, size=size),
    )


def _load_or_train(path: Path, lines: list[str], *, size: int) -> Vocab:
    return Vocab.load(path) if path.exists() else Vocab.train(lines, size=size, path=path)


@dataclass(eq=False)  # a Dataset is hashable
class EncodedSplit(Dataset[Batch]):
    """The pairs of a split as ids of pieces, without special tokens, which `collate` adds.

    numbers[i]: the number of pair i in the corpus' split; skipped: reason -> how many pairs were left out for it."""

    pairs: list[Pair]
    numbers: list[int]
    skipped: dict[str, int]
    source_specials: SpecialTokens
    target_specials: SpecialTokens

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: tuple[list[int], int]) -> Batch:
        """The batch that TokenBatches asks for; for an empty one a pair that counts for nothing, its target tokens 0."""
        chosen, step_tokens = item
        return self.collated(chosen, step_tokens) if chosen else replace(self.collated([0], step_tokens), target_tokens=0)

    def collated(self, chosen: list[int], step_tokens: int) -> Batch:
        """These pairs as a batch."""
        pairs, numbers = [self.pairs[i] for i in chosen], [self.numbers[i] for i in chosen]
        return collate(pairs, numbers, step_tokens, self.source_specials, self.target_specials)

    @property
    def unknown_pieces(self) -> int:
        """How many pieces of the pairs are unknown to their vocabulary."""
        source, target = self.source_specials.unknown, self.target_specials.unknown
        return sum(pair[0].count(source) + pair[1].count(target) for pair in self.pairs)

    def sampler(self, **options: Any) -> TokenBatches:
        """Return the `TokenBatches` of these pairs, whose lengths count the end of sentence."""
        return TokenBatches([len(source) + 1 for source, _ in self.pairs], [len(target) + 1 for _, target in self.pairs], **options)


class TranslationData(pl.LightningDataModule):
    """Encodes a corpus once and serves its batches.

    Training and validation pairs of more than max_length pieces on either side are skipped and counted; test sets are served whole.
    train_sentences takes the first so many training pairs (0: all). Epoch k has the same batches in the same order whether the run came to
    it or resumed there."""

    split_class: ClassVar[type[EncodedSplit]] = EncodedSplit

    def __init__(
        self,
        *,
        corpus: Corpus,
        source_vocab: Vocabulary,
        target_vocab: Vocabulary,
        max_tokens: int,
        max_length: int,
        seed: int,
        accumulate: int = 1,
        train_sentences: int = 0,
    ) -> None:
        super().__init__()
        self.corpus, self.source_vocab, self.target_vocab = corpus, source_vocab, target_vocab
        self.max_tokens, self.max_length, self.accumulate, self.seed = max_tokens, max_length, accumulate, seed
        train = corpus.train
        if train_sentences:
            train = ParallelText(train.sources[:train_sentences], train.targets[:train_sentences], train.skipped)
        texts = {"train": (train, "training"), "valid": (corpus.valid, "validation")}
        # a corpus may lack a split; who asks for it is told
        self._splits = {name: self._encode(text, words, skip_long=True) for name, (text, words) in texts.items() if len(text)}

    @property
    def train_pairs(self) -> list[Pair]:
        """(source pieces, target pieces) of every training pair that is used."""
        return self.split("train").pairs

    @property
    def report(self) -> dict[str, Any]:
        """What result.json says of the text: pairs, skipped pairs, pieces and unknown pieces, and the sizes of the vocabularies."""
        return {
            **{name: _count(self.split(name)) for name in ("train", "valid")},
            "test": {"pairs": len(self.corpus.test), "skipped": dict(self.corpus.test.skipped)},
            "vocabulary": {"source": len(self.source_vocab), "target": len(self.target_vocab), "normalization": NORMALIZATION},
        }

    def split(self, name: str) -> EncodedSplit:
        """The encoded split called train, valid, test, or by an extra test set's name."""
        if name not in self._splits:
            self._splits[name] = self._encode(self.corpus.split(name), name, skip_long=False)
        return self._splits[name]

    def sampler(self, *, world: int = 1, rank: int = 0) -> TokenBatches:
        """The training batches' sampler; its `steps` is the number of optimiser steps in an epoch."""
        options = {"max_tokens": self.max_tokens, "seed": self.seed, "accumulate": self.accumulate}
        return self.split("train").sampler(**options, world=world, rank=rank)

    def train_dataloader(self) -> DataLoader[Batch]:
        world, rank = self._world()
        sampler = self.sampler(world=world, rank=rank)
        if self.trainer is not None:
            sampler.set_epoch(self.trainer.current_epoch)
            if (loop := self.trainer.fit_loop).restarting:  # in the middle of this epoch
                sampler.first_step = loop.epoch_loop.batch_progress.current.ready // self.accumulate
        return _loader(self.split("train"), sampler)

    def val_dataloader(self) -> DataLoader[Batch]:
        """All validation pairs once over all ranks, longest first; step_tokens are the target tokens of the ranks' batches together."""
        world, rank = self._world()
        split = self.split("valid")
        return _loader(split, split.sampler(max_tokens=self.max_tokens, seed=self.seed, world=world, rank=rank, shuffle=False))

    def batches(self, split: str, max_tokens: int) -> Iterator[Batch]:
        """Every pair of a split once, longest first, always in the same order; step_tokens are the batch's own target tokens."""
        encoded = self.split(split)
        return (encoded[item] for item in encoded.sampler(max_tokens=max_tokens, seed=self.seed, shuffle=False))

    def _encode(self, text: ParallelText, name: str, *, skip_long: bool) -> EncodedSplit:
        pairs = list(zip(self.source_vocab.encode(text.sources), self.target_vocab.encode(text.targets), strict=True))
        specials = self.source_vocab.specials, self.target_vocab.specials
        if not skip_long:
            return self.split_class(pairs, list(range(len(pairs))), dict(text.skipped), *specials)
        numbers = [i for i, (source, target) in enumerate(pairs) if max(len(source), len(target)) <= self.max_length]
        if not numbers:
            raise DataError(
                f"no {name} pair is left: all {len(pairs):,} have more than {self.max_length} pieces on a side; allow longer ones "
                f"(max_length), use a larger vocabulary, or cut the text into sentences"
            )
        skipped = dict(text.skipped)
        if len(numbers) < len(pairs):
            skipped[f"longer than {self.max_length} pieces"] = len(pairs) - len(numbers)
        return self.split_class([pairs[i] for i in numbers], numbers, skipped, *specials)

    def _world(self) -> tuple[int, int]:
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer is not None else (1, 0)


def _loader(split: EncodedSplit, sampler: TokenBatches) -> DataLoader[Batch]:
    # The sampler's item is a whole batch (batch_size=None), and as the DataLoader's `sampler` it is told each epoch by Lightning.
    # No worker processes: padding a batch takes well under a millisecond.
    return DataLoader(
        split, sampler=sampler, batch_size=None, collate_fn=lambda batch: batch, num_workers=0, pin_memory=torch.cuda.is_available()
    )


def _count(split: EncodedSplit) -> dict[str, Any]:
    return {
        "pairs": len(split),
        "skipped": split.skipped,
        "source_pieces": sum(len(source) for source, _ in split.pairs),
        "target_pieces": sum(len(target) for _, target in split.pairs),
        "unknown_pieces": split.unknown_pieces,
    }
