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
# # 2. Attention, and what heads are for
#
# Some heads have a job that has a name: they look at the previous word, or from an adjective to its noun, or at the rarest
# word, or, between the two languages, at the word that is being translated. This notebook finds such heads in the base, the
# model before any gate touched it, and then asks which of them a run with gates left open.
#
# It reads the run folder and its base. What `analyze.py` left there is read; where it has not run, the same analyses are
# computed here, and nothing is written. Another run: change `RUN`, or set `HEADGATES_RUN` before starting Jupyter.

# %%
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "gates/headmap.py").is_file())))

import matplotlib.pyplot as plt
import numpy as np
import torch

from analysis.analyses import Found, analyse, chosen
from analysis.attention_pass import record
from analysis.roles import FAMILIES, Role, find_roles, nearest
from analysis.study import Study
from analysis.survival import any_role, survive_longer, survivors
from configs.analyze import AnalyzeConfig
from data.batch import collate
from gates import KINDS, HeadMap, HeadSite
from notebooks.tables import table
from report.drawing import KIND_WORDS, LOOK
from report.head_figures import ROLE_LETTERS, draw_map, role_letters
from report.palette import KIND_COLOURS
from report.report_data import Weights
from runfolder.folder import RunFolder, dense_run
from runfolder.source import open_source
from runfolder.table import read_table

plt.rcParams.update({**LOOK, "font.size": 9, "figure.dpi": 90})
RUN = os.environ.get("HEADGATES_RUN", "examples/toy_run/toy-en-de-l0-0.05-s1")

# %%
run = RunFolder.open(Path(sys.path[0]) / RUN)
base = dense_run(run)
system = base.read_json("result.json")["system"]
own = run.systems().get(run.read_json("result.json")["system"], {}).get("xi")
if own is None:
    raise ValueError(f"{run.path.name} has no gates; expected a run of fit.py with --gate l0, whose base is looked at")
is_open = HeadMap.from_json(own).map(lambda row: row > 0)
print(f"roles in {base.path.name}, survival in {run.path.name}: {is_open.count()} of {is_open.heads_total} gated heads are open")

# %% [markdown]
# ## Roles
#
# Every score below is a share: of all the times the head was asked, how often was its largest weight where the role says? A
# share means nothing alone, so beside it stands what looking blindly would give: the best fixed offset for syntax and
# alignment, picking at random for rare words, the average head for positions. A head has a role if its score reaches what is
# needed.


# %%
def stored(folder: RunFolder, place: str) -> tuple[list[Role], list[Role], HeadMap | None]:
    """What analyze.py left: all roles, of each family the head that is nearest to one, and confidence if it was asked for."""
    sites = {site.name: site for site in translator.sites}
    roles: dict[str, list[Role]] = {}
    for name in ("roles", "nearest"):
        for row in read_table(folder, f"{place}/{name}.csv"):
            numbers = {name: float(row[name]) for name in ("score", "baseline", "needed")}
            role = Role(sites[row["site"]], row["head"], row["family"], row["role"], words=row["words"], **numbers)
            roles.setdefault(name, []).append(role)
    known = (folder / f"{place}/confidence.json").is_file()
    confidence = folder.read_json(f"{place}/confidence.json")["head_maps"]["confidence"] if known else None
    return roles.get("roles", []), roles.get("nearest", []), None if confidence is None else HeadMap.from_json(confidence)


def computed(folder: RunFolder) -> tuple[list[Role], list[Role], HeadMap | None]:
    """The same, made here; results go to a folder that is gone afterwards."""
    study = Study.open(AnalyzeConfig(runs=[str(folder.path)]), print)
    names = [name for name in chosen(study, print) if name != "lrp"]  # relevance makes no roles, and takes the longest
    with tempfile.TemporaryDirectory() as place:
        found: dict[str, Found] = analyse(replace(study, source=replace(study.source, folder=RunFolder(place))), names, print)
    return find_roles(found), nearest(found), found["confidence"].head_maps["confidence"]


translator = open_source(base.path, system, device="cpu").translator
place = f"analysis/{system}"
there = all((base / f"{place}/{name}.csv").is_file() for name in ("roles", "nearest"))
roles, best, confidence = stored(base, place) if there else computed(base)


