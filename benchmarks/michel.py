"""What Michel et al. 2019 found, on our bases: one page from the files that prune.py and fit.py --dynamics left in the run folders.

    python -m benchmarks.michel runs/multi30k-en-de-none-s1 runs/tatoeba_en_fr-en-fr-none-s1

writes results/michel.md, and the tables, figures and their provenance as they are to results/michel/RUN/.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runfolder.table import markdown_table, read_table

if TYPE_CHECKING:
    from benchmarks.claims import Findings

ORDERS = ["gradient", "ablation", "weight-norm", "random", "reverse"]
KINDS = ["enc-self", "dec-self", "cross"]
COPIED = ("result.json", "curves/*.csv", "curves/*.json", "curves/*.png", "ablation/*.csv", "ablation/*.json", "ablation/*.png")
NOT_COPIED = "-order"  # which heads a curve closed is in the run folder


def read_findings(path: Path) -> "Findings":
    """The tables of one base's folder. Raises ValueError if there is no run, or nothing of prune.py in it."""
    from benchmarks.claims import Findings
    from runfolder.folder import RunFolder

    folder = RunFolder.open(path)
    found = Findings(folder.path.resolve().name)
    for file in sorted((folder / "curves").glob("*.csv")):
        rows = read_table(folder, f"curves/{file.name}")
        about = folder.read_json(f"curves/{file.stem}.json")
        if file.stem == "dynamics":
            found.dynamics = rows
        elif about.get("finished"):
            found.curves[curve_label(about["settings"])] = rows
            found.chosen[curve_label(about["settings"])] = about["chosen"]
    for name, attribute in (("one", "one"), ("all-but-one", "all_but_one")):
        if (folder / f"ablation/{name}.csv").is_file():
            setattr(found, attribute, read_table(folder, f"ablation/{name}.csv"))
    for file in sorted((folder / "ablation").glob("transfer-*.json")):
        found.transfer[file.stem.removeprefix("transfer-")] = folder.read_json(f"ablation/{file.name}")["correlations"]
    if not (found.curves or found.one or found.dynamics):
        raise ValueError(f"{path} has no curves and no ablations; run prune.py on it first")
    return found


def curve_label(fingerprint: dict[str, Any]) -> str:
    """gradient, gradient-cross: the order, and the kinds where they are not all; steps and sentences are in the .json."""
    kinds = fingerprint["kinds"]
    return fingerprint["order"] if len(kinds) == len(KINDS) else f"{fingerprint['order']}-{'+'.join(kinds)}"


