# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1. Which heads died, and when
#
# `fit.py` puts a gate on every attention head of a trained translation model and goes on training. Every head that is expected
# to be open costs a little (λ, in nats per target token), so a head stays open only while it saves more than it costs. This
# notebook shows how the gates of one run went: which heads closed, when, and what closing them did to the model.
#
# It reads one run folder and nothing else. Another run: change `RUN`, or set `HEADGATES_RUN` before starting Jupyter.

# %%
import os
import sys
from pathlib import Path

sys.path.insert(0, str(next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "gates/headmap.py").is_file())))

import matplotlib.pyplot as plt
import numpy as np
import torch

from gates import KINDS, HeadSite
from gates.hard_concrete import full_prob, open_prob
from notebooks.tables import table
from report.drawing import KIND_WORDS, LOOK
from report.head_figures import draw_map
from report.palette import KIND_COLOURS
from report.report_data import gate_paths
from runfolder.folder import RunFolder
from runfolder.table import read_table

plt.rcParams.update({**LOOK, "font.size": 9, "figure.dpi": 90})
RUN = os.environ.get("HEADGATES_RUN", "examples/toy_run/toy-en-de-l0-0.05-s1")

# %%
run = RunFolder.open(Path(sys.path[0]) / RUN)
config, paths = run.config(), gate_paths(run)  # (site, head) -> its log α, every 20 steps
if not paths:
    raise ValueError(f"{run.path.name} has no gates_history.npz; expected a run of fit.py with --gate l0")
heads = list(paths)
kind_of = {head: head[0].split(".")[2] for head in heads}
kinds = [kind for kind in KINDS if kind in kind_of.values()]

# the history up to the checkpoint that was kept, and then the gates of that checkpoint
rows = {row["system"]: row for row in run.read_json("result.json")["rows"]}
stage = rows[run.read_json("result.json")["system"]]["stage"]
end = stage["steps"] * (stage["best_epoch"] + 1) // stage["epochs"]
before = [number for number, step in enumerate(paths[heads[0]]["steps"]) if step < end]
steps = np.array([*(paths[heads[0]]["steps"][number] for number in before), end])
kept = {at: round(run.read_json("gates.json")["sites"][at[0]][at[1]]["log_alpha"], 3) for at in heads}  # as the history is rounded
log_alpha = torch.tensor([[*(paths[at]["log_alpha"][number] for number in before), kept[at]] for at in heads])  # (heads, steps)
print(f"{run.path.name}: λ {config['lambda']:g}, {len(heads)} heads with gates, {len(steps)} recordings over {end} steps")

# %% [markdown]
# ## The gates over training
#
# Each gate has one learned number, log α. Far above 0 the head is open, far below 0 it is shut; at 0 it turns over, and between
# the two dotted lines a gate at test time lies somewhere between 0 and 1. All gates start open. Training adds noise to them, so
# a head whose output the translation can do without slides down under the price, and one that is needed is pushed back up.
#
# Solid lines are heads that end open, grey dashed lines heads that end shut. Where a vertical line stands, the gates were
# settled: from there on each is exactly 0 or 1, and only the weights go on learning.

# %%
gates = config["gates"]
shape = {name: gates[name] for name in ("beta", "gamma", "zeta")}
p_open = open_prob(log_alpha, **shape)
is_open = (full_prob(log_alpha, **shape) > 1 - p_open).numpy()  # (heads, steps): what is decided if training ends here
metrics = [row for row in read_table(run, "metrics.csv") if row["stage"] == "gates"]
epoch_ends = [row["step"] + 1 for row in metrics if row.get("val/loss") is not None]
moving = np.flatnonzero((log_alpha[:, 1:] != log_alpha[:, :-1]).any(0))
settled = next((end for end in epoch_ends[:-1] if len(moving) and end >= steps[moving[-1]]), None)
edge = np.log((1 - gates["gamma"]) / (gates["zeta"] - 1))  # of the open interval in which the test gate is neither 0 nor 1

figure, panels = plt.subplots(1, len(kinds), figsize=(10.5, 3.4), sharey=True, squeeze=False, layout="constrained")
for axes, kind in zip(panels[0], kinds, strict=True):
    for number, head in enumerate(heads):
        if kind_of[head] == kind:
            alive = is_open[number, -1]
            look = {"color": KIND_COLOURS[kind], "zorder": 3} if alive else {"color": "#888888", "linestyle": "--"}
            axes.plot(steps, log_alpha[number], linewidth=1.1, alpha=0.85, **look)
    axes.axhline(0, color="black", linewidth=0.8)
    for y in (-edge, edge):
        axes.axhline(y, color="black", linewidth=0.7, linestyle=":")
    if settled is not None:
        axes.axvline(settled, color="black", linewidth=0.7)
        axes.text(settled, 0.99, " settled", transform=axes.get_xaxis_transform(), fontsize=7.5, va="top")
    mine = [is_open[number, -1] for number, head in enumerate(heads) if kind_of[head] == kind]
    axes.set_title(f"{KIND_WORDS[kind]}: {sum(mine)} of {len(mine)} stay", color=KIND_COLOURS[kind])
    axes.set_xlabel("step")
panels[0, 0].set_ylabel("log α")
plt.show()

# %% [markdown]
# ## The same as one picture: every head a row
#
# The colour is the probability that the gate is open. Rows are sorted by the time of closing, so the staircase of dark cells is
# the story of the run: how early the first heads went, and how long the last ones held out. A white tick marks the step from
# which a head stayed shut for good. Rows that are dark for a while and bright again are heads that were nearly lost and came
# back.


