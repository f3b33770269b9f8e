"""What a shortened output layer computes and changes, on the terminal."""

from typing import TypedDict

from headgates.configs.program import program
from headgates.pruning.shortlisting import ShortlistRecord
from headgates.records.folder import RunFolder
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
    print(
        f"{about['listed']:.2%} of the pieces that the base writes for the test set are listed; "
        f"{about['translated_otherwise']:,} of its {about['lines']:,} lines are translated otherwise. "
        f"{program('export')} {run.path} --report speed times it."
    )
