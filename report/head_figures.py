"""Figures of heads, each as PNG and SVG: maps of what each head scores, or costs when it is closed, and the
heads that the runs leave open by role and layer (Voita et al. 2019, figures 1, 2, 7 and 8).

Roles can be told apart without colour too: by a letter in maps, by a hatch in bars."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import AsinhNorm, Normalize
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from headgates.analysis.metrics import BLEU, Metric
from headgates.analysis.results import AnalysisResult
from headgates.analysis.roles import FAMILIES, Role
from headgates.analysis.survival import NO_ROLE
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.correlations import BASE_LABEL, run_labels
from headgates.explain.findings import Findings
from headgates.gates import KINDS, HeadMap
from headgates.records.related import MadeRun
from headgates.report.causes import causes_sentence
from headgates.report.drawing import KIND_WORDS, FigureRow, drawing, no_rows
from headgates.report.palette import KIND_COLOURS, KIND_LOOKS, ROLE_COLOURS, SHADES, Look
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.table import number_text

PANELS_ACROSS = 4  # of the figure of causes
ROLE_HATCHES = dict(zip((*FAMILIES, NO_ROLE), ("", "//", "..", "\\\\", ""), strict=True))
ROLE_LETTERS = dict(zip(FAMILIES, "PSRA", strict=True))
SCORE_WORDS = {
    "LRP share": "LRP share within the layer",
    "importance": "importance, l2 within the layer",
    "loss without it": "rise of the loss without the head (nats a sentence)",
}
SIGNIFICANT = 0.01  # the paper's level
FRAMES = {"Holm-adjusted": (2.0, "-"), "raw alone": (1.2, (0, (2, 1.5)))}  # p < SIGNIFICANT: width, line
APART = 0.08  # of a head, between the lines of two layers
TOP = 6.0  # of a column of bars: more labels than this are turned

HeadPlace = tuple[str, int, int]  # kind, layer, head


def draw_all(analysed: AnalysedModel, found: Findings) -> list[Path]:
    """Draw every figure for which there are data, with what it shows as its title; return their paths,
    without a suffix."""
    folder, drawn = analysed.folder / analysed.results_folder, []
    if found.scores:
        total = next(iter(found.scores.values())).heads_total
        title = roles_sentence(found.roles, total) if found.asked else f"{total} heads"
        draw_maps(found.scores, found.roles, folder / "heads", title=title)
        drawn.append(folder / "heads")
    if found.causes is not None:
        draw_causes(found.causes, folder / "causes")
        drawn.append(folder / "causes")
    if found.survival:
        draw_survival(found.survival, folder / "survival", title=survival_sentence(found.survival))
        draw_layers(analysed.made_runs, folder / "retained", title=kinds_sentence(analysed.made_runs[-1]))
        drawn += [folder / "survival", folder / "retained"]
    return drawn


def roles_sentence(roles: Sequence[Role], heads: int) -> str:
    """How many heads have a role, and which."""
    have = {(role.family, role.site, role.head) for role in roles}
    counts = {family: sum(family == each[0] for each in have) for family in FAMILIES}
    named = len({(site, head) for _, site, head in have})
    words = ", ".join(f"{count} {family}" for family, count in counts.items() if count)
    return f"{named} of {heads} heads have a role{f': {words}' if words else ''}"


def survival_sentence(rows: Sequence[FigureRow]) -> str:
    """What is left of each role where the fewest heads are."""
    of_all = [row for row in rows if row["kind"] == "all"]
    fewest = min(of_all, key=lambda row: row["heads_open"])
    last = [row for row in of_all if row["run"] == fewest["run"] and row["at_first"]]
    words = {row["role"]: "without a role" if row["role"] == NO_ROLE else row["role"] for row in last}
    left = ", ".join(f"{row['heads']} of {row['at_first']} {words[row['role']]}" for row in last)
    return f"With {fewest['heads_open']} heads, these stay open: {left}"


def kinds_sentence(run: MadeRun) -> str:
    """What is left of each kind of attention."""
    totals = run.open.map(lambda row: row | True).by_kind()
    left = run.open.by_kind()
    kinds = ", ".join(f"{left[kind]:.0f} of {totals[kind]:.0f} {KIND_WORDS[kind]}" for kind in left)
    return f"With {run.row.heads_open} heads, these stay open: {kinds}"


# ---------------------------------------------------------------- maps


@dataclass(frozen=True)
class HeadColumn:
    """A number for each head. texts, frames: a few letters, and a key of FRAMES, in the cells of some
    heads."""

    label: str
    values: Mapping[HeadPlace, float]
    norm: Normalize
    cmap: str = "cividis"
    texts: Mapping[HeadPlace, str] = field(default_factory=dict)
    frames: Mapping[HeadPlace, str] = field(default_factory=dict)


def draw_maps(
    scores: Mapping[str, HeadMap], roles: Sequence[Role], path: str | Path, *, title: str = ""
) -> None:
    """Draw a column of panels for each score, with the letters of its roles in each head's cell. Raises
    ValueError without a score."""
    letters: dict[HeadPlace, str] = defaultdict(str)
    for family in FAMILIES:  # several roles of one family have one letter
        own = {(role.site.kind, role.site.layer, role.head) for role in roles if role.family == family}
        for place in own:
            letters[place] += ROLE_LETTERS[family]
    columns = []
    for name, head_map in scores.items():
        rows = [((site.kind, site.layer), row.tolist()) for site, row in head_map.items()]
        values = {(*place, head): value for place, row in rows for head, value in enumerate(row)}
        norm = Normalize(0.0, max(map(abs, values.values()), default=0.0) or 1e-9)
        columns.append(HeadColumn(SCORE_WORDS.get(name, name), values, norm, texts=letters))
    found = set("".join(letters.values()))
    words = [f"{letter}  {family}" for family, letter in ROLE_LETTERS.items() if letter in found]
    legend = [Patch(fc="none", ec="none", label=each) for each in words]
    draw_columns(columns, path, legend=legend, title=title)


def draw_matrix(
    rows: Sequence[FigureRow], path: str | Path, *, metric: Metric = BLEU, title: str = ""
) -> None:
    """Draw how removing each head alone changes the metric.

    A cell has a frame if p < 0.01: solid if that holds after Holm's adjustment for all heads tested, else
    dashed. Raises ValueError without a row."""
    values, frames = {}, {}
    for row in rows:
        place = row["kind"], row["layer"], row["head"]
        values[place] = row[f"{metric.name}_difference"]
        if (row["p_value"] or 0) < SIGNIFICANT:
            frames[place] = "Holm-adjusted" if row["p_value_holm"] < SIGNIFICANT else "raw alone"
    widest = max([0.1, *map(abs, values.values())])
    # steeper near 0: one head that costs everything must not leave the others white
    norm = AsinhNorm(linear_width=max(0.25, widest / 20), vmin=-widest, vmax=widest)
    texts = {place: f"{value:+.{1 + (abs(value) < 9.95)}f}" for place, value in values.items()}
    texts = {place: text.replace("-", "−") if float(text) else "0" for place, text in texts.items()}
    label = f"{metric.title} difference without the head"
    legend = [
        Patch(fc="none", ec="black", lw=width, ls=line, label=f"p < {SIGNIFICANT}, {name}")
        for name, (width, line) in FRAMES.items()
    ]
    draw_columns([HeadColumn(label, values, norm, "PuOr", texts, frames)], path, legend=legend, title=title)


def draw_columns(
    columns: Sequence[HeadColumn], path: str | Path, *, legend: Sequence[Patch], title: str
) -> None:
    """Draw a panel for each kind, one below the other, in each column: layers down, heads across."""
    places = [place for each in columns for place in each.values]
    kinds = [kind for kind in KINDS if any(place[0] == kind for place in places)]
    if not kinds:
        raise no_rows("number of a head")
    layers = [1 + max(layer for of, layer, _ in places if of == kind) for kind in kinds]
    heads = 1 + max(head for *_, head in places)
    size = (max(5.2, len(columns) * (0.5 * heads + 1.5)), 0.5 * sum(layers) + 0.85 * len(kinds) + 1.4)
    with drawing(path, size=size, title=title) as figure:
        panels = figure.subplots(len(kinds), len(columns), squeeze=False, height_ratios=layers)
        for across, drawn in enumerate(columns):
            for axes, kind, down in zip(panels[:, across], kinds, layers, strict=True):
                draw_map(axes, drawn, kind, (down, heads))
                if not across:
                    axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind], fontsize=10)
                    axes.set_ylabel("layer")
            panels[-1, across].set_xlabel("head")
            picture, below = panels[-1, across].images[0], list(panels[:, across])
            figure.colorbar(
                picture,
                ax=below,
                label=drawn.label,
                location="bottom",
                shrink=0.75,
                aspect=22,
                ticks=drawn.norm.inverse(np.linspace(0, 1, 7)),
                format="{x:.2f}",
            )
        if legend:
            edge: Any = legend[0].get_edgecolor()
            room = None if edge[3] else 0  # letters without a swatch need no room for one
            figure.legend(
                handles=legend, loc="outside lower center", ncols=4, handlelength=room, handletextpad=room
            )


def draw_map(axes: Axes, drawn: HeadColumn, kind: str, size: tuple[int, int]) -> None:
    values = np.full(size, np.nan)  # (layers, heads)
    mine = {place: value for place, value in drawn.values.items() if place[0] == kind}
    for (_, layer, head), value in mine.items():
        values[layer, head] = value
    picture = axes.imshow(values, norm=drawn.norm, cmap=drawn.cmap, aspect="equal")
    for place, value in mine.items():
        _, y, x = place
        red, green, blue, _ = picture.to_rgba(value)  # type: ignore[arg-type]
        colour = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        frame = drawn.frames.get(place)
        text = drawn.texts.get(place, "")
        weight = "bold" if text.isalpha() or frame == "Holm-adjusted" else "normal"
        look: Any = {"ha": "center", "va": "center", "fontsize": 8, "fontweight": weight}
        axes.text(x, y, text, color=colour, **look)
        if frame:
            width, line = FRAMES[frame]
            edge = withStroke(linewidth=width + 2, foreground="white")  # to be seen on a dark cell
            box = Rectangle((x - 0.44, y - 0.44), 0.88, 0.88, fill=False, zorder=3)
            box.set(linewidth=width, linestyle=line, path_effects=[edge])
            axes.add_patch(box)
    axes.set(
        xticks=range(size[1]), yticks=range(size[0]), xlim=(-0.6, size[1] - 0.4), ylim=(size[0] - 0.4, -0.6)
    )
    axes.set_xticks(np.arange(1, size[1]) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, size[0]) - 0.5, minor=True)
    axes.grid(True, which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="both", length=0, labelsize=8)
    axes.spines[:].set_visible(False)


# ---------------------------------------------------------------- what is left open


def draw_survival(rows: Sequence[FigureRow], path: str | Path, *, title: str = "") -> None:
    """Draw the rows of `analysis.survival.survivors`: a panel for each kind, a bar for each run, divided by
    the roles of its open heads. A head of several roles is divided among them. Raises ValueError without a
    row."""
    if not rows:
        raise no_rows("survivor")
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    runs = list(dict.fromkeys(row["run"] for row in rows))
    roles = [
        role for role in (*FAMILIES, NO_ROLE) if any(row["role"] == role and row["score"] for row in rows)
    ]
    size = max(4.6, (0.62 * (len(runs) + 1) + 1.0) * len(kinds)), 4.6
    with drawing(path, size=size, title=title) as figure:
        panels = figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0]
        for axes, kind in zip(panels, kinds, strict=True):
            below = np.zeros(len(runs))
            for role in roles:
                mine = [row for row in rows if (row["kind"], row["role"]) == (kind, role)]
                tall = np.array([sum(row["score"] for row in mine if row["run"] == run) for run in runs])
                look: Any = {"color": ROLE_COLOURS[role].light, "hatch": ROLE_HATCHES[role], "linewidth": 0.7}
                axes.bar(range(len(runs)), tall, 0.72, below, label=role, edgecolor="white", **look)
                below += tall
            axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind], fontsize=11)
            labels = [f"{run}\n{n:.0f} open" for run, n in zip(runs, below, strict=True)]
            axes.set_xticks(range(len(runs)), labels, fontsize=8.5, rotation=60 * (len(runs) > TOP))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].set_ylabel("open heads")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def draw_layers(runs: Sequence[MadeRun], path: str | Path, *, title: str = "") -> None:
    """Draw the number of open heads in the base and in every run: a panel for each kind, a line for each
    layer. Lines stand a little apart, so that equal numbers do not hide one another. Raises ValueError
    without a run."""
    series: dict[str, list[Series]] = {}
    sites = sorted({site for run in runs for site in run.open})
    middle = max((site.layer for site in sites), default=0) / 2
    for site in sites:
        counts = [int(run.open[site].sum()) if site in run.open else site.heads for run in runs]
        look = Look(SHADES[site.layer % len(SHADES)], "os^Dv<>PX*"[site.layer % 10])
        values = np.array([site.heads, *counts]) + APART * (middle - site.layer)
        line = Series(f"layer {site.layer}", look, range(len(runs) + 1), values, joined=True)
        series.setdefault(site.kind, []).append(line)
    panels = [Panel(KIND_WORDS[kind], lines) for kind, lines in series.items()] or [Panel("", [])]
    labels = {float(i): name for i, name in enumerate([BASE_LABEL, *run_labels(runs)])}
    draw_scatter([panels], path, title=title, xlabel="", ylabel="open heads", fewer=False, ticks=labels)


def draw_causes(result: AnalysisResult, path: str | Path) -> None:
    """Draw a panel for each score: every head's place by it against its place by the exact effect, 1 the
    most."""
    exact, *others = result.head_maps
    places = {name: places_of(effects) for name, effects in result.head_maps.items()}
    panels = []
    for name, row in zip(others, result.tables["causes"][1:], strict=True):
        pair = places[name], places[exact]
        series = [
            Series(KIND_WORDS[kind], KIND_LOOKS[kind], x, y)
            for kind in pair[0].kinds
            for x, y in [[each.select([kind]).flat().numpy() for each in pair]]
        ]
        title = f"{name}: {number_text(row['spearman'], '+.2f') or 'all heads alike'}"
        panels.append(Panel(title, series))
    panels += [Panel("", []) for _ in range(-len(panels) % PANELS_ACROSS)]
    draw_scatter(
        [panels[start : start + PANELS_ACROSS] for start in range(0, len(panels), PANELS_ACROSS)],
        path,
        title=causes_sentence(result),
        xlabel="place of the head by the score",
        ylabel="place by what it costs",
        fewer=False,
    )


def places_of(effects: HeadMap) -> HeadMap:
    """The place of each head, 1 for the largest number; of equal ones the first comes first."""
    order = effects.flat().argsort(descending=True, stable=True)
    return effects.like(order.argsort() + 1)