# %%
def closing_step(open_now: np.ndarray) -> int | None:
    """The first recorded step from which the head is shut to the end; None if it ends open."""
    if open_now[-1]:
        return None
    opened = np.flatnonzero(open_now)
    return int(steps[opened[-1] + 1]) if len(opened) else int(steps[0])


died = {head: closing_step(is_open[number]) for number, head in enumerate(heads)}
row_of = {head: number for number, head in enumerate(heads)}
order = sorted(heads, key=lambda head: (died[head] is None, died[head] or 0, float(log_alpha[row_of[head], -1])))

most = max(sum(kind == other for other in kind_of.values()) for kind in kinds)
figure, panels = plt.subplots(1, len(kinds), figsize=(10.5, 1.2 + 0.17 * most), squeeze=False, layout="constrained")
for axes, kind in zip(panels[0], kinds, strict=True):
    mine = [head for head in order if kind_of[head] == kind]
    values = p_open[[row_of[head] for head in mine]].numpy()
    picture = axes.pcolormesh(steps, np.arange(len(mine)), values, vmin=0, vmax=1, cmap="cividis", shading="nearest", rasterized=True)
    for row, head in enumerate(mine):
        if died[head] is not None:
            axes.plot([died[head]] * 2, [row - 0.45, row + 0.45], color="white", linewidth=1.6)
    axes.invert_yaxis()
    if len(mine) <= 48:
        axes.set_yticks(range(len(mine)), [f"layer {head[0].split('.')[1]}, head {head[1]}" for head in mine], fontsize=6.5)
    axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind])
    axes.set_xlabel("step")
figure.colorbar(picture, ax=panels[0, -1], label="P(open)")
plt.show()

# %% [markdown]
# ## The order of closing
#
# The earlier a head closes, the less the model misses it at this price. Times are those of the recordings, so heads with the
# same step closed within the same few steps.

# %%
gone = [head for head in order if died[head] is not None]
table([{"": place + 1, "head": f"{head[0]}.{head[1]}", "shut from step": died[head]} for place, head in enumerate(gone)])

# %%
by_kind = []
for kind in kinds:
    times = [died[head] for head in heads if kind_of[head] == kind]
    closed = [time for time in times if time is not None]
    row = {"kind": kind, "heads": len(times), "closed": len(closed), "share closed": f"{len(closed) / len(times):.0%}"}
    by_kind.append({**row, "first": min(closed, default=None), "last": max(closed, default=None)})
table(by_kind)

# %% [markdown]
# ## What is left
#
# Layers go down, heads across. A bright cell is a head that is still open. The others say from which step they were shut: the
# darker, the earlier.

# %%
sites = sorted({HeadSite.parse(name, sum(other == name for other, _ in heads)) for name, _ in heads})
layers = [1 + max(site.layer for site in sites if site.kind == kind) for kind in kinds]
widest = max(site.heads for site in sites)
size = (0.62 * widest + 1.6, 0.55 * sum(layers) + 0.55 * len(kinds))
figure, panels = plt.subplots(len(kinds), 1, figsize=size, squeeze=False, height_ratios=layers, layout="constrained")
for axes, kind, height in zip(panels[:, 0], kinds, layers, strict=True):
    mine = [site for site in sites if site.kind == kind]
    step_of = {site: [died[site.name, head] for head in range(site.heads)] for site in mine}
    letters = {(site, head): str(step) for site in mine for head, step in enumerate(step_of[site]) if step is not None}
    values = {site: torch.tensor([2.0 * end if step is None else float(step) for step in step_of[site]]) for site in mine}
    draw_map(axes, values, (height, widest), 2.0 * end, letters)
    axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind])
    axes.set_ylabel("layer")
panels[-1, 0].set_xlabel("head")
plt.show()

# %% [markdown]
# ## What closing did to the model
#
# Above: open heads by kind. The solid line counts the heads that would be kept, the dashed line adds up the probabilities of
# being open: it is what λ is charged on. Where the two part, gates stand between open and shut. Below: the loss on the
# validation set after every epoch (higher is worse), against the base before any gate. A loss that rises while heads close and
# falls once the gates have settled means that the heads that are left took over part of the work.

# %%
base_loss = min(rows["base"]["stage"]["losses"]) if "base" in rows else None


def series(name: str, *first: float) -> tuple[list[int], list[float]]:
    """Steps and values where the column says something; the first is known before any step."""
    known = [row for row in metrics if row.get(name) is not None]
    return [*[0] * len(first), *(row["step"] + 1 for row in known)], [*first, *(row[name] for row in known)]


figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(3, 2), layout="constrained")
for kind in kinds:
    mine = [number for number, head in enumerate(heads) if kind_of[head] == kind]
    look = {"color": KIND_COLOURS[kind], "drawstyle": "steps-post"}
    above.plot(*series(f"gates/open_{kind}", len(mine)), linewidth=1.8, label=KIND_WORDS[kind], **look)
    above.plot(*series(f"gates/expected_{kind}", float(p_open[mine, 0].sum())), linewidth=1.1, linestyle="--", **look)
above.set(ylabel="open heads", ylim=(0, None))
above.legend(loc="best")
below.plot(*series("val/loss"), color="black", marker="o", markersize=4, label="with gates")
if base_loss is not None:
    below.axhline(base_loss, color="#888888", linestyle=":", label="base, before")
below.set(xlabel="step", ylabel="validation loss (nats)")
below.legend(loc="best")
if settled is not None:
    for axes in (above, below):
        axes.axvline(settled, color="black", linewidth=0.7)
plt.show()
