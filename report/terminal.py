"""Tables on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def show(table: Table) -> None:
    Console(width=None if Console().is_terminal else 140).print(table)


def columns(title: str, words: Sequence[str], figures: Sequence[str]) -> Table:
    """A table whose first columns are words and whose others are numbers."""
    table = Table(title=title)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right")
    return table
