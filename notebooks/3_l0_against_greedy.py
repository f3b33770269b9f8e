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
# %% [markdown]
# # 3. Learned gates against greedy pruning
#
# Two ways to close the same number of heads. **l0** learns which: gates under a price, while the model trains on (Voita et al.
# 2019). **greedy** scores every head of the finished base once, by how strongly the loss reacts to it, and closes the lowest
# (Michel et al. 2019); nothing is trained. **greedy-finetuned** is greedy's choice of heads, trained on for as long as the
# gates were, so that what is left between it and l0 is the choice alone.
#
# It reads the run folder and its base. Another run: change `RUN`, or set `HEADGATES_RUN` before starting Jupyter.

# %%
import os
import sys
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "gates/headmap.py").is_file())))

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from gates import KINDS, HeadMap
from notebooks.tables import table
from pruning.significance import compare, resample_counts, score
from report.drawing import KIND_WORDS, LOOK
from report.palette import KIND_COLOURS
from report.report_data import curves
from runfolder.folder import RunFolder, dense_run
from runfolder.source import run_corpus

plt.rcParams.update({**LOOK, "font.size": 9, "figure.dpi": 90})
L0, GREEDY, FINETUNED, OTHERS = "#E69F00", "#56B4E9", "#CC79A7", "#000000"
RUN = os.environ.get("HEADGATES_RUN", "examples/toy_run/toy-en-de-l0-0.05-s1")

# %%
run = RunFolder.open(Path(sys.path[0]) / RUN)
base = dense_run(run)
result = run.read_json("result.json")
rows = {row["system"]: row for row in result["rows"]}
own, reference = result["system"], result["reference"]
if base.path == run.path:
    raise ValueError(f"{run.path.name} has no gates; expected a run of fit.py with --gate l0")
print(f"{run.path.name}: λ {run.config()['lambda']:g}; {rows[own]['heads_open']} of {rows[own]['heads_total']} heads are open")
print(f"every difference is to {reference}, the better of the two bases on validation; {rows[own]['bleu_signature']}")

# %% [markdown]
# ## The comparison
#
# Every system translates the same test set. base-continued is the base trained on without gates for as long as l0: what more
# training gains is not credited to the gates. A test set is a sample of sentences, and another sample would give another BLEU;
# the intervals hold what 95% of such samples give.


# %%
def signed(low_high: list[float]) -> str:
    return f"{low_high[0]:+.1f} to {low_high[1]:+.1f}"


table(
    [
        {
            "system": row["system"],
            "heads": row["heads_open"],
            **{kind: row["heads_by_kind"].get(kind) for kind in KINDS},
            "BLEU": row["bleu"],
            "95%": "{:.1f} to {:.1f}".format(*row["bleu_ci95"]),
            "difference": None if row["system"] == reference else f"{row['bleu_difference']:+.2f}",
            "95% of it": None if row["system"] == reference else signed(row["bleu_difference_ci95"]),
            "p": None if row["system"] == reference else f"{row['p_value_vs_reference']:.3f}",
        }
        for row in rows.values()
    ]
)

# %% [markdown]
# The same as a picture. An interval that crosses the line leaves open which of the two is better.


# %%
def colour_of(system: str) -> str:
    return L0 if system.startswith("l0") else {"greedy": GREEDY, "greedy-finetuned": FINETUNED}.get(system, OTHERS)


shown = [row for row in rows.values() if row["system"] != reference]
figure, axes = plt.subplots(figsize=(8, 0.42 * len(shown) + 0.9), layout="constrained")
for place, row in enumerate(shown):
    low, high = row["bleu_difference_ci95"]
    axes.plot([low, high], [place, place], color="#555555", linewidth=2)
    axes.plot(row["bleu_difference"], place, "o", color=colour_of(row["system"]), markersize=7)
axes.axvline(0, color="black", linewidth=0.9)
axes.set_yticks(range(len(shown)), [f"{row['system']}, {row['heads_open']} heads" for row in shown])
axes.set(xlabel=f"BLEU difference to {reference}, 95% interval", ylim=(len(shown) - 0.5, -0.5))
axes.grid(True, axis="x", color="#e8e8e8")
axes.set_axisbelow(True)
plt.show()