def claims_part(all_found: Sequence["Findings"]) -> list[str]:
    from benchmarks.claims import CLAIMS

    lines = ["## The claims", "", "The rules are in benchmarks/claims.py.", ""]
    names = " | ".join(f"`{each.name}`" for each in all_found)
    lines += [f"| | claim | the paper | {names} |", "|---|---|---|" + "---|" * len(all_found)]
    for claim in CLAIMS:
        cells = []
        for found in all_found:
            verdict = claim.judge(found)
            cells.append(
                "not run"
                if verdict is None
                else f"**{verdict.summary}**: " + "; ".join(description for description, _ in verdict.conditions)
            )
        lines.append(f"| {claim.number} | {claim.text} | {claim.paper} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def bases_part(paths: Sequence[Path]) -> list[str]:
    """What was pruned, from each run's result.json: the test BLEU there is with the run's own beam, below with greedy search."""
    from runfolder.folder import RunFolder

    rows = []
    for path in paths:
        folder = RunFolder.open(path)
        result = folder.read_json("result.json")
        row = next(row for row in result["rows"] if row["system"] == "base")
        stage, beam = row["stage"], row["evaluation"]["search"]["beam"]
        state = "converged" if stage["converged"] else "not converged"
        facts = [f"{row['bleu']:.2f} (beam {beam})", f"{row['parameters']:,}", row["heads_total"], f"{min(stage['losses']):.3f}", state]
        name = folder.path.resolve().name
        rows.append([f"`{name}`", *facts, stage["epochs"], f"{stage['seconds'] / 60:.0f}", result["seed"], result["commit"]])
    head = ["base", "test BLEU", "parameters", "heads", "validation loss", "", "epochs", "minutes of training", "seed", "commit"]
    return ["## The bases", "", *markdown_table(head, rows)]


def curves_part(found: "Findings", names: Sequence[str], title: str) -> list[str]:
    """Test BLEU and its difference at every step, the mean over seeds where there are several."""
    shown = [name for name in names if name in found.curves]
    if not shown:
        return []
    from benchmarks.claims import at_share

    shares = sorted({row["closed_share"] for name in shown for row in found.curves[name]})
    steps = sorted({round(share, 1) for share in shares})
    rows = []
    for step in steps:
        cells = [
            f"{at_share(found.curves[name], step, 'test_bleu'):.2f} ({at_share(found.curves[name], step, 'test_bleu_difference'):+.2f})"
            for name in shown
        ]
        rows.append([f"{step:.0%}", *cells])
    return [f"### {title}", "", *markdown_table(["closed", *shown], rows)]


def chosen_part(found: "Findings") -> list[str]:
    rows = []
    for name, chosen in found.chosen.items():
        interval = f"{chosen['test_bleu_difference_low']:+.2f} to {chosen['test_bleu_difference_high']:+.2f}"
        closed = f"{chosen['heads_closed']} ({chosen['closed_share']:.0%})"
        rows.append([name, closed, f"{chosen['test_bleu']:.2f}", f"{chosen['test_bleu_difference']:+.2f}", interval])
    title = "The most heads closed without a significant loss on validation (p >= .01), and what that costs on test"
    return [f"### {title}", "", *markdown_table(["order", "closed", "test BLEU", "difference", "95%"], rows)] if rows else []


def one_part(found: "Findings") -> list[str]:
    if not found.one:
        return []
    rows = []
    for kind in ("all", *KINDS):
        kind_rows = [row for row in found.one if kind in ("all", row["kind"])]
        if not kind_rows:
            continue
        raw, holm = ([row for row in kind_rows if row[column] < 0.01] for column in ("p_value", "p_value_holm"))
        better = sum(row["bleu_difference"] > 0 for row in raw)
        worst, best = (choose(kind_rows, key=lambda row: row["bleu_difference"]) for choose in (min, max))
        extremes = [f"{row['bleu_difference']:+.2f} ({row['site']}.{row['head']})" for row in (worst, best)]
        rows.append([kind, len(kind_rows), len(raw), better, len(holm), *extremes])
    head = ["kind", "heads", "p < .01", "of these better without", "p < .01 (Holm)", "lowest", "highest"]
    return ["### Every head removed alone, test set", "", *markdown_table(head, rows)]


def all_but_one_part(found: "Findings") -> list[str]:
    rows = [
        [
            row["site"],
            row["head"],
            f"{row['bleu_difference']:+.2f}",
            f"{row['difference_low']:+.2f} to {row['difference_high']:+.2f}",
            f"{row['p_value']:.4f}",
            f"{row['p_value_holm']:.4f}",
            f"{row['on_test_bleu_difference']:+.2f}",
        ]
        for row in found.all_but_one
    ]
    head = ["layer", "head kept", "BLEU difference", "95%", "p", "p (Holm)", "had it been chosen on test"]
    return (
        ["### Each layer with its best head alone, chosen on validation, reported on test", "", *markdown_table(head, rows)] if rows else []
    )


def transfer_part(found: "Findings") -> list[str]:
    rows = []
    for name, correlations in found.transfer.items():
        for kind, each in correlations.items():
            cells = [f"{pair[0]:.2f} (p {pair[1]:.2g})" if (pair := each[which]) else "none" for which in ("pearson", "spearman")]
            rows.append([name, kind, each["heads"], *cells])
    head = ["other test set", "kind", "heads", "Pearson r", "Spearman rho"]
    return ["### The heads' BLEU differences on another test set", "", *markdown_table(head, rows)] if rows else []


def dynamics_part(found: "Findings") -> list[str]:
    epochs = sorted({row["epoch"] for row in found.dynamics})
    rows = []
    for epoch in epochs:
        epoch_rows = sorted((row for row in found.dynamics if row["epoch"] == epoch), key=lambda row: row["closed_share"])
        kept = [f"{row['valid_bleu_relative']:.0%}" if row["valid_bleu_relative"] is not None else "" for row in epoch_rows[1:]]
        rows.append([epoch, f"{epoch_rows[0]['valid_bleu']:.1f}", *kept])
    head = ["epoch", "BLEU", *(f"{tenth}0% closed" for tenth in range(1, 10))]
    title = "While the base is trained: validation BLEU, and the share of it that is kept"
    return [f"### {title}", "", *markdown_table(head, rows)] if rows else []


def write_copies(path: Path, out: Path) -> int:
    """The tables, figures and their provenance, as they are; returns how many files."""
    count = 0
    for pattern in COPIED:
        for file in sorted(path.glob(pattern)):
            if NOT_COPIED in file.stem:
                continue
            target = out / file.relative_to(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.michel", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="base run folders on which prune.py was run")
    parser.add_argument("--out", default="results", help="folder (default: %(default)s)")
    options = parser.parse_args()
    out = Path(options.out)
    try:
        runs_and_findings = [(Path(run), read_findings(Path(run))) for run in options.runs]
    except ValueError as error:
        print(f"michel: error: {error}", file=sys.stderr)
        return 1
    lines = ["# Michel et al. 2019 on our bases", "", "Written by `python -m benchmarks.michel` from the files in `michel/`.", ""]
    lines += claims_part([found for _, found in runs_and_findings])
    lines += bases_part([path for path, _ in runs_and_findings])
    for path, found in runs_and_findings:
        lines += [f"## {found.name}", ""]
        lines += curves_part(found, ORDERS, "Test BLEU (difference) by the order in which heads of all kinds are closed")
        lines += curves_part(found, [f"gradient-{kind}" for kind in KINDS], "One kind alone, gradient order")
        lines += chosen_part(found) + one_part(found) + all_but_one_part(found) + transfer_part(found) + dynamics_part(found)
        copied = write_copies(path, out / "michel" / found.name)
        print(f"{out / 'michel' / found.name}/: {copied} files")
    (out / "michel.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"{out / 'michel.md'}: {len(runs_and_findings)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
