"""BERT as in Michel et al. 2019: their claims on a fine-tuned encoder, one page from the files that the
scripts left in the run folders.

    python fit.py --config configs/sst2.yaml --encoder ENCODER --data SST2 --gate none
    python prune.py BASE --by gradient,random
    python prune.py BASE --ablate one
    python fit.py --config configs/sst2.yaml --base BASE --lambda 0.001            (and 0.003, 0.01)
    python export.py BASE --report speed --closed 0.5
    python -m benchmarks.bert_sst2 BASE GATED GATED GATED

writes results/bert-sst2.md, and the tables and figures as they are to results/bert-sst2/RUN/. What was not
run is left out.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.michel import chosen_part, curves_part, one_part, read_findings, section, write_copies
from headgates.workbench.table import markdown_table

if TYPE_CHECKING:
    from benchmarks.claims import Claim, Findings, Verdict
    from headgates.workbench.folder import RunFolder

NAME = "bert-sst2"
SPEED = ("speed/report.json", "speed/report.md", "speed/speed.png")
LEARNED = ("result.json", "config.yaml", "gates.json")
GAIN = 1.1  # C9: how many times as fast counts as a gain


def some_then_sharp(findings: "Findings", chance: float) -> "Verdict | None":
    """C5 of BERT: 40% go without noticeable loss, then accuracy falls. chance: % right by guessing."""
    from benchmarks.claims import Verdict, at_share
    from headgates.analysis.significance import LEVEL

    rows = findings.curves.get("gradient")
    if not rows:
        return None
    main = f"test_{findings.metric}"
    p, loss = at_share(rows, 0.4, f"{main}_p_value"), at_share(rows, 0.4, f"{main}_difference")
    whole, late = at_share(rows, 0.0, main), at_share(rows, 0.8, main)
    return Verdict(
        (f"40% closed: {loss:+.2f} {findings.title}, p {p:.3f}", p >= LEVEL or loss >= 0),
        (
            f"80% closed: {late:.1f} of {whole:.1f}, guessing gives {chance:.0f}",
            late - chance < (whole - chance) / 2,
        ),
    )


def half_the_heads(speed: Mapping[str, Any]) -> "Verdict | None":
    """C9: with half of the heads removed, larger batches gain and a single sentence hardly does."""
    from benchmarks.claims import Verdict

    if not speed:
        return None
    gain = {batch: times["median"] for batch, times in speedups(speed).items()}
    large = [gain[batch] for batch in (16, 64)]
    return Verdict(
        (f"batch 16 and 64: {large[0]:.2f} and {large[1]:.2f} times as fast", min(large) >= GAIN),
        (f"batch 1: {gain[1]:.2f} times", gain[1] - 1 < (gain[64] - 1) / 2),
    )


def speedups(speed: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """batch -> how many times as fast removed is as dense, all lengths together, round by round."""
    from headgates.report.speed.measure import ratio_by_round
    from headgates.report.speed.page import in_order, pooled

    rows = speed["rows"]
    return {
        batch: ratio_by_round(*(pooled(rows, system, 1, batch)["values"] for system in ("removed", "dense")))
        for batch in in_order(rows, "batch")
    }


def encoder_claims(chance: float) -> list["Claim"]:
    """The claims that a fine-tuned encoder can be asked, C5 and C9 with rules of their own. chance: % right
    by guessing."""
    from benchmarks.claims import CLAIMS, Claim

    known = {claim.number: claim for claim in CLAIMS}
    return [
        known["C1"],
        known["C2"],
        Claim(
            "C5",
            "some 40% of BERT's heads go without noticeable loss, then quality falls sharply",
            "up to 40% on MNLI",
            "40% closed lose nothing significant (p >= .01), 80% closed lose more than half of what is above guessing",
            lambda findings: some_then_sharp(findings, chance),
        ),
        Claim(
            "C9",
            "half of the heads removed makes large batches faster, one sentence hardly",
            "+17.5% at batch 16 and 64, +1.9% at 1, on a GPU",
            f"at least {GAIN:g} times as fast at batch 16 and 64, and at batch 1 less than half of the gain at 64",
            lambda findings: half_the_heads(findings.speed),
        ),
    ]


def claims_part(findings: "Findings", chance: float) -> list[str]:
    rows = []
    for claim in encoder_claims(chance):
        verdict = claim.judge(findings)
        rows.append(
            [
                claim.number,
                claim.text,
                claim.paper,
                claim.rule,
                "not run" if verdict is None else str(verdict),
            ]
        )
    return [
        "## The claims",
        "",
        *markdown_table(["", "claim", "the paper, on translation or BERT", "rule", "here"], rows, left=5),
    ]


def base_part(folder: "RunFolder") -> list[str]:
    row, result, config = folder.rows()[0], folder.read_json("result.json"), folder.config()
    stage = row.stage or {}
    facts = [
        f"{row.main.value:.2f}",
        f"{row.parameters:,}",
        row.heads_total,
        f"{min(stage['losses']):.3f}",
        stage["epochs"],
        f"{stage['seconds'] / 60:.0f}",
    ]
    train = result["data"]["train"]["pairs"]
    head = [
        "base",
        f"test {row.metric}",
        "parameters",
        "heads",
        "validation loss",
        "epochs",
        "minutes",
        "seed",
        "commit",
    ]
    name = Path(str(config["encoder"])).name
    about = f"`{name}`, fine-tuned on {train:,} sentences; {result['device']}."
    row_here = [f"`{folder.path.resolve().name}`", *facts, result["seed"], result["commit"]]
    return ["## The base", "", about, "", *markdown_table(head, [row_here])]


def learned_part(folders: Sequence["RunFolder"]) -> list[str]:
    from headgates.report.terminal import interval_text

    rows = []
    for folder in folders:
        for row in folder.rows():
            main = row.main
            if row.system == row.reference or main.difference is None or main.p_value is None:
                compared = ["reference", "", "", ""]
            else:
                compared = [
                    f"{main.difference:+.2f}",
                    interval_text(main.difference_ci95),
                    f"{main.p_value:.3f}",
                    f"{main.p_mcnemar:.3f}",
                ]
            rows.append(
                [
                    folder.config()["lambda"],
                    row.system,
                    f"{row.heads_open}/{row.heads_total}",
                    f"{main.value:.2f}",
                    *compared,
                ]
            )
    head = ["lambda", "system", "heads", "test accuracy", "difference", "95%", "p", "p (McNemar)"]
    return section("Learned gates, and pruning by importance at as many heads", head, rows)


def speed_part(speed: Mapping[str, Any]) -> list[str]:
    from headgates.report.speed.measure import interval_text
    from headgates.report.speed.page import pooled

    rows = []
    for batch, times in speedups(speed).items() if speed else ():
        speeds = [
            interval_text(pooled(speed["rows"], system, 1, batch), 1)
            for system in ("dense", "masked", "removed")
        ]
        rows.append([batch, *speeds, interval_text(times)])
    closed = f"{speed['heads']['closed']} of {speed['heads']['total']}" if speed else ""
    title = f"Sentences per second with {closed} heads closed (the paper's table 4): median of the rounds (lowest to highest)"
    return section(title, ["batch", "dense", "masked", "removed", "removed over dense"], rows)


def page(base: "RunFolder", gated: Sequence["RunFolder"]) -> str:
    """The page. Raises ValueError where the base has no tables of prune.py."""
    findings = read_findings(base.path)
    findings.speed = base.read_json(SPEED[0]) if (base / SPEED[0]).is_file() else {}
    chance = 100 / base.read_json("result.json")["data"]["vocabulary"]["labels"]
    lines = [
        "# Michel et al. 2019 on a fine-tuned encoder",
        "",
        f"Written by `python -m benchmarks.bert_sst2` from the files in `{NAME}/`.",
        "",
    ]
    lines += claims_part(findings, chance) + base_part(base)
    lines += curves_part(
        findings, ["gradient", "random"], "Test accuracy (difference) by the order in which heads are closed"
    )
    lines += chosen_part(findings) + one_part(findings) + learned_part(gated) + speed_part(findings.speed)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    from headgates.workbench.folder import RunFolder

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bert_sst2",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "base", metavar="BASE", help="run folder of a fine-tuned encoder on which prune.py was run"
    )
    parser.add_argument("gated", nargs="*", metavar="GATED", help="runs with gates on it")
    parser.add_argument("--out", default="results", help="folder (default: %(default)s)")
    options = parser.parse_args()
    out = Path(options.out)
    try:
        base, *gated = (RunFolder.open(path) for path in (options.base, *options.gated))
        text = page(base, gated)
    except ValueError as error:
        print(f"bert_sst2: error: {error}", file=sys.stderr)
        return 1
    count = write_copies(base.path, out / NAME / base.path.name, SPEED)
    count += sum(write_copies(folder.path, out / NAME / folder.path.name, LEARNED) for folder in gated)
    (out / f"{NAME}.md").write_text(text, encoding="utf-8")
    print(f"{out / NAME}.md; {out / NAME}/: {count} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
