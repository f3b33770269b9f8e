"""A speed report as a page, made from the numbers alone: tables, the figure, and sentences on where removing
heads does not help."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.report.drawing import drawing
from headgates.report.palette import BLACK, BLUE, GREEN, PINK, RULE, VERMILION
from headgates.report.speed.measure import interval_text, median_and_range
from headgates.workbench.table import markdown_table

Row = Mapping[str, Any]
Report = Mapping[str, Any]

COLOURS = {
    "": BLACK.light,
    "onnx": BLUE.light,
    "ct2": VERMILION.light,
    "ct2-int8": GREEN.light,
}  # of an engine
MASKED = PINK.light
MARKERS = {"dense": ("o", (0, (3, 2))), "masked": ("X", (0, (1, 1))), "removed": ("s", "-")}


# ---------------------------------------------------------------- what follows from the rows


def pooled(rows: Sequence[Row], system: str, beam: int, batch: int) -> dict[str, Any]:
    """Sentences per second over all lengths together, round by round, as `median_and_range`."""
    mine = [row for row in rows if (row["system"], row["beam"], row["batch"]) == (system, beam, batch)]
    rounds = zip(*(row["seconds"] for row in mine), strict=True)
    return median_and_range([sum(row["sentences"] for row in mine) / sum(seconds) for seconds in rounds])


def in_order(rows: Iterable[Row], name: str) -> list[Any]:
    """The different values of a column, as they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def findings(report: Report) -> list[str]:
    """Sentences on what is saved, in how many settings the model without its closed heads is faster and
    slower, and what masks cost."""
    words = {name: system["words"] for name, system in report["systems"].items()}
    removed = [row for row in report["rows"] if row["system"] == "removed"]
    shares, heads = [row["saved_share"] for row in removed], report["heads"]
    low, high = min(shares), max(shares)
    sentences = [
        f"{heads['closed']} of {heads['total']} attention heads are removed. That saves {percent(low)} to {percent(high)} of the "
        f"multiply-adds; a model whose time went with these would be {1 / (1 - low):.2f} to {1 / (1 - high):.2f} times as fast."
    ]
    for system in [name for name in words if name.startswith("removed")]:
        rows = [row for row in report["rows"] if row["system"] == system]
        sentences.append(f"{words[system]}: {verdict(rows, words[report['systems'][system]['against']])}")
    masked = [row for row in report["rows"] if row["system"] == "masked"]
    over_masked = between([row["speedup_over_masked"] for row in removed])
    sentences.append(
        f"{words['masked']}: {verdict(masked, words['dense'])} Removed, with the same outputs, runs at {over_masked} its speed."
    )
    return sentences


def verdict(rows: Sequence[Row], against: str) -> str:
    """In how many settings `rows`, of one system, are faster than its dense twin, called `against`, and in
    how many slower.

    It counts as faster or slower where all rounds agree: one round that says otherwise may be all that the
    machine's other work left."""
    faster, slower = (
        sum(decided)
        for decided in zip(
            *((r["speedup"]["lowest"] > 1, r["speedup"]["highest"] < 1) for r in rows), strict=True
        )
    )
    return (
        f"faster than {against} in {faster} of {len(rows)} settings and slower in {slower}; in the other {len(rows) - faster - slower} the "
        f"rounds do not agree. It runs at {between([row['speedup'] for row in rows])} the speed of {against}."
    )


def between(ratios: Sequence[Row]) -> str:
    """The lowest, the highest and the median of the medians."""
    medians = [ratio["median"] for ratio in ratios]
    return f"{min(medians):.2f} to {max(medians):.2f} times (median {statistics.median(medians):.2f})"


def verb(report: Report) -> str:
    """What the systems do with a sentence."""
    return "translate" if report.get("searches", True) else "label"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


# ---------------------------------------------------------------- tables


