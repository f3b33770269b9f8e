"""Every benchmark can be imported: what it imports exists."""

import importlib
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    importlib.import_module(f"benchmarks.{path.stem}")
