"""`import headgates` is quick, needs nothing, and offers the names that type checkers see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headgates

FILE = Path(headgates.__file__)


def test_importing_the_package_imports_no_torch_until_a_name_is_asked_for():
    there = "print('torch' in sys.modules)"
    code = f"import headgates, sys; {there}; headgates.attach; {there}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]


def test_type_checkers_see_the_names_that_are_there_and_no_others():
    seen = {
        alias.asname: node.module
        for node in ast.walk(ast.parse(FILE.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("headgates.")
        for alias in node.names
    }
    assert seen == headgates.FACE
    for name in headgates.FACE:
        assert getattr(headgates, name).__name__ == name
        assert name in dir(headgates)


def test_another_name_is_an_attribute_error_that_lists_them():
    with pytest.raises(AttributeError, match=r"no attribute 'prun'; it has attach, detach"):
        headgates.prun  # noqa: B018
