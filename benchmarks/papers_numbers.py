"""The papers' own numbers of heads and BLEU, with the nearest that were measured here beside them.

Voita et al. 2019, section 6 and table 2; Behnke & Heafield 2020. A paper's BLEU is tokenised and of other
text: its differences can stand beside ours, its values cannot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.findings_bases import Base
from benchmarks.intervals import in_order
from benchmarks.records import Point
from headgates.workbench.table import markdown_table

NEAR = 0.1  # no row stands for a share of closed heads that is further off
ENCODER, ALL, SCRATCH = "encoder heads, decoder frozen", "all heads", "all heads, from scratch"


@dataclass(frozen=True)
class Published:
    """A paper's row: heads left of a total, and the BLEU lost against its own base. scope: which heads, and
    how they were closed."""

    who: str
    scope: str
    heads: int
    total: int
    difference: float

    @property
    def closed(self) -> float:
        return 1 - self.heads / self.total


WMT, SUBTITLES = "Voita et al., WMT en-ru", "Voita et al., OpenSubtitles en-ru"
PUBLISHED = [
    Published(WMT, ENCODER, 10, 48, -0.15),
    Published(SUBTITLES, ENCODER, 4, 48, -0.25),
    Published(
        "Behnke & Heafield, a student en-de", "encoder heads, closed while it was trained", 12, 48, -0.2
    ),
    # table 2: heads of encoder, decoder and cross together; bases 29.6 and 32.4
    *(
        Published(who, scope, heads, 144, value - base)
        for who, base, rows in (
            (WMT, 29.6, ((75, 29.62, 29.47), (58, 29.36, 28.95), (36, 29.06, 28.56), (26, 28.90, 28.41))),
            (SUBTITLES, 32.4, ((104, 32.24, 32.23), (61, 32.23, 31.98), (28, 32.27, 31.84))),
        )
        for heads, *values in rows
        for scope, value in zip((ALL, SCRATCH), values, strict=True)
    ),
]


def encoder_shares(points: Iterable[Point]) -> list[tuple[float, Point, str]]:
    """Share closed, point, and heads left of the encoder's."""
    return [
        (
            1 - point.by_kind["enc-self"] / point.kinds["enc-self"],
            point,
            f"{point.by_kind['enc-self']:g} of {point.kinds['enc-self']}",
        )
        for point in points
    ]


def shares(points: Iterable[Point]) -> list[tuple[float, Point, str]]:
    return [(1 - point.heads / point.total, point, f"{point.heads:g} of {point.total}") for point in points]


def nearest(row: Published, base: Base) -> str:
    """The point whose share of closed heads is nearest, of equally near ones the best; empty where none is
    near."""
    found = base.findings
    if row.scope == ALL:
        known = shares(point for point in found.points if point.epochs)
    elif row.scope == SCRATCH:
        known = shares(other for _, other in found.scratch)
    else:
        known = encoder_shares(in_order(found.encoder_only))
    near = [entry for entry in known if abs(entry[0] - row.closed) <= NEAR and entry[0] < 1]
    if not near:
        return ""
    _, point, left = min(near, key=lambda entry: (round(abs(entry[0] - row.closed), 6), -entry[1].difference))
    return f"{left}: {point.loss_text}, {point.name}"


def beside_ours(bases: Sequence[Base]) -> list[str]:
    """The section of the page."""
    rows = []
    for row in PUBLISHED:
        left = f"{row.heads} of {row.total} ({row.closed:.0%} closed)"
        rows.append(
            [row.who, row.scope, left, f"{row.difference:+.2f}", *(nearest(row, base) for base in bases)]
        )
    head = ["paper", "which heads", "left", "BLEU", *(base.title for base in bases)]
    return [
        "## Beside the papers' own numbers",
        "",
        "Heads left and BLEU lost, and on each of our bases the trained model whose share of closed heads is nearest, if it is within "
        f"{NEAR:.0%} of all; of equally near ones the best, which flatters it. The papers' BLEU is tokenised (Voita et al.'s in lower case "
        "too) and of other text: differences can be set beside each other, values cannot. The models of the student were not trained.",
        "",
        *markdown_table(head, rows, left=len(head)),
    ]