def survived(role: Role) -> str:
    return ("yes" if is_open[role.site][role.head] else "no") if role.site in is_open else "no gate"


table(
    [
        {
            "head": f"{role.site.name}.{role.head}",
            "family": role.family,
            "role": role.role,
            "score": role.score,
            "blindly": role.baseline,
            "needed": role.needed,
            "survives": survived(role),
        }
        for role in roles
    ]
)

# %% [markdown]
# In words, of each family that was looked for, the head that has such a role most clearly, or comes nearest to having one:

# %%
for role in best:
    print(f"{role.family}, {'reached' if role.missing <= 0 else 'not reached'}: {role.site.name}.{role.head}: {role.words}")

# %% [markdown]
# ## Where the roles are, and what is left of them
#
# Left: confidence, the mean of a head's largest weight. A bright head knows where it wants to look; a dark one spreads its
# attention over many words. Right: the heads that the gates left open are bright. Letters are the families of a head's roles. A
# letter in a dark cell on the right is a head that had a job and was closed all the same: another head did it too, or the
# translation did not need it.

# %%
sites, letters = list(translator.sites), role_letters(roles)
maps = {"confidence in the base": confidence, f"open in {run.path.name}": is_open.map(lambda row: row.double())}
maps = {title: head_map for title, head_map in maps.items() if head_map is not None}
kinds = [kind for kind in KINDS if any(site.kind == kind for site in sites)]
layers = [1 + max(site.layer for site in sites if site.kind == kind) for kind in kinds]
widest = max(site.heads for site in sites)
size = (len(maps) * (0.5 * widest + 0.7), 0.55 * sum(layers) + 0.5 * len(kinds) + 0.4)
figure = plt.figure(figsize=size, layout="constrained")
for part, (title, head_map) in zip(np.atleast_1d(figure.subfigures(1, len(maps))), maps.items(), strict=True):
    part.suptitle(title, fontsize=10)
    panels = part.subplots(len(kinds), 1, squeeze=False, height_ratios=layers)[:, 0]
    for axes, kind, height in zip(panels, kinds, layers, strict=True):
        draw_map(axes, {site: row for site, row in head_map.items() if site.kind == kind}, (height, widest), 1.0, letters)
        axes.set_title(KIND_WORDS[kind], color=KIND_COLOURS[kind], fontsize=9)
        axes.set_ylabel("layer")
    panels[-1].set_xlabel("head")
plt.show()
print(", ".join(f"{letter}: {family}" for family, letter in ROLE_LETTERS.items()))

# %% [markdown]
# ## Do heads with a role survive more often?
#
# Open heads by role; a head may have several. "no role" are all heads without one.

# %%
have = {(role.family, role.site, role.head) for role in roles}
has = {
    family: HeadMap({site: [(family, site, head) in have for head in range(site.heads)] for site in is_open})
    for family in FAMILIES
    if any(role.family == family for role in roles)
}
everything = is_open.map(lambda row: torch.ones_like(row))
counted = [row for row in survivors({"base": everything, "run": is_open}, has) if row["run"] == "run" and row["at_first"]]
table([{"kind": row["kind"], "role": row["role"], "heads": row["at_first"], "still open": row["heads"]} for row in counted])

# %% [markdown]
# Is that more than luck? If roles had nothing to do with survival, one could deal the label "has a role" out to other heads of
# the same kind and find as many of them open about as often. p is the share of all such deals with at least as many open heads
# as there really are; small means that luck is a poor explanation. One run has few heads, so a large p does not say that roles
# are useless. `analyze.py --siblings` runs the same test over several λ.

# %%
tested = survive_longer({run.path.name: is_open}, any_role(has)) if has else []
table(
    [
        {
            "kind": row["kind"],
            "heads with a role": row["specialised"],
            "of these open": row["lifetime_specialised"],
            "heads without": row["others"],
            "open": row["lifetime_others"],
            "p": None if row["p_value"] is None else f"{row['p_value']:.3f}",
        }
        for row in tested
    ]
)

