"""What all figures share: their look, their two files, and numbers from the rows of a CSV file. Colours are
in report/palette.py.

The same rows give the same files: neither holds a date, a version or a machine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from headgates.data.atomic_file import atomic_file
from headgates.report.palette import SOFT

FigureRow = Mapping[str, Any]

LOOK: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT.light,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "headgates",
}
KIND_WORDS = {
    "enc-self": "encoder self-attention",
    "dec-self": "decoder self-attention",
    "cross": "cross attention",
}
DOTS_PER_INCH = 200
WHITE_EDGE = [withStroke(linewidth=3, foreground="white")]  # around words that may stand on a line


@contextmanager
def drawing(path: str | Path, *, size: tuple[float, float], title: str) -> Iterator[Figure]:
    """A figure that is written to `path`.png and `path`.svg when the block ends. `path` has no suffix; its
    dots stay."""
    path = Path(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the reader's own matplotlibrc says
        matplotlib.rcParams.update(LOOK)
        figure = Figure(
            figsize=size, layout="constrained", facecolor="white"
        )  # no pyplot: nothing global to close
        if title:  # 8.5 letters an inch
            figure.suptitle(fill(title, int(8.5 * size[0])), x=0.01, ha="left", fontsize=13)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path.with_name(path.name + ".png")) as file:
            figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        with atomic_file(path.with_name(path.name + ".svg")) as file:
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})


def column(rows: Sequence[FigureRow], name: str) -> np.ndarray:
    """NaN where a row has nothing."""
    return np.array([row.get(name) for row in rows], float)


def no_rows(what: str) -> ValueError:
    return ValueError(f"expected rows to draw, got no {what}; run the command that makes them first")
