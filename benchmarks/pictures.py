"""The README's picture and table, from finished runs: BLEU against open heads over several lambdas, and which heads one lambda leaves.

    python -m benchmarks.pictures runs/multi30k-en-de-l0-* --name multi30k-en-de

writes results/NAME.png, results/NAME.md and a copy of each run's result.json in results/NAME/, from those files alone.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.sweep import Sweep

KIND_WORDS = {"enc-self": "encoder self", "dec-self": "decoder self", "cross": "cross"}
SYSTEMS = {  # colour, marker, line, shift in heads (equal numbers of heads would hide one another), words
    "l0": ("#000000", "o", "-", 0, "l0: learned gates, made 0 or 1"),
    "greedy-finetuned": ("#CC79A7", "s", "--", 1, "greedy, then fine-tuned as long"),
    "greedy": ("#E69F00", "^", ":", -1, "greedy alone"),
}
BASES = {"base": ("#888888", (0, (2, 2)), "base"), "base-continued": ("#555555", "-", "base, trained on as long")}
DOTS_PER_INCH = 220


def draw(sweep: "Sweep", lam: float, path: Path) -> None:
    """Two panels on white: every system's BLEU, and the heads that `lam` leaves open."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    look: Any = {
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#444444",
        "figure.facecolor": "white",
    }
    with plt.rc_context(look):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=[1.45, 1], layout="constrained")
        draw_bleu(left, sweep)
        draw_heads(right, sweep, lam)
        figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
        plt.close(figure)


def draw_bleu(axes: Any, sweep: "Sweep") -> None:
    """BLEU and its 95% interval against open heads. Systems below the bottom of the panel are marked there with their number."""
    from matplotlib.ticker import MaxNLocator

    floor, top = limits(sweep)
    total = next(iter(sweep.l0.values()))["heads_total"]
    for system, (colour, line, words) in BASES.items():
        if system in sweep.bases:
            axes.axhline(sweep.bases[system]["bleu"], color=colour, linestyle=line, linewidth=1.3, label=words, zorder=1)
    small = {"textcoords": "offset points", "fontsize": 9.5, "zorder": 6}
    for system, (colour, marker, line, shift, words) in SYSTEMS.items():
        points = sweep.of(system)
        if not points:
            continue
        heads, bleu = [row["heads_open"] + shift * 0.01 * total for row in points], [row["bleu"] for row in points]
        axes.plot(heads, bleu, color=colour, linestyle=line, marker=marker, markersize=7, linewidth=1.8, label=words, zorder=4)
        for at, row in zip(heads, points, strict=True):
            axes.plot([at, at], row["bleu_ci95"], color=colour, alpha=0.25, linewidth=6, solid_capstyle="butt", zorder=2)
            if row["bleu"] < floor:
                axes.plot(at, floor, marker="v", color=colour, markersize=8, clip_on=False, zorder=5)
                axes.annotate(f"{row['bleu']:.1f}", (at, floor), (7, 5), **small)
    for lam, rows in sweep.gated.items():
        highest = max(rows[system]["bleu_ci95"][1] for system in SYSTEMS if system in rows)
        axes.annotate(f"λ {lam:g}", (rows["l0"]["heads_open"], highest), (0, 4), ha="center", **small)
    axes.set(xlim=(0, total * 1.03), ylim=(floor, top), xlabel=f"open heads of {total}", ylabel="BLEU, test set")
    axes.set_xticks(range(0, total + 1, max(1, total // 6)))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.grid(True, color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="best", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9.5, handlelength=2.6)
    axes.set_title("BLEU by the number of open heads", loc="left", fontsize=12)


def limits(sweep: "Sweep") -> tuple[float, float]:
    """The panel's lowest and highest BLEU: all systems with their intervals, but greedy pruning without fine-tuning may fall out below,
    since it may lose so much that the rest would be one line."""
    inside = [row for system in ("l0", "greedy-finetuned") for row in sweep.of(system)] + list(sweep.bases.values())
    low, high = min(row["bleu_ci95"][0] for row in inside), max(row["bleu_ci95"][1] for row in inside)
    room = max(high - low, 1.0)
    lowest = min([row["bleu_ci95"][0] for row in sweep.of("greedy")], default=low)
    return max(0.0, max(min(low, lowest), low - 1.2 * room) - 0.25 * room), high + 0.15 * room


def draw_heads(axes: Any, sweep: "Sweep", lam: float) -> None:
    """A row for each layer, by kind, a mark for each head: full where it is open, hollow where it is shut."""
    from report.drawing import KIND_COLOURS  # here: matplotlib takes a second, and --help needs none of it

    heads = sweep.heads[lam]
    row, ticks = 0.0, []
    for kind, colour in KIND_COLOURS.items():
        sites = [(layer, open_heads) for (this, layer), open_heads in sorted(heads.items(), key=lambda item: item[0][1]) if this == kind]
        if not sites:
            continue
        for layer, open_heads in sites:
            for number, is_open in enumerate(open_heads):
                face = colour if is_open else "none"
                strength = 1 if is_open else 0.55
                axes.scatter(number, row, s=95, marker="o", facecolor=face, edgecolor=colour, linewidth=1.4, alpha=strength)
            ticks.append((row, f"layer {layer}"))
            row += 1
        number_open, number = sum(sum(each) for _, each in sites), sum(len(each) for _, each in sites)
        widest = max(len(each) for each in heads.values())
        words = f"{KIND_WORDS[kind]}\n{number_open} of {number}"
        axes.text(widest - 0.1, row - 0.5 - len(sites) / 2, words, color=colour, va="center", fontsize=11)
        row += 0.55
    widest = max(len(each) for each in heads.values())
    axes.set(xlim=(-0.7, widest + 2.6), ylim=(row - 0.6, -0.8), xticks=range(widest), xlabel="head")
    axes.xaxis.set_label_coords((widest / 2 + 0.2) / (widest + 3.3), -0.09)
    axes.set_yticks([place for place, _ in ticks], [words for _, words in ticks])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    kept = sweep.l0[lam]
    axes.set_title(f"λ {lam:g}: the {kept['heads_open']} open heads (full) of {kept['heads_total']}", loc="left", fontsize=12)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pictures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="finished run folders: gate runs with different lambdas, bases too")
    parser.add_argument("--name", required=True, help="of the files, e.g. multi30k-en-de")
    parser.add_argument("--out", default="results", help="folder (default: %(default)s)")
    shown = "whose heads to show (default: the fewest heads within 1 BLEU of the reference)"
    parser.add_argument("--map", type=float, metavar="LAMBDA", help=shown)
    options = parser.parse_args()

    from benchmarks.sweep import read_sweep, write_copies, write_table

    out = Path(options.out)
    try:
        sweep = read_sweep([Path(run) for run in options.runs])
        lam = sweep.chosen() if options.map is None else options.map
        if lam not in sweep.l0:
            raise ValueError(f"no run has lambda {lam:g}; --map takes one of {', '.join(f'{each:g}' for each in sweep.l0)}")
        out.mkdir(parents=True, exist_ok=True)
        copies = write_copies(sweep, out / options.name)
        write_table(sweep, out / f"{options.name}.md", title=options.name)
        draw(sweep, lam, out / f"{options.name}.png")
    except ValueError as error:
        print(f"pictures: error: {error}", file=sys.stderr)
        return 1
    print(f"{out / options.name}.png: BLEU over {len(sweep.l0)} lambdas, heads of lambda {lam:g}")
    print(f"{out / options.name}.md: {len(sweep.rows)} rows")
    print(f"{out / options.name}/: {copies} result.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
