"""Write a comparison: compare.csv (a row a run), compare.md, compare.json with what made it, compare.png and
.svg.

compare.json: {"title", "base", "base_hash", "metric", what made the table, "summary": [sentences], "ranks":
{epochs: {label: rank}}, "groups": [a row for each point, over its seeds], "leads": [learned gates minus each
other method at as many heads with as much training], "failed": [points without a run], "runs": {run: what
made it}}
"""

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headgates.configs.schema import KINDS
from headgates.models.progress import Report
from headgates.report.bleu_heads import FACTS, fact_cell
from headgates.report.compare_figure import draw_compared
from headgates.report.compare_groups import BASES, Compared, Group, MadePoint
from headgates.report.compare_summary import summary, trained
from headgates.report.terminal import columns, interval_text, show
from headgates.tasks.metrics import Metric
from headgates.workbench.folder import RunFolder
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.table import Row, markdown_table, write_table

NAME = "compare"
ELSEWHERE = "comparisons.json"  # in a base: the comparisons on it that are not beside it
HEAD = ("method", "heads", "seeds", "of seeds", "95%", "difference", "95%", "p")


def write_compared(
    compared: Compared,
    folder: RunFolder,
    *,
    metrics: Sequence[Metric],
    title: str,
    about: Mapping[str, Any],
    runs: Mapping[str, dict[str, Any]],
    failed: Sequence[str] = (),
    report: Report,
) -> list[str]:
    """Write all files into the folder, and return the sentences of the summary.

    about: further entries of compare.json, such as the base; runs: name -> result.json of each run; failed:
    points that have none."""
    sentences = summary(compared, metric=metrics[0].title)
    groups = [group_row(group, compared, metrics) for group in in_order(compared)]
    facts = {name: {fact: result.get(fact) for fact in FACTS} for name, result in sorted(runs.items())}
    made_by = {
        name: value
        for name, value in provenance(device_name(), "none", 0).items()
        if name not in ("precision", "seed", "threads")
    }
    ranks = {str(epochs): compared.ranks(epochs) for epochs in compared.all_epochs}
    write_table(folder, f"{NAME}.csv", point_rows(compared, metrics))
    folder.write_text(f"{NAME}.md", "\n".join(markdown(compared, metrics, sentences, title, failed, facts)))
    with TemporaryDirectory(
        dir=folder.path, prefix=".draft-"
    ) as drafts:  # a crash leaves the old figure whole
        draw_compared(compared, Path(drafts) / NAME, metric=metrics[0].title, title=title)
        for end in ("png", "svg"):
            os.replace(Path(drafts) / f"{NAME}.{end}", folder / f"{NAME}.{end}")
    content = {
        "title": title,
        "metric": metrics[0].title,
        **about,
        **made_by,
        "summary": sentences,
        "ranks": ranks,
        "groups": groups,
    }
    content["leads"] = [lead_row(*pair) for pair in learned_pairs(compared)]
    folder.write_json(f"{NAME}.json", content | {"failed": list(failed), "runs": facts})
    for end, kind in {
        "csv": "table",
        "md": "table",
        "png": "figure",
        "svg": "figure",
        "json": "made by",
    }.items():
        report(f"{kind}: {folder / f'{NAME}.{end}'}")
    return sentences


def in_order(compared: Compared) -> list[Group]:
    """The bases, then by training, heads (the most first) and score (the best first)."""
    bases = [compared.base, *compared.continued.values()]
    return bases + sorted(
        compared.groups, key=lambda group: (group.epochs, -group.heads, -group.mean, group.label)
    )


