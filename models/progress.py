"""How far a long command is: lines for the person at the terminal, and a counter of translated lines on standard error."""

import math
import sys
import time
from collections.abc import Callable

Report = Callable[[str], None]  # takes a line for the person who waits


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def minutes(seconds: float) -> str:
    """A time in words: "12 s", "3.4 min"."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


class Progress:
    """Lines done and lines a second on standard error: on a terminal one counter in place, else a line every ten seconds; a last line at
    the end. lines_seen: the translations go to a terminal themselves, so that a counter would only stand between them."""

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
        return f"{self.lines:,} line{'s' if self.lines != 1 else ''}, {self.lines / max(seconds, 1e-3):,.1f} lines/s"

    def add(self, lines: int) -> None:
        """So many lines more are written."""
        self.lines += lines
        if self.quiet or time.monotonic() - self.shown < self.every:
            return
        self.shown = time.monotonic()
        text = str(self)
        print("\r" + text.ljust(self.width) if self.in_place else text, end="" if self.in_place else "\n", file=sys.stderr, flush=True)
        self.width = len(text) if self.in_place else 0

    def say(self, text: str) -> None:
        """A line of its own, the counter left standing above it."""
        self.leave_line()
        print(text, file=sys.stderr, flush=True)

    def leave_line(self) -> None:
        """Go on below the counter, if one is on the screen."""
        if self.width:
            print(file=sys.stderr, flush=True)
        self.width = 0

    def finish(self) -> None:
        """The last line: all lines, and their number a second."""
        if not self.quiet:
            print(("\r" if self.width else "") + str(self).ljust(self.width), file=sys.stderr, flush=True)
        self.width = 0
