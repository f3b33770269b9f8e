"""What a benchmark imports when it measures exists: most of it is imported late, where no test looks."""

import ast
import importlib
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in nodes if (node.module or "").startswith(("headgates", "benchmarks"))]
    missing = [
        f"{node.module}.{alias.name}"
        for node in ours
        for alias in node.names
        if not hasattr(importlib.import_module(str(node.module)), alias.name)
    ]
    assert missing == []
