"""Figures of what heads do, each as PNG and SVG: maps of scores with role letters, and the heads that the
runs leave open by role and layer (Voita et al. 2019, figures 1, 2, 7 and 8).

Roles can be told apart without colour too: by a letter in maps, by a hatch in bars."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from headgates.analysis.roles import FAMILIES, Role
from headgates.analysis.survival import NO_ROLE
from headgates.gates import KINDS, HeadMap, HeadSite
from headgates.report.drawing import KIND_WORDS, Row, drawing, no_rows
from headgates.report.palette import KIND_COLOURS, ROLE_COLOURS, RULE, SHADES
from headgates.workbench.analysed_model import AnalysedModel
from headgates.workbench.correlations import BASE_LABEL, run_labels
from headgates.workbench.related import GateRun

ROLE_HATCHES = dict(zip((*FAMILIES, NO_ROLE), ("", "//", "..", "\\\\", ""), strict=True))
ROLE_LETTERS = dict(zip(FAMILIES, "PSRA", strict=True))
SCORE_WORDS = {"LRP share": "LRP share within the layer", "importance": "importance, l2 within the layer"}
MOST_LABELS = 6  # under a bar: labels of more runs are turned


def draw_all(
    analysed: AnalysedModel, scores: Mapping[str, HeadMap], roles: Sequence[Role], survival: Sequence[Row]
) -> list[Path]:
    """Draw every figure for which there are data; return their paths, without a suffix."""
    name, folder = analysed.folder.path.resolve().name, analysed.folder / analysed.results_folder
    drawn = []
    if scores:
        draw_maps(scores, roles, folder / "heads", title=f"{name}, {analysed.system}: what its heads do")
        drawn.append(folder / "heads")
    if survival:
        draw_survival(survival, folder / "survival", title=f"{name}: roles of the heads that are left open")
        draw_layers(analysed.gate_runs, folder / "retained", title=f"{name}: open heads by kind and layer")
        drawn += [folder / "survival", folder / "retained"]
    return drawn


# ---------------------------------------------------------------- maps


def draw_maps(
    scores: Mapping[str, HeadMap], roles: Sequence[Role], path: str | Path, *, title: str = ""
) -> None:
    """Draw a column of panels for each score, with a panel for each kind: layers down, heads across, the
    letters of its roles in each cell.

    Raises ValueError without a score."""
    sites = {site for head_map in scores.values() for site in head_map}
    kinds = [kind for kind in KINDS if any(site.kind == kind for site in sites)]
    if not kinds:
        raise no_rows("score of a head")
    layers = [1 + max(site.layer for site in sites if site.kind == kind) for kind in kinds]
    widest = max(site.heads for site in sites)
    letters = role_letters(roles)
    size = (max(5.0, len(scores) * (0.42 * widest + 1.5)), 0.5 * sum(layers) + 0.85 * len(kinds) + 1.2)
    with drawing(path, size=size, title=title) as figure:
        panels = figure.subplots(len(kinds), len(scores), squeeze=False, height_ratios=layers)
        for across, (name, head_map) in enumerate(scores.items()):
            top = max(float(head_map.flat().abs().max()) if head_map.heads_total else 0.0, 1e-9)
            for down, kind in enumerate(kinds):
                axes = panels[down, across]
                rows = {site: row for site, row in head_map.items() if site.kind == kind}
                picture = draw_map(axes, rows, (layers[down], widest), top, letters)
                axes.set_title(
                    f"{KIND_WORDS[kind]}" if across == 0 else "", color=KIND_COLOURS[kind], fontsize=10
                )
                axes.set_ylabel("layer" if across == 0 else "")
            panels[-1, across].set_xlabel("head")
            figure.colorbar(
                picture,
                ax=list(panels[:, across]),
                shrink=0.75,
                label=SCORE_WORDS.get(name, name),
                location="bottom",
                aspect=22,
            )
        shown = [family for family in FAMILIES if any(role.family == family for role in roles)]
        handles = [
            Patch(facecolor="none", edgecolor="none", label=f"{ROLE_LETTERS[family]}  {family}")
            for family in shown
        ]
        if handles:
            figure.legend(
                handles=handles, loc="outside lower center", ncols=4, handlelength=0, handletextpad=0
            )


def draw_map(
    axes: Axes,
    rows: Mapping[HeadSite, Tensor],
    size: tuple[int, int],
    top: float,
    letters: Mapping[tuple[HeadSite, int], str],
) -> AxesImage:
    values = np.full(size, np.nan)  # (layers, heads)
    for site, row in rows.items():
        values[site.layer, : site.heads] = row.numpy()
    picture = axes.imshow(values, vmin=0.0, vmax=top, cmap="cividis", aspect="equal")
    for site in rows:
        for head in range(site.heads):
            dark = values[site.layer, head] < 0.55 * top
            look: Any = {
                "ha": "center",
                "va": "center",
                "fontsize": 8,
                "color": "white" if dark else "black",
                "fontweight": "bold",
            }
            axes.text(head, site.layer, letters.get((site, head), ""), **look)
    for edges, line in ((range(1, size[1]), axes.axvline), (range(1, size[0]), axes.axhline)):
        for edge in edges:
            line(edge - 0.5, color="white", linewidth=1.5)
    axes.set(xticks=range(size[1]), yticks=range(size[0]))
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return picture


def role_letters(roles: Sequence[Role]) -> dict[tuple[HeadSite, int], str]:
    """Return the letters of the families of each head's roles; several roles of one family have one
    letter."""
    letters: dict[tuple[HeadSite, int], str] = {}
    for family in FAMILIES:
        for site, head in sorted({(role.site, role.head) for role in roles if role.family == family}):
            letters[site, head] = letters.get((site, head), "") + ROLE_LETTERS[family]
    return letters


# ---------------------------------------------------------------- what is left open


def draw_survival(rows: Sequence[Row], path: str | Path, *, title: str = "") -> None:
    """Draw the rows of `analysis.survival.survivors`: a panel for each kind, a bar for each run, divided by
    the roles of its open heads. A head of several roles is divided among them. Raises ValueError without a
    row."""
    if not rows:
        raise no_rows("survivor")
    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    runs = list(dict.fromkeys(row["run"] for row in rows))
    roles = [role for role in (*FAMILIES, NO_ROLE) if any(row["role"] == role for row in rows)]
    with drawing(path, size=panel_size(len(runs), len(kinds)), title=title) as figure:
        panels = kind_panels(figure, kinds)
        for kind, axes in panels.items():
            below = np.zeros(len(runs))
            for role in roles:
                at = (("kind", kind), ("role", role))
                mine = [row for row in rows if all(row[name] == value for name, value in at)]
                tall = np.array(
                    [sum(float(row["score"]) for row in mine if row["run"] == run) for run in runs]
                )
                axes.bar(range(len(runs)), tall, bottom=below, width=0.72, **patch_look(role))
                below += tall
            label_below(axes, [f"{run}\n{int(n)} open" for run, n in zip(runs, below.round(), strict=True)])
        panels[kinds[0]].set_ylabel("open heads")
        handles = [Patch(label=role, **patch_look(role)) for role in roles]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)


def draw_layers(runs: Sequence[GateRun], path: str | Path, *, title: str = "") -> None:
    """Draw the number of open heads in the base and in every run: a panel for each kind, a line for each
    layer.

    Raises ValueError without a run."""
    if not runs:
        raise no_rows("run with gates")
    kinds = [kind for kind in KINDS if any(site.kind == kind for run in runs for site in run.open)]
    with drawing(path, size=panel_size(len(runs), len(kinds)), title=title) as figure:
        panels = kind_panels(figure, kinds)
        for kind, axes in panels.items():
            for site in sorted({site for run in runs for site in run.open if site.kind == kind}):
                tall = [int(run.open[site].sum()) if site in run.open else site.heads for run in runs]
                colour, marker = SHADES[site.layer % len(SHADES)].light, "os^Dv<>PX*"[site.layer % 10]
                label = f"layer {site.layer}"
                axes.plot([site.heads, *tall], color=colour, marker=marker, linewidth=1.6, label=label)
            axes.grid(True, axis="y", color=RULE.light, linewidth=0.8)
            label_below(axes, [BASE_LABEL, *run_labels(runs)])
            axes.set_xlim(-0.4, len(runs) + 0.4)
        most = max(site.heads for run in runs for site in run.open)
        panels[kinds[0]].set(ylabel="open heads", ylim=(-0.04 * most, 1.04 * most))
        lines = {line.get_label(): line for axes in panels.values() for line in axes.get_lines()}
        figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=4)


def panel_size(runs: int, kinds: int) -> tuple[float, float]:
    return max(4.6, (0.62 * (runs + 1) + 1.0) * kinds), 4.6


def kind_panels(figure: Figure, kinds: Sequence[str]) -> dict[str, Axes]:
    """A panel for each kind, with its name above it."""
    panels = dict(zip(kinds, figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0], strict=True))
    for kind, axes in panels.items():
        axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind], fontsize=11)
    return panels


def patch_look(role: str) -> dict[str, Any]:
    return {
        "facecolor": ROLE_COLOURS[role].light,
        "hatch": ROLE_HATCHES[role],
        "edgecolor": "white",
        "linewidth": 0.7,
    }


def label_below(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels below the positions 0, 1, ... of the horizontal axis."""
    turned: Any = {"rotation": 60, "ha": "right"} if len(labels) > MOST_LABELS else {}
    axes.set_xticks(range(len(labels)), labels=list(labels), fontsize=8.5, **turned)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_axisbelow(True)
