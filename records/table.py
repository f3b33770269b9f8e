"""Tables of results: a list of rows, all with the same columns, as CSV in a run folder; and lines of a
Markdown table.

An empty cell is None; cells that read as numbers come back as numbers, and floats to the last digit.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.data.ranks import first
from headgates.records.folder import RunFolder

TableRow = dict[str, Any]


class FileRow(TableRow):
    """A row of a file: a column that it lacks is a ValueError that says what to do."""

    def __init__(self, cells: TableRow, path: Path):
        super().__init__(cells)
        self.path = path

    def __missing__(self, column: str) -> Any:
        raise ValueError(f"{self.path} has no column {column}; --fresh makes it anew")


def write_table(folder: RunFolder, name: str, rows: Sequence[TableRow]) -> None:
    """Write the rows at once, so that a crash leaves the old table whole. The columns are those of the first
    row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    folder.write_text(name, text.getvalue())


def read_table(folder: RunFolder, name: str) -> list[TableRow]:
    """The rows of a table. Raises ValueError if it is missing or its rows have not as many cells as its
    head."""
    try:
        text = (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {folder / name}: {error}; --fresh makes it anew") from error
    rows: list[TableRow] = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        if None in row or None in row.values():
            expected = f"expected {len(row) - (None in row)} cells in row {len(rows) + 1}"
            raise ValueError(f"{folder / name} is broken: {expected}; --fresh makes it anew")
        rows.append(FileRow({column: from_cell(cell) for column, cell in row.items()}, folder / name))
    return rows


def cached_table(
    folder: RunFolder,
    name: str,
    cache_key: Mapping[str, Any],
    make: Callable[[], tuple[list[TableRow], dict[str, Any]]],
    *,
    fresh: bool,
) -> list[TableRow]:
    """The rows of `name`.csv, which `make` gives with a summary, and which `name`.json vouches for
    (`RunFolder.cached`)."""

    def write() -> dict[str, Any]:
        rows, summary = make()
        write_table(folder, f"{name}.csv", rows)
        return {"rows": len(rows), **summary}

    folder.cached(f"{name}.json", dict[str, Any], cache_key, write, fresh=fresh, tell=True)
    return first(lambda: read_table(folder, f"{name}.csv"))


def with_ends(name: str, interval: Sequence[float] | None) -> TableRow:
    """The columns NAME_low and NAME_high, empty without an interval."""
    return dict(zip((f"{name}_low", f"{name}_high"), interval or (None, None), strict=True))


def from_cell(cell: str) -> Any:
    """A cell as an int, a float, None where it is empty, or else the text that it is."""
    if not cell:
        return None
    for number in (int, float):
        try:
            return number(cell)
        except ValueError:
            continue
    return cell


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> list[str]:
    """The lines of a table: the first `left` columns to the left, numbers to the right, an empty line
    below."""
    rule = "|" + "---|" * left + "--:|" * (len(head) - left)
    return [
        "| " + " | ".join(head) + " |",
        rule,
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
    ]