# %% [markdown]
# ## What the p-values say
#
# p is how often a difference at least this large would come out of the luck of the test sentences alone, if the two systems
# were equally good (paired bootstrap: the same resampled sentences for both; of 1,000 resamples, so no p is below 0.001). It
# says nothing about the luck of training: another seed is another model, and one run of each cannot tell a good method from a
# good seed. And a large p is not proof of equality; the interval says what is still possible.


# %%
def verdict(ours: str, theirs: str, difference: float, interval: list[float], p: float) -> str:
    if p >= 0.05:
        return f"{ours} against {theirs}: {difference:+.2f} BLEU, not told apart (p {p:.3f}); {signed(interval)} remains possible"
    return (
        f"{ours} is {'better' if difference > 0 else 'worse'} than {theirs} by {abs(difference):.2f} BLEU ({signed(interval)}, p {p:.3f})"
    )


for row in shown:
    print(verdict(row["system"], reference, row["bleu_difference"], row["bleu_difference_ci95"], row["p_value_vs_reference"]))

# %% [markdown]
# The pruned systems against each other, from their translations. For this the references of the test set are needed: the toy
# language is built in; of other runs the text is not in the run folder, so this part is left out.

# %%
pruned = [name for name in (own, "greedy", "greedy-finetuned") if name in rows]
hypotheses = {name: (run / f"hypotheses/{name}.txt").read_bytes().decode().split("\n")[:-1] for name in rows}
test = run_corpus(run).test if run.config()["data"] == "toy" else None
if test is not None:
    references = test.targets[: len(hypotheses[own])]
    scored = {name: score(hypotheses[name], references) for name in pruned}
    counts = resample_counts(len(references), 1000)
    for ours, theirs in combinations(pruned, 2):
        found = compare(scored[ours], scored[theirs], counts)
        print(verdict(ours, theirs, found["bleu_difference"], found["bleu_difference_ci95"], found["bleu_p_value"]))
else:
    print("left out: the references of this run's test set are not in its folder")

# %% [markdown]
# ## Which heads each keeps
#
# Both keep the same number of heads, but not the same heads. A cell is a head: layers go down, heads across.

