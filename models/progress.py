"""Progress of a long command: lines for the user, how far a pass is, and a counter of translated lines on
standard error."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from headgates.configs.printable import printable
from headgates.data.ranks import is_first

Report = Callable[[str], None]  # takes a line for the person who waits
B = TypeVar("B")
LINE_SECONDS = 10.0  # seconds between two lines on how far a pass is


def say(text: str) -> None:
    """Print a line at once, once for all ranks; what a terminal would obey is spelt out."""
    if is_first():
        print(printable(text), flush=True)


def minutes(seconds: float) -> str:
    """A time in words: "12 s", "3.4 min"."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def reported(
    batches: Iterable[B], total: int, size: Callable[[B], int], *, what: str, report: Report
) -> Iterator[B]:
    """Yield the batches; every LINE_SECONDS seconds a line says how many of the `total` that they hold
    together, by size, are done.

    Batches come longest first, so what is left takes less time than what was done, item by item: the estimate
    is an upper one."""
    done, begin = 0, time.monotonic()
    shown = begin
    for batch in batches:
        yield batch
        done += size(batch)
        now = time.monotonic()
        if now - shown >= LINE_SECONDS and done < total:
            report(
                f"{what}: {done:,} of {total:,}, at most about "
                f"{minutes((now - begin) / done * (total - done))} left"
            )
            shown = now


class Progress:
    """Shows on standard error how many lines are translated, and how many per second.

    On a terminal it is one counter that is overwritten, elsewhere a line every ten seconds, and `finish`
    writes a last line. lines_seen: the translations themselves appear on the terminal, so there is no counter
    between them."""

    def __init__(self, *, quiet: bool, lines_seen: bool):
        self.quiet, self.in_place = quiet, sys.stderr.isatty()
        self.every = math.inf if lines_seen else 0.2 if self.in_place else 10.0  # seconds
        self.lines, self.width = 0, 0
        self.begin = self.shown = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.leave_line()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.begin
        unit = "line" if self.lines == 1 else "lines"
        return f"{self.lines:,} {unit}, {self.lines / max(seconds, 1e-3):,.1f} lines/s"

    def add(self, lines: int) -> None:
        """Count this many more translated lines, and show the count if it is time to."""
        self.lines += lines
        if self.quiet or time.monotonic() - self.shown < self.every:
            return
        self.shown = time.monotonic()
        text = str(self)
        print(
            "\r" + text.ljust(self.width) if self.in_place else text,
            end="" if self.in_place else "\n",
            file=sys.stderr,
            flush=True,
        )
        self.width = len(text) if self.in_place else 0

    def say(self, text: str) -> None:
        """Print a line below the counter."""
        self.leave_line()
        print(printable(text), file=sys.stderr, flush=True)

    def leave_line(self) -> None:
        """Move to the line below the counter, if one is shown."""
        if self.width:
            print(file=sys.stderr, flush=True)
        self.width = 0

    def finish(self) -> None:
        """Print the final count and speed."""
        if not self.quiet:
            print(("\r" if self.width else "") + str(self).ljust(self.width), file=sys.stderr, flush=True)
        self.width = 0
