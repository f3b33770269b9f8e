"""Parallel text, and the error at a fault in it. Importing this needs the standard library alone."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

from headgates.configs.fields import one_line

SAMPLE_SEED = 1  # of what all methods and seeds share, such as translated pairs


class DataError(ValueError):
    """The user's text has a fault; the message says what was expected, what came, and what to do."""


@contextmanager
def reworded(what: str, cure: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise an error of the block as a DataError, `WHAT (REASON); CURE`.

    errors: the classes that are meant. Unless given, all but DataError, whose words say enough: broken files
    send most libraries anywhere."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, errors) if errors else isinstance(error, DataError):
            raise
        reason = getattr(error, "strerror", None) or one_line(error)
        raise DataError(f"{what} ({reason}); {cure}") from error


def line_error(path: str | Path, number: int, message: str) -> DataError:
    """The error at a line of a file, numbered from 1."""
    return DataError(f"{path}, line {number}: {message}")


@dataclass
class ParallelText:
    """Sentence pairs: targets[i] translates sources[i].

    skipped: reason -> number of pairs of the files that were left out for it. store: the folder of a text
    that is too large for memory, from which its lines are read. columns: of labelled text, what the sentences
    of an example are called, in their order."""

    sources: Sequence[str]
    targets: Sequence[str]
    skipped: dict[str, int] = field(default_factory=dict)
    store: Path | None = field(default=None, compare=False)
    columns: tuple[str, ...] = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.sources)

    def only(self, kept: Sequence[int], *, reason: str = "") -> "ParallelText":
        """Return the pairs with these numbers; the others are counted under `reason`, if there is one."""
        left = len(self) - len(kept)
        skipped = self.skipped | ({reason: left} if reason and left else {})
        sources, targets = [self.sources[i] for i in kept], [self.targets[i] for i in kept]
        return ParallelText(sources, targets, skipped, columns=self.columns)

    def first(self, count: int) -> "ParallelText":
        """Return the first `count` pairs; all of them for 0. Labelled text may be in the order of its labels:
        of it, `sample`."""
        if not count or count >= len(self):
            return self
        if self.columns:
            return self.sample(count)
        return ParallelText(self.sources[:count], self.targets[:count], self.skipped, columns=self.columns)

    def sample(self, count: int, seed: int = SAMPLE_SEED) -> "ParallelText":
        """Return `count` random pairs, those of the seed, in the order of the text; all of them for 0."""
        if not count or count >= len(self):
            return self
        return self.only(sorted(Random(seed).sample(range(len(self)), count)))


def without_empty(pairs: Iterable[tuple[str, str]], skipped: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the pairs with text on both sides; the others are counted in `skipped` as 'empty'."""
    for pair in pairs:
        if all(pair):
            yield pair
        else:
            skipped["empty"] = skipped.get("empty", 0) + 1


def digest_lines(*texts: Iterable[str]) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of some texts, each a list of lines."""
    sha = hashlib.sha256()
    for text in texts:
        lines, separator = iter(text), ""
        while block := list(islice(lines, 2**14)):
            sha.update((separator + "\n".join(block)).encode())
            separator = "\n"
        sha.update(b"\0")
    return sha.hexdigest()[:12]