def page(report: Report, figure: str) -> str:
    """report.md."""
    lengths = "; ".join(
        f"{name}: {low} to {high} pieces, {count} sentences"
        for name, (low, high, count) in report["lengths"].items()
    )
    setup = report["settings"]
    lines = [
        f"# How fast is {report['run']}?",
        "",
        f"Measured on {report['device']}, on the CPU with {report['threads']} threads, in fp32 unless int8 is said. The sentences are test "
        f"sentences of {report['corpus']} by length in source pieces ({lengths}). All systems {verb(report)} the same sentences in turns, "
        f"{setup['repeats']} rounds after one of warm-up. Numbers are medians of the rounds, with the lowest and the highest in brackets.",
        "",
        f"![Sentences per second against the batch size]({figure})",
        "",
        "## Where pruning helps, and where it does not",
        "",
        *WORDS_USED,
        "",
        *(f"- {sentence}" for sentence in report["findings"]),
        *(f"- {words} is left out: {why}" for words, why in report["left_out"].items()),
        "",
        "## The systems",
        "",
        *systems_table(report),
        f"Memory is the largest resident set of a fresh process that loads the system and {verb(report)}s one batch of every setting, "
        "the largest last. What the interpreter, torch and the runtime take before anything is loaded is in the column beside it"
        f"{bare_words(report)}.",
        "",
    ]
    for beam in in_order(report["rows"], "beam"):
        of_beam = f", beam {beam}" if report.get("searches", True) else ""
        lines += [f"## Sentences per second{of_beam}, all lengths", "", *speed_table(report, beam)]
    promise = PROMISE.format(searched=SEARCHED if report.get("searches", True) else "")
    lines += [
        "## How much of what the multiply-adds promise is reached",
        "",
        promise,
        "",
        *gains_table(report),
    ]
    lines += ["## Every number", "", *all_table(report)]
    made_by = f"`{report['command']}`, commit {report['commit']}, {report['date']}, "
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return "\n".join([*lines, made_by + versions, ""])


WORDS_USED = [
    "*dense* is the whole model. *masked* computes the closed heads too, and then sets what they say to 0. *removed* no longer has their "
    "weights. A setting is a beam width, a sentence length and a batch size; every setting stands in the tables below.",
]
PROMISE = (
    "ideal: how many times as fast removed would be if time went with the multiply-adds{searched}. Then, for each engine, how many times "
    "as fast removed is as dense, and which share of the time that the ideal saves is saved in fact (1 is all of it; below 0, removed is "
    "slower)."
)
SEARCHED = ", which are counted for the sentences as each of the two models translated them"


def systems_table(report: Report) -> list[str]:
    rows = []
    for name, system in report["systems"].items():
        base = system["memory"]["imports"]
        peak = max(
            (row["peak_memory"] for row in report["rows"] if row["system"] == name and row["peak_memory"]),
            default=None,
        )
        own = None if peak is None else peak - base
        rows.append(
            [
                system["words"],
                f"{system['parameters']:,}",
                *map(mebibytes, (system["file_bytes"], peak, base, own)),
            ]
        )
    return markdown_table(
        ["system", "parameters", "file MiB", "peak memory MiB", "imports MiB", "peak without them"], rows
    )


def bare_words(report: Report) -> str:
    bare = [
        system["memory"]["interpreter"]
        for system in report["systems"].values()
        if system["memory"]["interpreter"]
    ]
    return f" (the interpreter alone: {mebibytes(max(bare))} MiB)" if bare else ""


def speed_table(report: Report, beam: int) -> list[str]:
    batches = in_order(report["rows"], "batch")
    rows = []
    for name, system in report["systems"].items():
        speeds = [pooled(report["rows"], name, beam, batch) for batch in batches]
        rows.append(
            [system["words"], *(interval_text(speed, 0 if speed["median"] >= 100 else 1) for speed in speeds)]
        )
    return markdown_table(["system", *(f"batch {batch}" for batch in batches)], rows)


