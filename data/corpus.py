"""From text to training batches: pieces, skips that are counted, token-budget batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from headgates.data.batch import Batch, collate
from headgates.data.batching import TokenBatches
from headgates.data.encoded import SIDES, EncodedPairs
from headgates.data.special_tokens import SpecialTokens
from headgates.data.splits import Corpus
from headgates.data.store import encoded
from headgates.data.text import DataError, ParallelText
from headgates.data.vocab import Vocab, Vocabulary, normalization_of


def make_vocabs(
    corpus: Corpus, folder: str | Path, *, size: int, joint: bool, pairs: int = 0
) -> tuple[Vocab, Vocab]:
    """The source and the target vocabulary, the same object twice where joint: loaded from `folder` if they
    are there, otherwise trained on the training text and stored there, as vocab.model or as vocab.src.model
    and vocab.tgt.model.

    pairs: how many training pairs are drawn for it where there are more, 0 for all."""

    def loaded_or_trained(
        name: str, lines: Callable[[ParallelText], Sequence[str]], *languages: str
    ) -> Vocab:
        path, rule = Path(folder) / name, normalization_of(*languages)
        if path.exists():
            return Vocab.load(path)
        return Vocab.train(lines(corpus.train.sample(pairs)), size=size, path=path, normalization=rule)

    src, tgt = corpus.src, corpus.tgt
    if joint:
        both = loaded_or_trained("vocab.model", lambda text: [*text.sources, *text.targets], src, tgt)
        return both, both
    source = loaded_or_trained("vocab.src.model", lambda text: text.sources, src)
    return source, loaded_or_trained("vocab.tgt.model", lambda text: text.targets, tgt)


@dataclass(eq=False)  # a Dataset is hashable
class EncodedSplit(Dataset[Batch]):
    """The pairs of a split as ids of pieces, without special tokens, which `collate` adds.

    skipped: reason -> how many pairs were left out for it."""

    pairs: EncodedPairs
    skipped: dict[str, int]
    source_specials: SpecialTokens
    target_specials: SpecialTokens

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: tuple[list[int], int]) -> Batch:
        """The batch that TokenBatches asks for; for an empty one a pair that counts for nothing, its target
        tokens 0."""
        chosen, step_tokens = item
        batch = self.collated(chosen or [0], step_tokens)
        return batch if chosen else replace(batch, target_tokens=0)

    def collated(self, chosen: list[int], step_tokens: int) -> Batch:
        """These pairs as a batch."""
        pairs = [self.pairs.arrays(i) for i in chosen]
        return collate(
            pairs, self.numbers[chosen].tolist(), step_tokens, self.source_specials, self.target_specials
        )

    @property
    def numbers(self) -> np.ndarray:
        """(N,) the number of each pair in the corpus' split."""
        return self.pairs.numbers

    @property
    def unknown_pieces(self) -> int:
        """How many pieces of the pairs are unknown to their vocabulary."""
        return sum(
            self.pairs.occurrences(side, specials.unknown)
            for side, specials in zip(SIDES, (self.source_specials, self.target_specials), strict=True)
        )

    def sampler(self, **options: Any) -> TokenBatches:
        """Return the `TokenBatches` of these pairs, whose lengths count the end of sentence."""
        lengths = (self.pairs.lengths(side) + 1 for side in ("source", "target"))
        return TokenBatches(*lengths, unasked=len(self.target_specials.forced), **options)