# %% [markdown]
# ## Confidence and survival
#
# Each dot is a head; filled dots are open in the run. If confident heads survive, the filled dots lie to the right.

# %%
if confidence is not None:
    figure, axes = plt.subplots(figsize=(8, 0.7 * len(kinds) + 0.8), layout="constrained")
    for row, kind in enumerate(kinds):
        for site in (site for site in sites if site.kind == kind):
            for head, x in enumerate(confidence[site].tolist()):
                alive = bool(is_open[site][head]) if site in is_open else True
                y = row + 0.5 * ((head + 0.5) / site.heads - 0.5)
                axes.plot(x, y, "o", color=KIND_COLOURS[kind], markerfacecolor=KIND_COLOURS[kind] if alive else "white", markersize=6)
    axes.set_yticks(range(len(kinds)), [KIND_WORDS[kind] for kind in kinds])
    axes.set(xlabel="confidence (mean of the largest weight)", xlim=(0, 1.02), ylim=(len(kinds) - 0.5, -0.5))
    axes.grid(True, axis="x", color="#e8e8e8")
    axes.set_axisbelow(True)
    plt.show()

# %% [markdown]
# ## Attention on a sentence
#
# The base translates the sentence and reads its own translation. Each picture is one head: rows are the words that look,
# columns the words that are looked at, and darker is more. Shown are the heads in words above, and the most confident head of
# each kind. Type another sentence, or put other heads into `chosen_heads`, and run the cell again.

# %%
SENTENCE = "The old dog sees a cat."
translation = translator.translate([SENTENCE])[0]
source, target = translator.encode([SENTENCE])[0], translator.target_vocab.encode([translation])[0]
seen = Weights()
record(translator.model, [collate([(source, target)], [0], len(target) + 1)], [seen])
weights = {site: each[0].numpy() for site, each in seen.seen[0].weights.items()}  # (heads, words that look, words looked at)
pieces = [piece.replace("▁", " ").strip() or "▁" for piece in translator.source_vocab.pieces(source)]
said = [piece.replace("▁", " ").strip() or "▁" for piece in translator.target_vocab.pieces(target)]
words_of = {"enc-self": ([*pieces, "end"],) * 2, "dec-self": (["begin", *said],) * 2, "cross": ([*said, "end"], [*pieces, "end"])}

chosen_heads: dict[tuple[HeadSite, int], str] = {}
for role in best:
    chosen_heads.setdefault((role.site, role.head), f"{'' if role.missing <= 0 else 'nearest to '}{role.family}: {role.role}")
for kind in kinds if confidence is not None else []:
    of_kind = [(site, head) for site in weights if site.kind == kind for head in range(site.heads)]
    chosen_heads.setdefault(max(of_kind, key=lambda at: confidence[at[0]][at[1]]), f"most confident of {kind}")
print(f"{SENTENCE} → {translation}")

across = min(3, len(chosen_heads))
down = -(-len(chosen_heads) // across)
figure, panels = plt.subplots(down, across, figsize=(3.5 * across, 3.4 * down), squeeze=False, layout="constrained")
for axes in panels.flat[len(chosen_heads) :]:
    axes.set_axis_off()
for axes, ((site, head), why) in zip(panels.flat, chosen_heads.items(), strict=False):
    looking, looked_at = words_of[site.kind]
    axes.imshow(weights[site][head], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(looked_at)), looked_at, rotation=60, ha="right", rotation_mode="anchor", fontsize=7.5)
    axes.set_yticks(range(len(looking)), looking, fontsize=7.5)
    axes.spines[:].set_visible(True)
    state = "no gate" if site not in is_open else "open" if is_open[site][head] else "closed"
    axes.set_title(f"{site.name}.{head} ({state})\n{why}", color=KIND_COLOURS[site.kind], fontsize=9)
plt.show()
print("largest weight of each row:")
for site, head in chosen_heads:
    looking, looked_at = words_of[site.kind]
    looks = [f"{word} → {looked_at[int(np.argmax(row))]}" for word, row in zip(looking, weights[site][head], strict=True)]
    print(f"  {site.name}.{head}: {', '.join(looks)}")
