"""A parallel corpus: its training, validation and test text, and further test sets."""

from contextlib import suppress
from dataclasses import dataclass, field

from headgates.configs.did_you_mean import did_you_mean
from headgates.data.atomic_file import atomic_file
from headgates.data.text import DataError, ParallelText, digest_lines


@dataclass
class Corpus:
    """A parallel corpus with its three splits. extra: name -> a further test set."""

    train: ParallelText
    valid: ParallelText
    test: ParallelText
    name: str
    description: str
    src: str = ""
    tgt: str = ""
    extra: dict[str, ParallelText] = field(default_factory=dict)

    def split(self, name: str) -> ParallelText:
        """Return the split train, valid or test, or the extra test set of this name. Raises DataError at any
        other name, or where the text has no such split."""
        splits = {"train": self.train, "valid": self.valid, "test": self.test, **self.extra}
        there = {split: text for split, text in splits.items() if len(text)}
        if name not in there:
            raise DataError(
                f"{self.name} has no {name!r} text{did_you_mean(name, there)}; it has {', '.join(there)}"
            )
        return there[name]

    def sampled(self, count: int, *, of: int) -> int:
        """Return how many training pairs a sample of so many takes of the first `of` (0: of all); 0 where it
        has them all, or is of 0."""
        return count if count < min(len(self.train), of or len(self.train)) else 0

    def digest(self) -> str:
        """Return the `digest_lines` of the training and validation text; that of a stored text, which takes
        seconds at millions of lines, is kept beside it."""
        valid = self.valid.sources, self.valid.targets
        if self.train.store is None:
            return digest_lines(self.train.sources, self.train.targets, *valid)
        file = self.train.store / f"digest-{digest_lines(*valid)}.txt"
        with suppress(OSError):
            return file.read_text(encoding="ascii")
        digest = digest_lines(self.train.sources, self.train.targets, *valid)
        with suppress(OSError), atomic_file(file) as draft:  # a cache that is read-only costs seconds only
            draft.write(digest.encode())
        return digest
