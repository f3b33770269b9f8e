"""The report page with hostile text wherever a run, a sentence or a name can stand: it is shown as text, and
nothing of it runs."""

import json
import re
from typing import Any

import pytest

from headgates.report.page import page, write_page
from tests.report.synthetic_report import cards

HOSTILE = [
    "</script><img src=x onerror=\"document.title='ran'\">",
    "<!--<script>document.title='ran'</script>",
    "\"'`${document.title='ran'}&lt;&#60;",
    "line\u2028and\u2029paragraph",
    "\u202egnp.\u200f\u2067\u200b",
    "javascript:document.title='ran'",
    "__proto__",
]
PLACES = {"site", "kind", "layer", "head", "type", "metric"}  # what the page's own code looks up


def hostile(value: Any, turn: list[int], key: str = "") -> Any:
    """The data with a hostile text after every text, and after every name that is free."""
    if isinstance(value, dict):
        return {name: item if name in PLACES else hostile(item, turn, name) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, turn, key) for item in value]
    if isinstance(value, str) and key != "role":
        turn[0] += 1
        return f"{value}{HOSTILE[turn[0] % len(HOSTILE)]}"
    return value


@pytest.fixture
def data() -> dict[str, Any]:
    return hostile(cards(layers=2, heads=2), [0])


def test_no_hostile_text_of_the_data_is_markup(data):
    text = page(data)
    assert text.count("</script>") == 2
    assert not re.search(r"<img|onerror=\"", text.split('<script id="data"')[0])
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    assert "<" not in found[1]
    assert json.loads(found[1])["run"] == data["run"]
    assert json.loads(found[1])["examples"][0]["source"] == data["examples"][0]["source"]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d</script>"])
def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path, text):
    write_page({**cards(layers=1, heads=2), "run": text}, tmp_path / "report.html")
    written = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "?" in written
    assert written.count("</script>") == 2


def test_in_a_browser_hostile_text_is_read_and_nothing_of_it_runs(browser, tmp_path, data):
    write_page(data, tmp_path / "report.html")
    errors: list[str] = []
    tab = browser.new_page()
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto((tmp_path / "report.html").as_uri())
    for place in ("button.mark", "#tabs [role=tab]", "#chart-legend button"):
        for i in range(2):
            tab.locator(place).nth(i).click()
            assert tab.locator("img, script[src], iframe, [onerror]").count() == 0
    assert tab.title() == f"{data['run']} · headgates".strip()
    assert HOSTILE[1] in tab.inner_text("body") or HOSTILE[0] in tab.inner_text("body")
    tab.close()
    assert errors == []
