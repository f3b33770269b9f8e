"""What the notebooks share: the run that they look at, its roles and attention, tables as Markdown, and
figures as pictures. A mistake, such as a HEADGATES_RUN that is not there, is one line."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib.pyplot as plt
from IPython import get_ipython
from IPython.display import Image, Markdown
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import headgates.report.drawing
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.roles import FAMILIES, Role, best_of_families, find_roles
from headgates.analysis.significance import compare, resample_counts, score
from headgates.analysis.survival import any_role, survive_longer, survivors
from headgates.configs.analyses import Analyses
from headgates.data.batch import collate
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import AnalysisRecord, chosen_analyses, run_analyses
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.hard_concrete import full_prob, open_prob
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder, base_of
from headgates.records.related import MadeRun, open_made_run
from headgates.records.source import open_source
from headgates.records.table import markdown_table, read_table
from headgates.report.drawing import KIND_WORDS, LOOK
from headgates.report.head_figures import ROLE_LETTERS, draw_maps, draw_survival
from headgates.report.palette import BLACK, GREY, KIND_COLOURS, RULE, look_of
from headgates.report.report_data import KeepAttention, gate_history

ROOT = Path(__file__).resolve().parents[1]  # of the checkout, from which run folders are named
EXAMPLE = "examples/toy_run/toy-en-de-l0-0.015-s1"
OPEN, CLOSED = "#f4c430", "#33415c"
__all__ = [
    "BLACK",
    "FAMILIES",
    "GREY",
    "KIND_COLOURS",
    "KIND_WORDS",
    "RULE",
    "any_role",
    "compare",
    "draw_maps",
    "draw_survival",
    "full_prob",
    "gate_history",
    "look_of",
    "open_prob",
    "open_source",
    "read_table",
    "resample_counts",
    "score",
    "survive_longer",
    "survivors",
]

headgates.report.drawing.DOTS_PER_INCH = 72  # the notebooks are small files
plt.rcParams.update({**LOOK, "font.size": 9, "figure.dpi": 80})


def open_run() -> tuple[MadeRun, RunFolder]:
    """The run that HEADGATES_RUN names, or the example, and its base."""
    run = open_made_run(RunFolder.open(ROOT / os.environ.get("HEADGATES_RUN", EXAMPLE)))
    return run, base_of(run.folder)


def roles_of(base: RunFolder) -> tuple[list[Role], list[Role], HeadMap]:
    """The roles of a base's heads, the best head of each family, and every head's confidence: as analyze
    found them, or found now and kept nowhere."""
    folder = f"analysis/{base.own_system()}"
    files = [f"{folder}/{name}" for name in ("roles.csv", "nearest.csv", "confidence.json")]
    if not all((base / file).is_file() for file in files):
        analysed = AnalysedModel.open([str(base.path)], Analyses(), print)
        # relevance makes no roles, and takes the longest
        names = [name for name in chosen_analyses(analysed) if name != "lrp"]
        with TemporaryDirectory() as path:
            elsewhere = replace(analysed.source, folder=RunFolder(path))
            results = run_analyses(replace(analysed, source=elsewhere), names)
        return find_roles(results), best_of_families(results), results["confidence"].head_maps["confidence"]
    sites = {site.name: site for site in find_sites(open_source(base.path, device="cpu").model)}

    def stored(file: str) -> list[Role]:
        rows = ({**row, "site": sites[row["site"]]} for row in read_table(base, file))
        return [Role(**{each.name: row[each.name] for each in fields(Role)}) for row in rows]

    maps = base.read_json(files[2], AnalysisRecord)["head_maps"]
    return stored(files[0]), stored(files[1]), HeadMap.from_json(maps["confidence"])


def attention_of(
    translator: Translator, sentence: str
) -> tuple[str, dict[HeadSite, Any], dict[str, tuple[list[str], list[str]]]]:
    """The translation of a sentence, each site's attention on both (heads, words that look, words looked at),
    and these words by kind."""
    (translation,) = translator.translate([sentence])
    source, target = translator.encode([sentence])[0], translator.target_vocab.encode([translation])[0]
    kept = KeepAttention()
    observe_attention(translator.model, [collate([(source, target)], [0], len(target) + 1)], [kept])
    pieces = translator.source_vocab.pieces(source), translator.target_vocab.pieces(target)
    asked, said = ([piece.replace("▁", " ").strip() or "▁" for piece in side] for side in pieces)
    words = {
        "enc-self": ([*asked, "end"],) * 2,
        "dec-self": (["begin", *said],) * 2,
        "cross": ([*said, "end"], [*asked, "end"]),
    }
    return translation, {site: rows[0].numpy() for site, rows in kept[0].weights.items()}, words


def table(rows: Sequence[Mapping[str, Any]], left: int = 1) -> Markdown:
    """The columns are those of the first row, the first `left` of them words; None is an empty cell. Without
    a row: "none"."""
    return Markdown(
        "\n".join(markdown_table(list(rows[0]), (map(cell, row.values()) for row in rows), left))
        if rows
        else "*none*"
    )


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value).replace("|", "\\|")


def picture(draw: Callable[..., None], *args: Any, **options: Any) -> Image:
    """The PNG of a figure of report/, whose functions draw to files: `draw(*args, path=..., **options)`."""
    with TemporaryDirectory() as folder:
        draw(*args, path=Path(folder) / "figure", **options)
        return Image((Path(folder) / "figure.png").read_bytes())


def open_maps(maps: Mapping[str, HeadMap], roles: Sequence[Role] = ()) -> Figure:
    """A column of panels for each map (True: open), layers down and heads across, with the letters of each
    head's roles."""
    kinds = list(next(iter(maps.values())).by_kind())
    figure, panels = plt.subplots(
        len(kinds),
        len(maps),
        figsize=(3.4 * len(maps), 1.0 * len(kinds) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    for column, (title, heads) in zip(panels.T, maps.items(), strict=True):
        column[0].set_title(title)
        for axes, kind in zip(column, kinds, strict=True):
            rows = {site.layer: row.tolist() for site, row in heads.items() if site.kind == kind}
            width = max(map(len, rows.values()))
            cells = [row + [False] * (width - len(row)) for row in rows.values()]
            axes.pcolormesh(cells, cmap=ListedColormap([CLOSED, OPEN]), vmin=0, vmax=1, edgecolors="white")
            axes.set_yticks([n + 0.5 for n in range(len(rows))], rows)
            axes.set_xticks([n + 0.5 for n in range(width)], range(width))
            axes.set_ylabel(f"{kind}\nlayer", color=KIND_COLOURS[kind])
            axes.invert_yaxis()
            for place, letters in letters_of(roles, kind).items():
                line = list(rows).index(place[0]) + 0.5
                colour = "black" if rows[place[0]][place[1]] else "white"
                axes.text(place[1] + 0.5, line, letters, color=colour, ha="center", va="center", fontsize=8)
    patches = [Patch(color=OPEN, label="open"), Patch(color=CLOSED, label="closed")]
    figure.legend(handles=patches, loc="outside lower center", ncols=2)
    return figure


def letters_of(roles: Sequence[Role], kind: str) -> dict[tuple[int, int], str]:
    """(layer, head) -> the letters of the families of its roles."""
    families: dict[tuple[int, int], set[str]] = {}
    for role in roles:
        if role.site.kind == kind:
            families.setdefault((role.site.layer, role.head), set()).add(role.family)
    return {
        place: "".join(letter for family, letter in ROLE_LETTERS.items() if family in found)
        for place, found in families.items()
    }


def in_one_line(shell: Any, kind: type[BaseException], error: BaseException, *_: Any, **__: Any) -> list[str]:
    """What IPython prints of a ValueError, which in this code is the user's mistake and says what to do;
    others keep their traceback."""
    return [str(error)]


if (shell := get_ipython()) is not None:
    shell.set_custom_exc((ValueError,), in_one_line)
