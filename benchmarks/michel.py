"""What Michel et al. 2019 found, on our bases: one page from the files that prune.py and fit.py --dynamics
left in the run folders.

    python -m benchmarks.michel runs/multi30k-en-de-none-s1 runs/tatoeba_en_fr-en-fr-none-s1

writes results/michel.md, and the tables, figures and their provenance as they are to results/michel/RUN/.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgates.workbench.table import markdown_table, read_table

if TYPE_CHECKING:
    from benchmarks.claims import Findings
    from headgates.workbench.folder import RunFolder

ORDERS = ["gradient", "ablation", "weight-norm", "random", "reverse"]
KINDS = ["enc-self", "dec-self", "cross"]
COPIED = (
    "result.json",
    "curves/*.csv",
    "curves/*.json",
    "curves/*.png",
    "ablation/*.csv",
    "ablation/*.json",
    "ablation/*.png",
)
NOT_COPIED = "-order"  # which heads a curve closed is in the run folder


def read_findings(path: Path) -> "Findings":
    """The tables of one base's folder. Raises ValueError if there is no run, or nothing of prune.py in it."""
    from headgates.tasks import task_of
    from headgates.workbench.folder import RunFolder

    folder = RunFolder.open(path)
    metric = task_of(folder.config()).metrics[0]
    findings = read_tables(folder, metric.name, metric.title)
    if findings.one and "p_sacrebleu" not in findings.one[0]:
        raise ValueError(
            f"{path}: its p-values are sacreBLEU's, of one tail; prune.py --ablate one makes them again from what it kept"
        )
    if not (findings.curves or findings.one or findings.dynamics):
        raise ValueError(f"{path} has no curves and no ablations; run prune.py on it first")
    return findings


def read_tables(folder: "RunFolder", metric: str = "bleu", title: str = "BLEU") -> "Findings":
    """The tables of a base's folder, or of a copy of it in results/. metric, title: what decides, as columns
    name it and as text does."""
    from benchmarks.claims import Findings

    findings = Findings(folder.path.resolve().name, metric, title)
    for file in sorted((folder / "curves").glob("*.csv")):
        rows = read_table(folder, f"curves/{file.name}")
        about = folder.read_json(f"curves/{file.stem}.json")
        if file.stem == "dynamics":
            findings.dynamics = rows
            findings.files["dynamics"] = f"curves/{file.stem}.json"
        elif about.get("finished"):
            label = curve_label(about["settings"])
            findings.curves[label], findings.chosen[label], findings.settings[label] = (
                rows,
                about["chosen"],
                about["settings"],
            )
            findings.files[label] = f"curves/{file.stem}.json"
    for name, attribute in (("one", "one"), ("all-but-one", "all_but_one")):
        if (folder / f"ablation/{name}.csv").is_file():
            setattr(findings, attribute, read_table(folder, f"ablation/{name}.csv"))
            findings.files[name] = f"ablation/{name}.json"
    for file in sorted((folder / "ablation").glob("transfer-*.json")):
        findings.transfer[file.stem.removeprefix("transfer-")] = folder.read_json(f"ablation/{file.name}")[
            "correlations"
        ]
        findings.files[file.stem] = f"ablation/{file.name}"
    return findings


def curve_label(fingerprint: dict[str, Any]) -> str:
    """gradient, gradient-cross: the order, and the kinds where they are not all; steps and sentences are in
    the .json."""
    kinds = fingerprint["kinds"]
    return fingerprint["order"] if len(kinds) == len(KINDS) else f"{fingerprint['order']}-{'+'.join(kinds)}"


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """The lines of a table with its title; none without a row."""
    return [f"### {title}", "", *markdown_table(head, rows)] if rows else []


def claims_part(all_findings: Sequence["Findings"]) -> list[str]:
    from benchmarks.claims import CLAIMS

    rows = []
    for claim in CLAIMS:
        verdicts = [claim.judge(findings) for findings in all_findings]
        rows.append(
            [
                claim.number,
                claim.text,
                claim.paper,
                *("not run" if verdict is None else str(verdict) for verdict in verdicts),
            ]
        )
    head = ["", "claim", "the paper", *(f"`{findings.name}`" for findings in all_findings)]
    return [
        "## The claims",
        "",
        "The rules are in benchmarks/claims.py.",
        "",
        *markdown_table(head, rows, left=len(head)),
    ]


def bases_part(paths: Sequence[Path]) -> list[str]:
    """What was pruned, from each run's result.json: the test BLEU there is with the run's own beam, below
    with greedy search."""
    from headgates.workbench.folder import RunFolder

    rows = []
    for path in paths:
        folder = RunFolder.open(path)
        result = folder.read_json("result.json")
        row = next(row for row in result["rows"] if row["system"] == "base")
        stage, beam = row["stage"], row["evaluation"]["search"]["beam"]
        state = "converged" if stage["converged"] else "not converged"
        facts = [
            f"{row['bleu']:.2f} (beam {beam})",
            f"{row['parameters']:,}",
            row["heads_total"],
            f"{min(stage['losses']):.3f}",
            state,
        ]
        name = folder.path.resolve().name
        rows.append(
            [
                f"`{name}`",
                *facts,
                stage["epochs"],
                f"{stage['seconds'] / 60:.0f}",
                result["seed"],
                result["commit"],
            ]
        )
    head = [
        "base",
        "test BLEU",
        "parameters",
        "heads",
        "validation loss",
        "",
        "epochs",
        "minutes of training",
        "seed",
        "commit",
    ]
    return ["## The bases", "", *markdown_table(head, rows)]


