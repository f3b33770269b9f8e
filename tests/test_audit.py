"""Versions with a known hole are reported, and the hashes of CI are those of constraints.txt."""

import json
import re
import shutil
import tarfile
import tomllib
import zipfile
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path) -> Path:
    """The files that are compared."""
    (tmp_path / ".ci").mkdir()
    for name in ("pyproject.toml", "constraints.txt", ".ci/advisories.csv"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def scripts(monkeypatch) -> tuple[ModuleType, ModuleType]:
    """.ci/advisories.py and .ci/audit.py."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return import_module("advisories"), import_module("audit")


@pytest.mark.parametrize(
    ("file", "package", "old", "new"),
    [
        ("pyproject.toml", "torch", ">=2.10", ">=2.9"),
        ("pyproject.toml", "ctranslate2", ">=4.8.3", ""),
        ("constraints.txt", "pyarrow", "==26.0.1", "==23.0.0"),
        ("constraints.txt", "certifi", "==2026.10.18", "==2023.5.7"),
    ],
)
def test_a_version_with_a_known_hole_is_a_line_of_its_own(scripts, root, file, package, old, new):
    _, audit = scripts
    assert audit.audit(root)[0] == []
    text = (root / file).read_text()
    assert package + old in text
    (root / file).write_text(text.replace(package + old, package + new))
    holes, _ = audit.audit(root)
    assert [line for line in holes if line.startswith(f"{file}: {package} ")]


RECORD = {
    "id": "PYSEC-1",
    "aliases": ["GHSA-1", "CVE-2"],
    "modified": "2031-02-03T04:05:06Z",
    "summary": "runs code",
    "affected": [
        {
            "package": {"name": "PyArrow", "ecosystem": "PyPI"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {
                    "type": "ECOSYSTEM",
                    "events": [{"introduced": "0"}, {"fixed": "2"}, {"introduced": "24.0"}],
                },
                {"type": "ECOSYSTEM", "events": [{"introduced": "3"}, {"last_affected": "4.1"}]},
            ],
        },
        {
            "package": {"name": "of-others", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
        },
    ],
}


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_fills_the_table_and_what_was_written_by_hand_stays(scripts, root, tmp_path, kind):
    advisories, audit = scripts
    files = {"a": RECORD, "b": RECORD | {"id": "GHSA-1"}, "c": RECORD | {"withdrawn": "now", "aliases": []}}
    archive, text = tmp_path / "archive", {name: json.dumps(each) for name, each in files.items()}
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as whole:
            for name, content in text.items():
                whole.writestr(f"{name}.json", content)
    else:
        with tarfile.open(archive, "w:gz") as tar:
            for name, content in text.items():
                member = tarfile.TarInfo(f"database/vulns/pyarrow/{name}.yaml")
                member.size, member.mtime = len(content), 1927886400
                tar.addfile(member, BytesIO(content.encode()))
    table = root / ".ci/advisories.csv"
    by_hand = table.read_text().split("# imported")[0]
    for _ in range(2):
        advisories.main(root, archive)
    assert table.read_text() == by_hand + (
        "# imported 2031-02-03\npyarrow,<2,CVE-2,runs code\n"
        'pyarrow,>=24.0,CVE-2,runs code\npyarrow,">=3,<=4.1",CVE-2,runs code\n'
    )
    holes, covered = audit.audit(root)
    assert "constraints.txt: pyarrow 26.0.1 has CVE-2 (runs code); take one that is not >=24.0" in holes
    assert "3 advisories that osv.dev's sources had on 2031-02-03, and 7 by hand. Not covered" in covered


@pytest.mark.parametrize(
    ("affected", "rows"),
    [
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}, [">=0"]),
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"limit": "*"}]}]}, [">=0"]),
        ({"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "2"}, {"fixed": "3"}]}]}, [">=2,<3"]),
        ({"ranges": [{"type": "GIT", "events": []}], "versions": ["1.0", "2004d"]}, ["==1.0"]),
        ({"package": {"name": "pyarrow", "ecosystem": "npm"}, "versions": ["1.0"]}, []),
    ],
)
def test_a_hole_that_nothing_mends_and_one_of_listed_versions_are_not_dropped(scripts, affected, rows):
    advisories, _ = scripts
    package = {"name": "pyarrow", "ecosystem": "PyPI"}
    record = {"id": "PYSEC-3", "details": None, "affected": [{"package": package} | affected]}
    found = [*advisories.rows_of(record, {"pyarrow"})]
    assert found == [("pyarrow", each, "PYSEC-3", "") for each in rows]


def test_every_dependency_has_a_lower_bound_that_the_pinned_version_meets(scripts):
    advisories, audit = scripts
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {advisories.plain(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}
    asked = audit.asked_for(ROOT)
    assert [each.name for each in asked if audit.lowest(each) == "0"] == []
    assert [str(each) for each in asked if pinned[advisories.plain(each.name)] not in each.specifier] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(each.startswith("accelerate") for each in extras["hf"])  # transformers' Trainer needs it


def test_every_pinned_package_but_torch_has_a_hash_of_this_version():
    pinned = {line.lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    text = (ROOT / ".ci/hashes.txt").read_text()
    hashed = {
        found.lower() for found in re.findall(r"^(\S+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M)
    }

    def plain(names: set[str]) -> set[str]:
        return {re.sub(r"[-_.]+(?=.*==)", "-", name) for name in names}

    assert plain(pinned) - plain(hashed) == {name for name in plain(pinned) if name.startswith("torch==")}
