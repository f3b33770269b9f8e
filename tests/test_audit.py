"""Versions with a known hole are reported, and the hashes of CI are those of constraints.txt."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def audited(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / ".ci/audit.py"), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pyproject.toml", '"torch>=2.10"', '"torch>=2.9"'),
        ("pyproject.toml", '"ctranslate2>=4.8.3"', '"ctranslate2"'),
        ("constraints.txt", "pyarrow==26.0.1", "pyarrow==23.0.0"),
    ],
)
def test_a_version_with_a_known_hole_is_a_line_of_its_own(tmp_path, file, old, new):
    (tmp_path / ".ci").mkdir()
    for name in ("pyproject.toml", "constraints.txt", ".ci/advisories.csv"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    code, clean = audited(tmp_path)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    changed, lines = audited(tmp_path)
    assert changed == 1
    assert [line for line in lines.splitlines() if line.startswith(file) and line not in clean]
    assert code == 0, clean


def test_every_pinned_package_but_torch_has_a_hash_of_this_version():
    pinned = {line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    text = (ROOT / ".ci/hashes.txt").read_text()
    hashed = {
        found.lower() for found in re.findall(r"^(\S+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M)
    }

    def plain(names: set[str]) -> set[str]:
        return {re.sub(r"[-_.]+(?=.*==)", "-", name) for name in names}

    assert plain(pinned) - plain(hashed) == {name for name in plain(pinned) if name.startswith("torch==")}
