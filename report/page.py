"""The report page: one HTML file made of page.html, the styles, the scripts and the data of cards.json.

The data stand in the page as JSON, without detail that no drawing shows, so that the page of 288 heads opens
at once: attention weights are whole thousandths, gate paths have at most PATH_POINTS points with two
decimals. NaN and infinity, which JSON lacks, become null.
"""

import json
import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from headgates.data.atomic_file import atomic_file
from headgates.report.palette import css_variables, page_looks

HERE = Path(__file__).parent
STYLES = ("page.css", "card.css")
SCRIPTS = (
    "base.js",
    "headmap.js",
    "curves.js",
    "card.js",
    "attention.js",
    "comparisons.js",
    "tables.js",
    "page.js",
)  # in the order they stand in the page
OF_A_HEAD = (
    "site",
    "kind",
    "layer",
    "head",
)  # without these there is no page; the rest may be missing or null
PATH_POINTS = 90


def write_page(data: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of `data`, the content of a cards.json, to `path`; missing folders are created.

    Raises ValueError where the data have no heads, or a head lacks its site, kind, layer or number."""
    path = Path(path)
    text = page(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode(errors="replace"))  # half a surrogate pair, which JSON can name, is no text


def page(data: Mapping[str, Any]) -> str:
    """The text of the page. Raises ValueError as `write_page` does."""
    check(data)
    drawn = json_ready(
        {
            **data,
            "heads": [{**head, "gate_path": thin_paths(head.get("gate_path"))} for head in data["heads"]],
            "looks": page_looks([str(curve["name"]) for curve in data.get("curves") or []]),
            "examples": [
                {**example, "weights": thousandths(example["weights"])}
                for example in data.get("examples") or []
            ],
        }
    )
    return Template(text_of("page.html")).substitute(
        title=escape(f"{data.get('run') or 'report'} · headgates"),
        style=css_variables() + "\n" + text_of(*STYLES),
        script=text_of(*SCRIPTS),
        data=embedded(drawn),
    )


def text_of(*names: str) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


def check(data: Mapping[str, Any]) -> None:
    heads = data.get("heads") if isinstance(data, Mapping) else None
    if not isinstance(heads, list) or not heads:
        raise ValueError(
            "expected the cards.json of analyze.py, a dictionary with a list of `heads`; got no heads"
        )
    for number, head in enumerate(heads):
        missing = [key for key in OF_A_HEAD if not isinstance(head, Mapping) or head.get(key) is None]
        if missing:
            raise ValueError(
                f"heads[{number}] lacks {', '.join(missing)}; every head has its site, kind, layer and number"
            )


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: no `</script>`, no `<!--`."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )


def json_ready(value: Any) -> Any:
    """The value as JSON can hold it: None for NaN and infinity, lists for tuples, text for the keys of
    dictionaries."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def thousandths(weights: Any) -> Any:
    """Nested lists of weights in [0, 1], of any depth, as whole thousandths."""
    if isinstance(weights, Mapping):
        return {site: thousandths(rows) for site, rows in weights.items()}
    if isinstance(weights, list | tuple):
        return [thousandths(row) for row in weights]
    return round(1000 * weights) if weights is not None and math.isfinite(weights) else 0


def thin_paths(paths: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Gate paths {run: {"steps", "log_alpha"}} of at most PATH_POINTS points, with the first and the last. A
    single path needs no run."""
    if not paths:
        return None
    if "steps" in paths:
        paths = {"": paths}
    return {
        run: thin(path["steps"], path["log_alpha"])
        for run, path in paths.items()
        if path and path.get("steps")
    }


def thin(steps: list[int], log_alpha: list[float]) -> dict[str, list[Any]]:
    last = len(steps) - 1
    kept = (
        range(len(steps))
        if last < PATH_POINTS
        else [round(i * last / (PATH_POINTS - 1)) for i in range(PATH_POINTS)]
    )
    return {
        "steps": [steps[i] for i in kept],
        "log_alpha": [round(log_alpha[i], 2) if math.isfinite(log_alpha[i]) else None for i in kept],
    }