# %%
systems = run.systems()
kept = {
    name: HeadMap.from_json(systems[name]["xi"]).map(lambda row: row > 0) for name in (own, "greedy") if systems.get(name, {}).get("xi")
}
both_known = len(kept) == 2
colours = ["#FFFFFF", L0, GREEDY, "#4D4D4D"]
if both_known:
    ours, theirs = kept[own], kept["greedy"]
    kinds = [kind for kind in KINDS if any(site.kind == kind for site in ours)]
    layers = [1 + max(site.layer for site in ours if site.kind == kind) for kind in kinds]
    widest = max(site.heads for site in ours)
    size = (0.5 * widest + 1.4, 0.5 * sum(layers) + 0.5 * len(kinds) + 0.5)
    figure, panels = plt.subplots(len(kinds), 1, figsize=size, squeeze=False, height_ratios=layers, layout="constrained")
    for axes, kind, height in zip(panels[:, 0], kinds, layers, strict=True):
        cells = torch.full((height, widest), torch.nan)
        for site in (site for site in ours if site.kind == kind):
            cells[site.layer, : site.heads] = ours[site].float() + 2 * theirs[site].float()
        axes.pcolormesh(cells.numpy(), cmap=ListedColormap(colours), vmin=0, vmax=3, edgecolors="#999999", linewidth=1)
        axes.invert_yaxis()
        axes.set_xticks([head + 0.5 for head in range(widest)], range(widest))
        axes.set_yticks([layer + 0.5 for layer in range(height)], range(height))
        axes.tick_params(length=0)
        axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind])
        axes.set_ylabel("layer")
    panels[-1, 0].set_xlabel("head")
    words = ("neither", f"{own} alone", "greedy alone", "both")
    handles = [Patch(facecolor=colour, edgecolor="#999999", label=word) for colour, word in zip(colours, words, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)
    plt.show()
else:
    print(f"left out: the run compares {', '.join(rows)}; for this picture it needs greedy too")

# %% [markdown]
# How much do the two choices agree? Jaccard is the share of heads that both keep among those that at least one keeps: 1 if they
# are the same, 0 if they have none in common. "by chance" is what two blind choices of so many heads of the kind would share on
# average. Agreement well above chance means that both methods see the same heads as useful; agreement at chance means that the
# model has many equally good ways to be pruned.

# %%
overlap = []
for kind in [*kinds, "all"] if both_known else []:
    mine, other = (
        ours.select(None if kind == "all" else [kind]).flat().bool(),
        theirs.select(None if kind == "all" else [kind]).flat().bool(),
    )
    both, either = int((mine & other).sum()), int((mine | other).sum())
    overlap.append(
        {
            "kind": kind,
            "heads": len(mine),
            own: int(mine.sum()),
            "greedy": int(other.sum()),
            "both": both,
            "both, by chance": float(mine.sum() * other.sum()) / len(mine),
            "Jaccard": both / either if either else None,
        }
    )
table(overlap)

# %% [markdown]
# ## BLEU against the number of heads
#
# The line closes the base's heads one after the other in greedy's order, without training; `prune.py --by gradient` makes it.
# The points are the systems of this run. The distance from the line up to a point is what training with the heads closed is
# worth. Points and line are only comparable if they were translated by the same search; the beam is named.

# %%
figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
lines = [curve for curve in curves(base) if curve["name"] == "gradient"]
for curve in lines:
    points = [(point["heads_open"], point["bleu"], point["low"], point["high"]) for point in curve["points"]]
    x, y, low, high = zip(*points, strict=True)
    axes.fill_between(x, low, high, color=GREEDY, alpha=0.25, linewidth=0)
    axes.plot(x, y, color=GREEDY, marker="o", markersize=4, label=f"greedy's order, no training, beam {curve['beam']}")
beam = rows[own]["evaluation"]["search"]["beam"]
for name, marker, wide in ((reference, "o", 8), ("greedy", "s", 7), ("greedy-finetuned", "D", 7), (own, "*", 15)):
    if name in rows:
        at, look = rows[name]["heads_open"], {"color": colour_of(name), "markeredgecolor": "black"}
        axes.plot([at, at], rows[name]["bleu_ci95"], color=colour_of(name), linewidth=1.2)
        axes.plot(at, rows[name]["bleu"], marker, markersize=wide, linestyle="none", label=f"{name}, beam {beam}", **look)
total = rows[own]["heads_total"]
axes.set(xlabel="open heads", ylabel="BLEU, test set", xlim=(1.03 * total, -0.03 * total), ylim=(-2, None))
axes.grid(True, color="#e8e8e8")
axes.set_axisbelow(True)
axes.margins(y=0.08)
axes.legend(loc="upper right", fontsize=8)
plt.show()
if not lines:
    print(f"no curve yet: python prune.py {RUN} --by gradient --beam {beam}")

# %% [markdown]
# ## Where the translations differ
#
# Numbers hide what kind of mistakes a pruned model makes. Shown are the first test sentences in which the systems disagree.

# %%
SHOW = 5
columns = [name for name in (reference, own, "greedy", "greedy-finetuned") if name in hypotheses]
differing = [number for number in range(len(hypotheses[own])) if len({hypotheses[name][number] for name in columns}) > 1]
for name in columns[1:]:
    same = sum(a == b for a, b in zip(hypotheses[name], hypotheses[reference], strict=True))
    print(f"{name}: {same} of {len(hypotheses[own])} lines are those of {reference}")
sides = []
for number in differing[:SHOW]:
    if test is not None:
        sides += [{"": number + 1, "said by": "*source*", "line": test.sources[number]}]
        sides += [{"": None, "said by": "*correct*", "line": test.targets[number]}]
    for place, name in enumerate(columns):
        right = test is not None and hypotheses[name][number] == test.targets[number]
        sides += [
            {"": number + 1 if test is None and place == 0 else None, "said by": name, "line": hypotheses[name][number] + " ✓" * right}
        ]
table(sides)
