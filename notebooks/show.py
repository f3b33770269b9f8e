"""What the notebooks show: tables as Markdown, which a reader of the file can still read, the figures of
report/ as pictures, and one line for a mistake such as a HEADGATES_RUN that is not there."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from IPython import get_ipython
from IPython.display import Image, Markdown

import headgates.report.drawing
from headgates.records.table import markdown_table

headgates.report.drawing.DOTS_PER_INCH = 72  # the notebooks are small files
ROOT = Path(__file__).resolve().parents[1]  # of the checkout, from which run folders are named


def table(rows: Sequence[Mapping[str, Any]], left: int = 1) -> Markdown:
    """The columns are those of the first row, the first `left` of them words; None is an empty cell. Without
    a row: "none"."""
    return Markdown(
        "\n".join(markdown_table(list(rows[0]), (map(cell, row.values()) for row in rows), left))
        if rows
        else "*none*"
    )


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value).replace("|", "\\|")


def picture(draw: Callable[..., None], *args: Any, **options: Any) -> Image:
    """The PNG of a figure of report/, whose functions draw to files: `draw(*args, path=..., **options)`."""
    with TemporaryDirectory() as folder:
        draw(*args, path=Path(folder) / "figure", **options)
        return Image((Path(folder) / "figure.png").read_bytes())


def in_one_line(shell: Any, kind: type[BaseException], error: BaseException, *_: Any, **__: Any) -> list[str]:
    """What IPython prints of a ValueError, which in this code is the user's mistake and says what to do;
    others keep their traceback."""
    return [str(error)]


if (shell := get_ipython()) is not None:
    shell.set_custom_exc((ValueError,), in_one_line)
