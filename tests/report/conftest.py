"""Small pictures, and one browser and one server of explore's page for all tests."""

import json
import shutil
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgates.commands.explore import ExploreOptions, server_of
from headgates.gates import find_sites
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from headgates.report import drawing
from headgates.report.explore.server import Server
from tests.report.made_runs import TOY

GATED = TOY.with_name("toy-en-de-l0-0.015-s1")
SHUT = [  # the heads that the example's gates closed
    (site, row["head"])
    for site, rows in json.loads((GATED / "gates.json").read_text())["sites"].items()
    for row in rows
    if not row["open"]
]


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


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[Server]:
    """explore's server of the example's base, against one whose closed heads stay in the model."""
    run = RunFolder(shutil.copytree(TOY, tmp_path_factory.mktemp("masked") / "run"))
    sites = find_sites(open_source(TOY, device="cpu").model)
    xi = {site.name: [float((site.name, head) not in SHUT) for head in range(site.heads)] for site in sites}
    run.add_system("masked", run / "best.pt", xi)
    with server_of(ExploreOptions(str(TOY), against=f"{run.path}:masked", port=0, threads=1)) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield one
        one.shutdown()
        thread.join()
