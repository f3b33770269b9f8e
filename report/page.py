"""The report page: one HTML file made of page.html, the styles, the scripts and the data of cards.json.

The data stand in the page as JSON, without detail that no drawing shows, so that the page of 288 heads opens
at once: attention weights are whole thousandths, gate paths have at most PATH_POINTS points with two
decimals. NaN and infinity, which JSON lacks, become null.
"""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from headgates.data.atomic_file import atomic_file
from headgates.report.palette import css_variables, page_looks

REPORT_FOLDER = Path(__file__).parent
STYLES = ("page.css", "card.css")
# in the order they stand in the page; the first are those of explore's page too
SHARED_SCRIPTS = ("base.js", "address.js", "headmap.js", "card.js", "attention.js", "frame.js")
OWN_SCRIPTS = (
    *("curves.js", "shapes.js", "lines.js", "comparisons.js", "causes.js", "contrasts.js", "tables.js"),
    "page.js",
)
SCRIPTS = (*SHARED_SCRIPTS, *OWN_SCRIPTS)
PATH_POINTS = 90


def write_page(data: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of `data`, the content of a cards.json, to `path`; missing folders are created."""
    path = Path(path)
    text = page(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(text.encode(errors="replace"))  # half a surrogate pair, which JSON can name, is no text


def page(data: Mapping[str, Any]) -> str:
    """The text of the page."""
    heads = [{**head, "gate_path": thin_paths(head.get("gate_path"))} for head in data["heads"]]
    examples = [{**each, "weights": thousandths(each["weights"])} for each in data.get("examples") or []]
    sentences = [
        {**each, "weights": {site: thousandths(heads) for site, heads in each["weights"].items()}}
        for each in data.get("sentences") or []
    ]
    looks = page_looks(data.get("curves") or [])
    return framed(
        {**data, "heads": heads, "examples": examples, "sentences": sentences, "looks": looks},
        body="report_body.html",
        styles=STYLES,
        scripts=SCRIPTS,
    )


def framed(
    data: Mapping[str, Any], *, body: str, styles: Sequence[str], scripts: Sequence[str], policy: str = ""
) -> str:
    """A page with the data in it: page.html with the files of its body, styles and scripts.

    policy: what it may do beside drawing itself, in the words of a Content-Security-Policy."""
    return Template(text_of("page.html")).substitute(
        title=escape(f"{data.get('run') or 'report'} · headgates"),
        style=css_variables() + "\n" + text_of(*styles),
        body=text_of(body),
        script=text_of(*scripts),
        data=embedded(data),
        policy=policy,
    )


def text_of(*names: str) -> str:
    return "\n".join((REPORT_FOLDER / name).read_text(encoding="utf-8") for name in names)


def embedded(data: Any) -> str:
    """JSON that may stand in a script element: no `</script>`, no `<!--`."""
    return compact(data).replace("<", "\\u003c")


def compact(data: Any) -> str:
    """JSON without spaces, as attention weights are many numbers; NaN and infinity, which JSON lacks, are
    null."""
    return json.dumps(json_ready(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_ready(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


def thousandths(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights in [0, 1] by site as whole thousandths."""
    return {
        site: np.rint(1000 * np.nan_to_num(np.array(rows, float))).astype(int).tolist()
        for site, rows in weights.items()
    }


def thin_paths(paths: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Gate paths {run: {"steps", "log_alpha"}} of at most PATH_POINTS points, with the first and the last."""
    thin = {}
    for run, path in (paths or {}).items():
        last = len(path["steps"]) - 1
        kept = np.unique(np.linspace(0, last, min(last + 1, PATH_POINTS)).round().astype(int))
        log_alpha = [None if path["log_alpha"][i] is None else round(path["log_alpha"][i], 2) for i in kept]
        thin[run] = {"steps": [path["steps"][i] for i in kept], "log_alpha": log_alpha}
    return thin or None
