"""What a shortened output layer computes and changes, on the terminal."""

from typing import TypedDict

from headgates.configs.program import command_line
from headgates.lab.evaluation import outputs_on
from headgates.pruning.shortlisting import ShortlistRecord, listed_share
from headgates.records.folder import RunFolder
from headgates.records.source import Lines, open_source
from headgates.report.table import show


class ShortlistedResult(TypedDict):
    shortlisted: ShortlistRecord


def print_shortlisted(run: RunFolder) -> None:
    """Print what pruning/shortlisting.py recorded: the rows that are computed, and how many lines change."""
    about = run.read_json("result.json", ShortlistedResult)["shortlisted"]
    cells = [
        [f"{lines} line{'s' * (lines != '1')}", f"{count:,.0f}", f"{count / about['pieces']:.1%}"]
        for lines, count in about["candidates"].items()
    ]
    show(
        f"{run.path}: rows of the output layer, of {about['pieces']:,}",
        ["at once", "computed", "share"],
        cells,
    )
    print(listed_words("the test set", about["listed"], about["translated_otherwise"], about["lines"]))
    print(f"{command_line('export', run.path)} --report speed times it.")


def print_listed_on(run: RunFolder, base: RunFolder, on: str, test: Lines) -> None:
    """Print how much of what the base writes for other lines is listed: a list of one domain may lack the
    words of another."""
    short = open_source(run.path)
    before, after = (outputs_on(each, test) for each in (open_source(base.path), short))
    changed = sum(one != two for one, two in zip(before, after, strict=True))
    print(listed_words(on, listed_share(short.translator, test[0], before), changed, len(after)))


def listed_words(on: str, share: float, changed: int, lines: int) -> str:
    return (
        f"{share:.2%} of the pieces that the base writes for {on} are listed; {changed:,} of its {lines:,} "
        "lines are translated otherwise."
    )