def curves_part(findings: "Findings", names: Sequence[str], title: str) -> list[str]:
    """Test BLEU and its difference at every step, the mean over seeds where there are several."""
    from benchmarks.claims import at_share

    curves = {name: findings.curves[name] for name in names if name in findings.curves}
    rows = []
    for step in sorted({round(row["closed_share"], 1) for curve in curves.values() for row in curve}):
        columns = (f"test_{findings.metric}", f"test_{findings.metric}_difference")
        means = ([at_share(curve, step, column) for column in columns] for curve in curves.values())
        rows.append([f"{step:.0%}", *(f"{value:.2f} ({difference:+.2f})" for value, difference in means)])
    return section(title, ["closed", *curves], rows)


def chosen_part(findings: "Findings") -> list[str]:
    rows = []
    for name, chosen in findings.chosen.items():
        main = f"test_{findings.metric}"
        interval = f"{chosen[f'{main}_difference_low']:+.2f} to {chosen[f'{main}_difference_high']:+.2f}"
        closed = f"{chosen['heads_closed']} ({chosen['closed_share']:.0%})"
        rows.append([name, closed, f"{chosen[main]:.2f}", f"{chosen[f'{main}_difference']:+.2f}", interval])
    title = "The most heads closed without a significant loss on validation (p >= .01), and what that costs on test"
    return section(title, ["order", "closed", f"test {findings.title}", "difference", "95%"], rows)


def one_part(findings: "Findings") -> list[str]:
    from headgates.workbench.ablation import significance_counts

    difference = f"{findings.metric}_difference"
    counts = significance_counts(findings.one, difference)
    rows = []
    for kind in ("all", *KINDS) if findings.one else ():
        kind_rows = [row for row in findings.one if kind in ("all", row["kind"])]
        if not kind_rows:
            continue
        raw, holm = counts["raw"][kind], counts["holm"][kind]
        worst, best = (choose(kind_rows, key=lambda row: row[difference]) for choose in (min, max))
        extremes = [f"{row[difference]:+.2f} ({row['site']}.{row['head']})" for row in (worst, best)]
        rows.append([kind, raw["tested"], raw["significant"], raw["improve"], holm["significant"], *extremes])
    head = ["kind", "heads", "p < .01", "of these better without", "p < .01 (Holm)", "lowest", "highest"]
    return section("Every head removed alone, test set", head, rows)


def all_but_one_part(findings: "Findings") -> list[str]:
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
        for row in findings.all_but_one
    ]
    head = ["layer", "head kept", "BLEU difference", "95%", "p", "p (Holm)", "had it been chosen on test"]
    return section("Each layer with its best head alone, chosen on validation, reported on test", head, rows)


def transfer_part(findings: "Findings") -> list[str]:
    rows = []
    for name, correlations in findings.transfer.items():
        for kind, each in correlations.items():
            cells = [
                f"{pair[0]:.2f} (p {pair[1]:.2g})" if (pair := each[which]) else "none"
                for which in ("pearson", "spearman")
            ]
            rows.append([name, kind, each["heads"], *cells])
    head = ["other test set", "kind", "heads", "Pearson r", "Spearman rho"]
    return section("The heads' BLEU differences on another test set", head, rows)


def dynamics_part(findings: "Findings") -> list[str]:
    epochs = sorted({row["epoch"] for row in findings.dynamics})
    rows = []
    for epoch in epochs:
        epoch_rows = sorted(
            (row for row in findings.dynamics if row["epoch"] == epoch), key=lambda row: row["closed_share"]
        )
        kept = [
            f"{row['valid_bleu_relative']:.0%}" if row["valid_bleu_relative"] is not None else ""
            for row in epoch_rows[1:]
        ]
        rows.append([epoch, f"{epoch_rows[0]['valid_bleu']:.1f}", *kept])
    head = ["epoch", "BLEU", *(f"{tenth}0% closed" for tenth in range(1, 10))]
    return section("While the base is trained: validation BLEU, and the share of it that is kept", head, rows)


def write_copies(path: Path, out: Path, more: Sequence[str] = ()) -> int:
    """The tables, figures and their provenance, as they are, and files of `more` patterns; returns how many
    files."""
    count = 0
    for pattern in dict.fromkeys((*COPIED, *more)):
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
        prog="python -m benchmarks.michel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
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
    lines = [
        "# Michel et al. 2019 on our bases",
        "",
        "Written by `python -m benchmarks.michel` from the files in `michel/`.",
        "",
    ]
    lines += claims_part([findings for _, findings in runs_and_findings])
    lines += bases_part([path for path, _ in runs_and_findings])
    for path, findings in runs_and_findings:
        lines += [f"## {findings.name}", ""]
        lines += curves_part(
            findings, ORDERS, "Test BLEU (difference) by the order in which heads of all kinds are closed"
        )
        lines += curves_part(
            findings, [f"gradient-{kind}" for kind in KINDS], "One kind alone, gradient order"
        )
        lines += (
            chosen_part(findings)
            + one_part(findings)
            + all_but_one_part(findings)
            + transfer_part(findings)
            + dynamics_part(findings)
        )
        copied = write_copies(path, out / "michel" / findings.name)
        print(f"{out / 'michel' / findings.name}/: {copied} files")
    (out / "michel.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"{out / 'michel.md'}: {len(runs_and_findings)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
