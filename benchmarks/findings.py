"""The eighteen claims of Michel et al. 2019, Voita et al. 2019 and Li et al. 2021, judged on what results/
holds.

    python -m benchmarks.findings

writes docs/findings.md. A claim without a record says so, with the command that makes one.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from os.path import relpath
from pathlib import Path
from typing import TYPE_CHECKING

from headgates.workbench.table import markdown_table

if TYPE_CHECKING:
    from benchmarks.claims import Claim
    from benchmarks.findings_bases import Base

ROOT = Path(__file__).resolve().parents[1]
AUTHORS = {
    **{f"C{number}": "Michel et al. 2019" for number in range(1, 10)},
    **{f"C{number}": "Voita et al. 2019" for number in range(10, 17)},
    "C17": "Voita et al. 2019, Michel et al. 2019",
    "C18": "Li et al. 2021",
}
INTRODUCTION = """\
Which of the papers' claims are seen again on other models and text? Each claim has a rule, conditions that stand in `benchmarks/claims.py`
and `benchmarks/claims_of_gates.py` (those of an encoder in `benchmarks/bert_sst2.py`): it **holds** if all are met, **holds in part** if
some are, and **does not hold here** if none is. C1 to C7 had their rules before their numbers, and so had C10, C12 and C18; the others
were written with recorded numbers known, so their verdicts on these are no prediction. Rules are strict: read the numbers behind a verdict.
A base is asked the claims that it can answer; an empty cell was not asked.

Every number is computed by `python -m benchmarks.findings` from the files in `results/`. Intervals are the middle 95% of the paired
bootstrap over test sentences, without the luck of training; p is two-sided unless said otherwise; neither is adjusted for how many there
are, but where Holm is named. An interval called unpaired is made of two models' own intervals as if they were independent, which is too
wide. Where a rule takes the best of several models it is chosen on the lines that it is measured on, which flatters it."""


def judged(claim: "Claim", base: "Base") -> str:
    """The cell of the first table: a verdict, not run, or empty where the claim is not asked."""
    if claim.number not in base.claims:
        return ""
    verdict = base.claims[claim.number].judge(base.findings)
    return "not run" if verdict is None else verdict.summary


def first_table(claims: Iterable["Claim"], bases: Sequence["Base"]) -> list[str]:
    rows = [
        [
            f"[{claim.number}](#{claim.number.lower()})",
            claim.text,
            claim.paper,
            *(judged(claim, base) for base in bases),
        ]
        for claim in claims
    ]
    head = ["", "claim", "the paper", *(base.title for base in bases)]
    return markdown_table(head, rows, left=len(head))


def base_lines(claim: "Claim", base: "Base", page: Path) -> list[str]:
    """What a base says of a claim: verdict, numbers, record."""
    from benchmarks.intervals import MEASURED

    own = base.claims[claim.number]
    verdict = own.judge(base.findings)
    if verdict is None:
        how = f": {base.missing[claim.number]}" if claim.number in base.missing else ""
        return [f"**{base.title}**: not run{how}", ""]
    notes = ([base.notes[claim.number]] if claim.number in base.notes else []) + (
        [f"rule: {own.rule}"] if own.rule != claim.rule else []
    )
    about = f" ({'; '.join(notes)})" if notes else ""
    places = [relpath(path, page.parent) for path in base.records.get(claim.number, [])]
    links = ", ".join(f"[{Path(place).parent.name}/{Path(place).name}]({place})" for place in places)
    measured = [f"- {line}" for line in MEASURED[claim.number](base.findings)]
    return [f"**{base.title}**{about}: {verdict}", "", *measured, *([f"- from {links}"] if links else []), ""]


def claim_part(claim: "Claim", bases: Sequence["Base"], page: Path) -> list[str]:
    asked = [base for base in bases if claim.number in base.claims]
    lines = [f"## {claim.number}", "", f"{AUTHORS[claim.number]}: {claim.text}. Theirs: {claim.paper}.", ""]
    lines += [f"Rule: {claim.rule}.", ""]
    for base in asked:
        lines += base_lines(claim, base, page)
    run = [base for base in asked if base.claims[claim.number].judge(base.findings) is not None]
    commands = dict.fromkeys(
        command for base in run for command in commands_of(base.records.get(claim.number, []))
    )
    return [*lines, "```bash", *commands, "```", ""] if commands else lines


def commands_of(records: Iterable[Path]) -> list[str]:
    """The commands in the JSON files of the records, each once."""
    from headgates.workbench.folder import RunFolder

    found = (
        RunFolder(path.parent).read_json(path.name)["command"] for path in records if path.suffix == ".json"
    )
    return list(dict.fromkeys(found))


def page(results: Path, path: Path) -> str:
    """The page, whose links are relative to `path`. Raises ValueError where a record is broken."""
    from benchmarks.findings_bases import all_claims, read_bases
    from benchmarks.papers_numbers import beside_ours

    bases, claims = read_bases(results), all_claims().values()
    lines = ["# Findings: eighteen claims, measured again", "", INTRODUCTION, "", *first_table(claims, bases)]
    lines += [f"- **{base.title}**: {base.about}" for base in bases] + [""]
    for claim in claims:
        lines += claim_part(claim, bases, path)
    lines += beside_ours([base for base in bases if base.findings.metric == "bleu"])
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.findings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--results", default=str(ROOT / "results"), help="folder of the records (default: results)"
    )
    parser.add_argument(
        "--out", default=str(ROOT / "docs/findings.md"), help="the page (default: docs/findings.md)"
    )
    options = parser.parse_args()
    from headgates.data.atomic_file import atomic_file

    out = Path(options.out).resolve()
    try:
        text = page(Path(options.results).resolve(), out)
        with atomic_file(out) as file:
            file.write(text.encode())
    except (ValueError, OSError) as error:
        print(f"findings: error: {error}", file=sys.stderr)
        return 1
    print(f"{out}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
