"""What stands behind a verdict: the measured numbers with their 95% intervals or p-values, claim by claim, as
lines of text."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from benchmarks.bert_sst2 import speedups
from benchmarks.claims import Findings, at_share
from benchmarks.claims_of_gates import encoder_closed, where
from benchmarks.records import Point
from headgates.report.speed.measure import interval_text as rounds_text
from headgates.report.terminal import interval_text
from headgates.workbench.table import Row


def ablated(findings: Findings, row: Row, what: str) -> str:
    """A row of one.csv or all-but-one.csv."""
    bounds = interval_text((row["difference_low"], row["difference_high"]))
    return f"{what}: {row[f'{findings.metric}_difference']:+.2f} {findings.title} ({bounds}), p {row['p_value']:.2g}"


def alone(findings: Findings, choose: Callable[..., Row], what: str) -> list[str]:
    if not findings.one:
        return []
    row = choose(findings.one, key=lambda row: row[f"{findings.metric}_difference"])
    return [ablated(findings, row, f"{what}, `{row['site']}.{row['head']}`")]


def layers_alone(findings: Findings) -> list[str]:
    rows = sorted(findings.all_but_one, key=lambda row: row["bleu_difference"])
    return [ablated(findings, row, f"`{row['site']}` with its best head alone") for row in rows]


def correlations(findings: Findings) -> list[str]:
    """Pearson's r over all heads with the interval of Fisher's z."""
    lines = []
    for name, found in findings.transfer.items():
        if pair := found["all"]["pearson"]:
            z, width = np.arctanh(pair[0]), 1.96 / np.sqrt(found["all"]["heads"] - 3)
            lines.append(
                f"with {name}: r {pair[0]:.2f} ({np.tanh(z - width):.2f} to {np.tanh(z + width):.2f}), p {pair[1]:.2g}"
            )
    return lines


def closed_text(findings: Findings, name: str, share: float) -> str:
    """The difference of a curve at a share closed."""
    main = f"test_{findings.metric}_difference"
    value, low, high = (
        at_share(findings.curves[name], share, column) for column in (main, f"{main}_low", f"{main}_high")
    )
    return f"{share:.0%} closed {value:+.2f} ({interval_text((low, high))})"


def along(findings: Findings, names: Sequence[str], shares: Sequence[float]) -> list[str]:
    known = [name for name in names if name in findings.curves]
    return [
        f"order {name.replace('-', ' among ', 1)}: {', '.join(closed_text(findings, name, share) for share in shares)} {findings.title}"
        for name in known
    ]


def gaps(findings: Findings) -> list[str]:
    """The gradient order less the ablation order, step by step. No interval: their outputs are not paired."""
    if not {"gradient", "ablation"} <= findings.curves.keys():
        return []
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    values = [
        at_share(findings.curves["gradient"], share, "test_bleu")
        - at_share(findings.curves["ablation"], share, "test_bleu")
        for share in shares
    ]
    steps = ", ".join(f"{share:.0%} {value:+.2f}" for share, value in zip(shares, values, strict=True))
    return [
        f"gradient less ablation by the share closed: {steps} BLEU",
        *along(findings, ("gradient", "ablation"), (0.2, 0.4)),
    ]


def kept(findings: Findings) -> list[str]:
    """Validation BLEU with 40% closed; without intervals, which the record does not have."""
    rows = [
        row
        for row in findings.dynamics
        if row["closed_share"] == 0.4 and row["valid_bleu_relative"] is not None
    ]
    return (
        [
            "kept with 40% closed: "
            + ", ".join(f"epoch {r['epoch']} {r['valid_bleu_relative']:.0%}" for r in rows)
        ]
        if rows
        else []
    )


def faster(findings: Findings) -> list[str]:
    if not findings.speed:
        return []
    heads = findings.speed["heads"]
    times = ", ".join(
        f"batch {batch} {rounds_text(gain)}" for batch, gain in speedups(findings.speed).items()
    )
    return [
        f"without {heads['closed']} of {heads['total']} heads, times as fast, median of the rounds (lowest to highest): {times}"
    ]


def in_order(points: Iterable[Point]) -> list[Point]:
    return sorted(points, key=lambda point: (-point.heads, point.epochs, -point.difference))


def of_points(points: Iterable[Point], unit: str) -> list[str]:
    return [f"{where(point)} heads, {point.name}: {point.loss_text} {unit}" for point in in_order(points)]


def of_encoder(findings: Findings) -> list[str]:
    return [
        f"{point.by_kind['enc-self']:g} of {point.kinds['enc-self']} encoder heads ({encoder_closed(point):.0%} closed), {point.name}: "
        f"{point.loss_text} BLEU"
        for point in in_order(findings.encoder_only)
    ]


def trained_at_most_half(findings: Findings) -> list[str]:
    return of_points((p for p in findings.points if p.epochs and p.heads <= p.total / 2), findings.title)


def scratch(findings: Findings) -> list[str]:
    return [
        f"{where(point)} heads: {point.method} {point.loss_text}, from scratch {other.loss_text} {findings.title}"
        for point, other in findings.scratch
    ]


def layers_left(findings: Findings) -> list[str]:
    return [
        f"{where(point)} ({point.name}): "
        + ", ".join(f"{site} {heads:g}" for site, heads in point.by_site.items())
        for point in in_order(findings.points)
        if point.learned and point.closes and point.by_site
    ]


def relevance(findings: Findings) -> list[str]:
    rows = findings.roles.correlations if findings.roles else []
    shown = (
        f"{r['first']} and {r['second']} {r['spearman']:.2f} (p {r['p_value']:.2g})"
        for r in rows
        if r["kind"] == "all"
    )
    return [f"Spearman over all heads: {', '.join(shown)}"] if rows else []


def roles(findings: Findings) -> list[str]:
    return [
        f"`{row['site']}.{row['head']}`: {row['words']}"
        for row in (findings.roles.roles if findings.roles else [])
    ]


def survival(findings: Findings) -> list[str]:
    return roles(findings) if findings.roles and findings.roles.survival else []


def syntax(findings: Findings) -> list[str]:
    """The best head of each relation and direction, less the best offset."""
    return [
        f"{row['label']} {row['direction']}, `{row['site']}.{row['head']}`: {row['accuracy']:.0%}, best offset {row['baseline']:.0%} "
        f"({100 * row['gain_low']:+.0f} to {100 * row['gain_high']:+.0f} points, {row['n']} words)"
        for row in (findings.roles.syntax if findings.roles else [])
    ]


def trained(findings: Findings) -> list[str]:
    return of_points((p for p in findings.points if p.epochs and p.closes and p.heads), findings.title)


MEASURED: dict[str, Callable[[Findings], list[str]]] = {
    "C1": lambda found: alone(found, min, "the head that costs most"),
    "C2": lambda found: alone(found, max, "the head that costs least"),
    "C3": layers_alone,
    "C4": correlations,
    "C5": lambda found: along(found, ["gradient"], (0.2, 0.4, 0.6, 0.8)),
    "C6": gaps,
    "C7": lambda found: along(
        found, [f"gradient-{kind}" for kind in ("enc-self", "dec-self", "cross")], (0.6, 0.8)
    ),
    "C8": kept,
    "C9": faster,
    "C10": of_encoder,
    "C11": trained_at_most_half,
    "C12": scratch,
    "C13": layers_left,
    "C14": relevance,
    "C15": survival,
    "C16": syntax,
    "C17": trained,
    "C18": trained,
}
