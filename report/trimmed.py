"""What a vocabulary of fewer pieces changes, on the terminal."""

from typing import TypedDict

from headgates.pruning.trimming import TrimmedRecord
from headgates.records.folder import RunFolder
from headgates.report.table import show


class TrimmedResult(TypedDict):
    trimmed: TrimmedRecord


def print_trimmed(run: RunFolder) -> None:
    """Print what pruning/trimming.py recorded: pieces and bytes, and how many lines change."""
    about = run.read_json("result.json", TrimmedResult)["trimmed"]
    pieces, sizes = about["pieces"], about["bytes"]
    cells = [
        [
            name,
            *(f"{pieces[side][i]:,}" for side in ("source", "target")),
            f"{about['parameters'][i]:,}",
            f"{sizes[i] / 1e6:.2f}",
        ]
        for i, name in enumerate(("all pieces", "trimmed"))
    ]
    show(f"{run.path}", ["", "source pieces", "target pieces", "parameters", "MB"], cells)
    text, test = about["text"], about["test"]
    print(
        f"Of the {text['lines']:,} lines of the text {text['cut_otherwise']:,} are cut otherwise and "
        f"{text['translated_otherwise']:,} translated otherwise; of the {test['lines']:,} test lines "
        f"{test['cut_otherwise']:,} and {test['translated_otherwise']:,}."
    )