class TranslationData:
    """Encodes a corpus once and serves its batches.

    Training and validation pairs of more than max_length pieces on either side are skipped and counted; test
    sets are served whole. train_sentences takes so many training pairs, as `ParallelText.first` (0: all).
    Epoch k has the same batches in the same order whether the run came to it or resumed there."""

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
        self.corpus, self.source_vocab, self.target_vocab = corpus, source_vocab, target_vocab
        self.max_tokens, self.max_length, self.seed = max_tokens, max_length, seed
        self.accumulate = accumulate
        texts = {"train": corpus.train.first(train_sentences), "valid": corpus.valid}
        # a corpus may lack a split; who asks for it is told
        self._splits = {
            name: self._encode(text, name, skip_long=True) for name, text in texts.items() if len(text)
        }

    @property
    def train_pairs(self) -> EncodedPairs:
        """(source pieces, target pieces) of every training pair that is used."""
        return self.split("train").pairs

    @property
    def report(self) -> dict[str, Any]:
        """What result.json says of the text: pairs, skipped pairs, pieces and unknown pieces, and the sizes
        of the vocabularies."""
        sizes = {"source": len(self.source_vocab), "target": len(self.target_vocab)}
        return {
            "train": _count(self.split("train")),
            "valid": _count(self.split("valid")),
            "test": {"pairs": len(self.corpus.test), "skipped": dict(self.corpus.test.skipped)},
            "vocabulary": sizes,
        }

    def split(self, name: str) -> EncodedSplit:
        """The encoded split called train, valid, test, or by an extra test set's name."""
        if name not in self._splits:
            self._splits[name] = self._encode(self.corpus.split(name), name, skip_long=False)
        return self._splits[name]

    def sampler(self, **ranks: int) -> TokenBatches:
        """The training batches' sampler; its `steps` is the number of optimiser steps in an epoch. ranks:
        `world` and `rank`, those of one process unless given."""
        return self.split("train").sampler(
            max_tokens=self.max_tokens, seed=self.seed, accumulate=self.accumulate, **ranks
        )

    def train_dataloader(self, *, epoch: int = 0, first_step: int = 0, **ranks: int) -> DataLoader[Batch]:
        """The batches of an epoch from an optimiser step on. ranks: as in `sampler`."""
        sampler = self.sampler(**ranks)
        sampler.set_epoch(epoch)
        sampler.first_step = first_step
        return _loader(self.split("train"), sampler)

    def val_dataloader(self, **ranks: int) -> DataLoader[Batch]:
        """All validation pairs once over all ranks, longest first; step_tokens are the target tokens of the
        ranks' batches together."""
        split = self.split("valid")
        sampler = split.sampler(max_tokens=self.max_tokens, seed=self.seed, shuffle=False, **ranks)
        return _loader(split, sampler)

    def batches(self, split: str, max_tokens: int) -> Iterator[Batch]:
        """Every pair of a split once, longest first, always in the same order; step_tokens are the batch's
        own target tokens."""
        pairs = self.split(split)
        return map(pairs.__getitem__, pairs.sampler(max_tokens=max_tokens, seed=self.seed, shuffle=False))

    def _encode(self, text: ParallelText, name: str, *, skip_long: bool) -> EncodedSplit:
        pairs, skipped = encoded(text, self.source_vocab, self.target_vocab), dict(text.skipped)
        if skip_long:
            short = np.maximum(pairs.lengths("source"), pairs.lengths("target")) <= self.max_length
            if not short.any():
                raise DataError(
                    f"no {name} pair is left: all {len(pairs):,} have more than {self.max_length} pieces on "
                    "a side; allow longer ones (max_length), or cut the text into sentences"
                )
            if not short.all():
                skipped[f"longer than {self.max_length} pieces"] = int((~short).sum())
                pairs = pairs.only(np.flatnonzero(short))
        return self.split_class(pairs, skipped, self.source_vocab.specials, self.target_vocab.specials)


def _loader(split: EncodedSplit, sampler: TokenBatches) -> DataLoader[Batch]:
    # The sampler's item is a whole batch (batch_size=None), and as the DataLoader's `sampler` it is told each
    # epoch by Lightning. No worker processes: padding a batch takes well under a millisecond.
    return DataLoader(split, sampler=sampler, batch_size=None, pin_memory=torch.cuda.is_available())


def _count(split: EncodedSplit) -> dict[str, Any]:
    return {
        "pairs": len(split),
        "skipped": split.skipped,
        "source_pieces": int(split.pairs.lengths("source").sum()),
        "target_pieces": int(split.pairs.lengths("target").sum()),
        "unknown_pieces": split.unknown_pieces,
    }
