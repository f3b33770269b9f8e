"""Tables as the notebooks show them: Markdown, which a notebook draws and a reader of its file still reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import Markdown


def table(rows: Sequence[Mapping[str, Any]]) -> Markdown:
    """Columns are the first row's; numbers stand on the right, None is an empty cell. Without a row: "none"."""
    if not rows:
        return Markdown("*none*")
    columns = list(rows[0])
    sides = ["--:" if all(isinstance(row[name], (int, float, type(None))) for row in rows) else "---" for name in columns]
    lines = [columns, sides, *([cell(row[name]) for name in columns] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value).replace("|", "\\|")
