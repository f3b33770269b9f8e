"""Tables on the terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 140  # characters, where the output is no terminal


def show(table: Table) -> None:
    """Print the table, as wide as the terminal."""
    Console(width=None if Console().is_terminal else WIDTH).print(table)


def interval_text(interval: tuple[float, float] | None, form: str = "+.2f") -> str:
    """The two ends of an interval, each in the format `form`; empty for None."""
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def columns(
    title: str, words: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]] = ()
) -> Table:
    """Return a table of these rows, whose first columns (`words`) hold words and whose others (`figures`)
    hold numbers."""
    table = Table(title=title)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