def gains_table(report: Report) -> list[str]:
    """A row for each setting, two columns for each engine."""
    removed = [name for name in report["systems"] if name.startswith("removed")]
    head = ["beam", "length", "batch", "ideal"]
    for name in removed:
        engine = report["systems"][name]["words"].removeprefix("removed, ")
        head += [engine, "share of ideal"]
    rows = []
    cells = {(row["system"], row["beam"], row["length"], row["batch"]): row for row in report["rows"]}
    for (system, *setting), row in cells.items():
        if system == "removed":
            line = [*setting, f"{1 / (1 - row['saved_share']):.2f}"]
            for name in removed:
                mine = cells[name, *setting]
                share = mine["share_of_ideal"]
                line += [interval_text(mine["speedup"]), "" if share is None else f"{share['median']:.2f}"]
            rows.append(line)
    return markdown_table(head, rows, left=2)


def all_table(report: Report) -> list[str]:
    head = ["system", "length", "beam", "batch", "sentences/s", "ms a batch", "peak MiB"]
    head += ["times dense", "saved", "ideal", "share of ideal", "same"]
    rows = []
    for row in report["rows"]:
        speed, saved, share = row["sentences_per_second"], row["saved_share"], row["share_of_ideal"]
        line = [report["systems"][row["system"]]["words"], row["length"], row["beam"], row["batch"]]
        line += [interval_text(speed, 1), interval_text(row["latency_ms"], 1), mebibytes(row["peak_memory"])]
        line += (
            ["", "", ""]
            if saved is None
            else [interval_text(row["speedup"]), percent(saved), f"{1 / (1 - saved):.2f}"]
        )
        rows.append([*line, "" if share is None else interval_text(share), percent(row["same_translations"])])
    note = "same: share of the sentences that come out as from the PyTorch model of the same weights."
    return [*markdown_table(head, rows, left=2), note, ""]


# ---------------------------------------------------------------- figure


def draw(report: Report, path: str | Path) -> None:
    """Sentences per second against the batch size, all lengths together: a panel for each beam, a line for
    each system."""
    rows = report["rows"]
    beams, batches = in_order(rows, "beam"), in_order(rows, "batch")
    with drawing(
        path, size=(5.2 * max(len(beams), 1.4), 5.6), title=f"{report['run']}: sentences per second"
    ) as figure:
        panels = figure.subplots(1, len(beams), squeeze=False, sharey=True)[0]
        for axes, beam in zip(panels, beams, strict=True):
            for name, system in report["systems"].items():
                kind, _, engine = name.partition("-")
                colour = MASKED if kind == "masked" else COLOURS[engine]
                marker, line = MARKERS[kind]
                speeds = [pooled(rows, name, beam, batch) for batch in batches]
                low, high = ([speed[end] for speed in speeds] for end in ("lowest", "highest"))
                axes.fill_between(batches, low, high, color=colour, alpha=0.12, linewidth=0)
                face = colour if kind == "removed" else "white"
                look: Any = {"color": colour, "marker": marker, "linestyle": line, "markerfacecolor": face}
                medians = [speed["median"] for speed in speeds]
                axes.plot(
                    batches, medians, label=system["words"], markersize=6, linewidth=1.7, zorder=4, **look
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(batches, labels=[str(batch) for batch in batches])
            axes.minorticks_off()
            axes.set_title(
                "" if not report.get("searches", True) else "greedy" if beam == 1 else f"beam {beam}"
            )
            axes.set_xlabel("sentences at once")
            axes.grid(True, color=RULE.light, linewidth=0.8)
            axes.set_axisbelow(True)
        panels[0].set_ylabel("sentences per second")
        from_powers(panels[0])
        figure.legend(
            *panels[0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            handlelength=3.2,
            fontsize=9.5,
        )


def from_powers(axes: Any) -> None:
    """Plain numbers on a logarithmic axis: 1, 2 and 5 of every power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
