"""The comparisons beside a base, as its page shows them."""

from base64 import b64encode
from contextlib import suppress
from typing import Any, NotRequired, TypedDict

from headgates.records.folder import RunFolder

COMPARISON_NAME = "compare"  # of a comparison's files, without their endings


class ComparisonRecord(TypedDict):
    """What is read of compare.json. groups: the columns of each; ranks: epochs -> label -> rank."""

    title: str
    base_hash: str | None
    summary: list[str]
    groups: list[dict[str, Any]]
    ranks: NotRequired[dict[str, dict[str, float]]]


def comparisons_of(base: RunFolder) -> list[dict[str, Any]]:
    """The comparisons beside a base that are of it, by name: title, summary, a row for each group, and the
    figure as an address that holds it. One whose file is broken or gone is left out: it can be written again,
    and no page must wait for it."""
    found = []
    for path in sorted(base.path.resolve().parent.glob(f"compare-*/{COMPARISON_NAME}.json")):
        folder = RunFolder(path.parent)
        with suppress(ValueError, OSError):
            content = folder.read_json(f"{COMPARISON_NAME}.json", ComparisonRecord)
            if content["base_hash"] != base.run_hash():
                continue
            svg = b64encode((folder / f"{COMPARISON_NAME}.svg").read_bytes()).decode()
            found.append(
                {
                    "name": path.parent.name,
                    "title": content["title"],
                    "summary": content["summary"],
                    "points": content["groups"],
                    "figure": f"data:image/svg+xml;base64,{svg}",
                }
            )
    return found