def comparisons_of(base: RunFolder) -> list[dict[str, Any]]:
    """The comparisons on a base, beside it or elsewhere, by name: title, summary, a row for each point, and
    the figure as an address that holds it. One whose file is broken or gone is left out: it can be written
    again, and no page must wait for
    it."""
    found = []
    place = base.path.resolve()
    beside = {path.parent for path in place.parent.glob(f"compare-*/{NAME}.json")}
    for where in sorted(
        beside | {(place / each).resolve() for each in elsewhere(base)}, key=lambda path: (path.name, path)
    ):
        path, folder = where / f"{NAME}.json", RunFolder(where)
        with suppress(ValueError, OSError, KeyError):
            content = folder.read_json(path.name)
            if content["base_hash"] != base.run_hash():
                continue
            drawing = b64encode((folder / f"{NAME}.svg").read_bytes()).decode()
            points = [
                {name: value for name, value in row.items() if value is not None} for row in content["groups"]
            ]
            kept = {
                "name": path.parent.name,
                "title": content["title"],
                "summary": content["summary"],
                "points": points,
            }
            found.append({**kept, "figure": f"data:image/svg+xml;base64,{drawing}"})
    return found


def note_comparison(base: RunFolder, folder: RunFolder) -> None:
    """Have the base know of a comparison whose folder is not beside its own, by the way there from it, so
    that both may move together."""
    place, where = base.path.resolve(), folder.path.resolve()
    way = os.path.relpath(where, place)
    if where.parent != place.parent and way not in elsewhere(base):
        base.write_json(ELSEWHERE, {"folders": [*elsewhere(base), way]})


def elsewhere(base: RunFolder) -> list[str]:
    """The comparisons that `note_comparison` was told of; none where its file is broken, as it can be written
    again."""
    with suppress(ValueError, OSError):
        ways = base.read_json(ELSEWHERE).get("folders")
        if isinstance(ways, list) and all(isinstance(way, str) for way in ways):
            return ways
    return []


# ---------------------------------------------------------------- rows


def point_rows(compared: Compared, metrics: Sequence[Metric]) -> list[Row]:
    """A row for every run: what it is, its scores with intervals, and its difference from the reference of
    its own run, two-sided p."""
    return [point_row(point, metrics) for group in in_order(compared) for point in group.points]


def point_row(point: MadePoint, metrics: Sequence[Metric]) -> Row:
    row, main = point.row, metrics[0].name
    low, high = row.main.ci95 or (None, None)
    below, above = row.main.difference_ci95 or (None, None)
    return {
        **{
            "method": point.method,
            "closing": point.closing,
            "learned": int(point.learned),
            "epochs": point.epochs,
            "seed": point.seed,
        },
        **{
            "heads_asked": point.asked,
            "lambda": point.lam,
            "heads_open": row.heads_open,
            "heads_total": row.heads_total,
        },
        **{kind: row.heads_by_kind.get(kind, 0) for kind in KINDS},
        **{main: row.main.value, f"{main}_low": low, f"{main}_high": high, "reference": row.reference},
        **{
            "difference": row.main.difference,
            "difference_low": below,
            "difference_high": above,
            "p_value": row.main.p_value,
        },
        **{metric.name: row.measures[metric.name].value for metric in metrics[1:]},
        **{"loss": point.loss, "run": point.run, "system": row.system},
    }


def group_row(group: Group, compared: Compared, metrics: Sequence[Metric]) -> Row:
    """A point over its seeds: mean, range, intervals, and the paired difference from the reference of so much
    training."""
    reference = compared.reference(group.epochs)
    difference = None if group.method in BASES else group.minus(reference)
    row: Row = {
        "method": group.label,
        "learned": group.learned,
        "epochs": group.epochs,
        "heads": group.heads,
        "lambda": group.lam,
    }
    row |= {
        "seeds": len(group.points),
        "value": group.mean,
        "lowest": group.range[0],
        "highest": group.range[1],
    }
    row |= dict(zip(("low", "high"), group.interval, strict=True)) | {
        "reference": None if difference is None else reference.label
    }
    row |= {"difference": None, "difference_low": None, "difference_high": None, "p_value": None}
    if difference is not None:
        low, high = difference.interval
        row |= {
            "difference": difference.value,
            "difference_low": low,
            "difference_high": high,
            "p_value": difference.p,
        }
    return row | {metric.name: group.mean_of(metric.name) for metric in metrics[1:]} | {"loss": group.loss}


