"""Small pictures, and one browser for all tests of the page."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from headgates.report import drawing


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 30)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()
