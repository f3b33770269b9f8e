"""The comparisons beside a base, as its page shows them."""

from base64 import b64encode
from contextlib import suppress
from typing import Any

from headgates.records.folder import RunFolder

COMPARISON_NAME = "compare"  # of a comparison's files, without their endings


def comparisons_of(base: RunFolder) -> list[dict[str, Any]]:
    """The comparisons beside a base that are of it, by name: title, summary, a row for each group, and the
    figure as an address that holds it. One whose file is broken or gone is left out: it can be written again,
    and no page must wait for it."""
    found = []
    for path in sorted(base.path.resolve().parent.glob(f"compare-*/{COMPARISON_NAME}.json")):
        folder = RunFolder(path.parent)
        with suppress(ValueError, OSError, KeyError):
            content = folder.read_json(f"{COMPARISON_NAME}.json")
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