def learned_pairs(compared: Compared) -> list[tuple[Group, Group]]:
    """Groups that were told as many heads and trained for as long: learned gates, and another; of two learned
    ones the better first."""
    pairs = []
    for epochs in compared.all_epochs:
        for heads in compared.counts_asked(epochs):
            groups = compared.at(epochs, heads)
            for place, group in enumerate(groups):
                if group.learned:
                    others = [better for better in groups[:place] if not better.learned] + groups[place + 1 :]
                    pairs += [(group, other) for other in others]
    return pairs


def lead_row(group: Group, other: Group) -> Row:
    """The paired difference of one group from another."""
    difference = group.minus(other)
    low, high = difference.interval
    row: Row = {"method": group.label, "against": other.label, "epochs": group.epochs, "heads": group.heads}
    return row | {
        "difference": difference.value,
        "difference_low": low,
        "difference_high": high,
        "p_value": difference.p,
    }


# ---------------------------------------------------------------- words


def group_cells(group: Group, compared: Compared, metrics: Sequence[Metric]) -> list[str]:
    """The cells of a table's row: HEAD with the score after the seeds, then the other metrics and the
    validation loss."""
    heads = f"{group.heads:g}" if group.lam is None else f"{group.heads:.4g} (λ {group.lam:g})"
    several = len(group.points) > 1
    cells = [
        group.label,
        heads,
        str(len(group.points)),
        f"{group.mean:.2f}",
        interval_text(group.range, ".2f") if several else "",
    ]
    cells.append(interval_text(group.interval, ".1f"))
    if group.method in BASES:
        cells += ["reference" if group is compared.reference(group.epochs) else "", "", ""]
    else:
        difference = group.minus(compared.reference(group.epochs))
        cells += [f"{difference.value:+.2f}", interval_text(difference.interval), f"{difference.p:.3f}"]
    others = [f"{group.mean_of(metric.name):.2f}" for metric in metrics[1:]]
    return [*cells, *others, "" if group.loss is None else f"{group.loss:.4f}"]


def table_head(metrics: Sequence[Metric]) -> list[str]:
    return [*HEAD[:3], metrics[0].title, *HEAD[3:], *(metric.title for metric in metrics[1:]), "valid. loss"]


def groups_with(compared: Compared, epochs: int) -> list[Group]:
    """The groups of so much training, after the bases that they are compared with."""
    bases = [compared.base] + ([compared.continued[epochs]] if epochs in compared.continued else [])
    return bases + [
        group for group in in_order(compared) if group.method not in BASES and group.epochs == epochs
    ]


def markdown(
    compared: Compared,
    metrics: Sequence[Metric],
    sentences: Sequence[str],
    title: str,
    failed: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """The lines of compare.md."""
    lines = [f"# {title}", "", *(f"- {sentence}" for sentence in sentences), ""]
    lines += [f"- no run: {name}" for name in failed] + [""] * bool(failed)
    for epochs in compared.all_epochs:
        rows = (group_cells(group, compared, metrics) for group in groups_with(compared, epochs))
        lines += [f"## {trained(epochs).capitalize()}", "", *markdown_table(table_head(metrics), rows)]
        if ranks := compared.ranks(epochs):
            lines += markdown_table(
                ["method", "mean rank"], ([label, f"{rank:.2f}"] for label, rank in ranks.items())
            )
    signatures = compared.base.points[0].row.measures
    lines += [
        f"- {metric.title} `{signatures[metric.name].signature}`"
        for metric in metrics
        if metric.name in signatures
    ]
    made = ([run, *(fact_cell(name, fact[name]) for name in FACTS)] for run, fact in facts.items())
    return [*lines, "", *markdown_table(["run", *FACTS], made, left=1 + len(FACTS))]


def show_compared(
    compared: Compared, sentences: Sequence[str], *, metrics: Sequence[Metric], title: str
) -> None:
    """Print a table for each amount of training, then the summary."""
    for epochs in compared.all_epochs:
        rows = (group_cells(group, compared, metrics) for group in groups_with(compared, epochs))
        show(columns(f"{title}, {trained(epochs)}", ["method"], table_head(metrics)[1:], rows))
    for sentence in sentences:
        print(sentence)
