import pytest

from headgates.report import drawing


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    monkeypatch.setattr(drawing, "DOTS_PER_INCH", 30)
