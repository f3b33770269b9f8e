"""What `prune.py --speedup` made: a table on the terminal, the shape of each model, a figure of quality
against measured speed, and the same in the run folder.

    speed/planned.json, .csv   a row a model: what was asked, predicted and measured, and its quality
    speed/planned.png, .svg    the metric against how many times as fast a model is
"""

from collections.abc import Sequence

from headgates.lab.measure import interval_text as range_text
from headgates.pruning.unpruned_model import UnprunedModel
from headgates.records.row import ResultRow
from headgates.records.table import Row, write_table
from headgates.report.palette import BLACK, VERMILION, Look
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.shapes import shapes_table
from headgates.report.table import interval_text, show, speed_sentence

NAME = "speed/planned"


def write_planned(unpruned: UnprunedModel, rows: Sequence[ResultRow], timed: str) -> None:
    """Write and print the unpruned model's row and those of the plans. timed: how, in words."""
    base, planned = rows[0], [row for row in rows if "speed" in row.others]
    metric, *others = unpruned.task.metrics
    title = f"{unpruned.folder.path.name}: {metric.title} and speed without training, {timed}"
    cells = []
    for row in rows:
        speed = row.others.get("speed")
        cells.append(
            [
                "unpruned" if speed is None else f"{speed['budget']} {speed['asked']:g}",
                "" if speed is None else f"{speed['predicted']:.2f}",
                "" if speed is None else range_text(speed["measured"]),
                "" if speed is None else f"{speed['tokens']:.2f}",
                f"{row.parameters or 0:,}",
                f"{row.main.value:.2f}",
                "" if speed is None else f"{row.main.difference:+.2f}",
                "" if speed is None else interval_text(row.main.difference_ci95),
                *(f"{row.measures[each.name].value:.2f}" for each in others),
            ]
        )
    unit = planned[0].others["speed"]["unit"]
    less = "predicted (x)" if unit == "milliseconds" else f"planned, fewer {unit} (x)"
    head = ["plan", less, "measured (x)", "tokens (x)", "parameters", metric.title]
    show(title, [*head, "difference", "95%", *(each.title for each in others)], cells)
    shapes = {f"{row.others['speed']['asked']:g}": row.others["speed"]["shape"] for row in planned}
    whole = {"open": planned[0].others["speed"]["shape"]["of"], "dropped": {}}
    shapes_table("shapes", {"unpruned": whole, **shapes})
    for row in planned:
        print(f"{row.others['speed']['asked']:g}: {speed_sentence(row, base.parameters or 1)}")
    folder = unpruned.folder
    content = {"timed": timed, "rows": [row.to_json() for row in rows], **unpruned.facts}
    folder.write_json(f"{NAME}.json", content)
    write_table(folder, f"{NAME}.csv", [table_row(row) for row in planned])
    if len(planned) > 1:
        draw_planned(unpruned, base, planned, title)
        print(f"figure: {folder / NAME}.png")


def table_row(row: ResultRow) -> Row:
    speed = row.others["speed"]
    found: Row = {name: speed[name] for name in ("budget", "asked", "predicted", "loss", "summed_loss")}
    found |= {f"measured_{name}": speed["measured"][name] for name in ("median", "lowest", "highest")}
    found |= {"tokens": speed["tokens"], "parameters": row.parameters, "open": row.open_words}
    for name, measure in row.measures.items():
        found |= {name: measure.value, f"{name}_difference": measure.difference}
    return found


def draw_planned(unpruned: UnprunedModel, base: ResultRow, planned: Sequence[ResultRow], title: str) -> None:
    """The figure; faster models to the right."""
    ends = [row.main.ci95 or (row.main.value, row.main.value) for row in planned]
    series = Series(
        "planned, without training",
        Look(VERMILION, "o"),
        [row.others["speed"]["measured"]["median"] for row in planned],
        [row.main.value for row in planned],
        [low for low, _ in ends],
        [high for _, high in ends],
        # not joined: a model that lost too much writes more, and is slower than one that was asked for less
        notes=[f"{row.others['speed']['budget']} {row.others['speed']['asked']:g}" for row in planned],
    )
    whole = Series("unpruned", Look(BLACK, "*"), [1.0], [base.main.value])
    metric = unpruned.task.metrics[0]
    draw_scatter(
        [[Panel("", [whole, series])]],
        unpruned.folder / NAME,
        title=title,
        xlabel="times as fast as the unpruned model, measured",
        ylabel=metric.title,
        fewer=False,
    )
