"""Fill advisories.csv with all known holes of the packages in constraints.txt: `python .ci/advisories.py`.

It downloads what osv.dev has on PyPI, some 30 MB. Without a network give it a file: that archive, or a tar of
https://github.com/pypa/advisory-database, whose records have the same form. What the table has above the line
`# imported` was written by hand, and stays."""

import csv
import json
import re
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = "https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip"
IMPORTED = "# imported"  # the line before those of the archive, with its date
ENDS = {"fixed": "<", "last_affected": "<="}  # events of a range, as pip writes them


def plain(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(root: Path) -> set[str]:
    """The packages of constraints.txt."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {plain(line.split("==")[0]) for line in lines if "==" in line}


def records(archive: Path | BytesIO, packages: set[str]) -> Iterator[dict[str, Any]]:
    """The records of an archive: JSON in a zip, or YAML in a tar, whose folders have the packages' names."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as whole:
            yield from (json.loads(whole.read(name)) for name in whole.namelist() if name.endswith(".json"))
        return
    import yaml

    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if (
                path.suffix == ".yaml"
                and plain(path.parent.name) in packages
                and (file := tar.extractfile(member))
            ):
                # of the commit, which may be later than what it says of these packages
                yield {
                    **yaml.safe_load(file),
                    "modified": str(datetime.fromtimestamp(member.mtime, UTC).date()),
                }


def rows_of(record: dict[str, Any], packages: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """(package, affected versions as pip writes them, number, what) of a record that was not withdrawn."""
    number = next((each for each in record.get("aliases", ()) if each.startswith("CVE-")), record["id"])
    what = shorten(record.get("summary") or record.get("details") or "", 100, placeholder="…")
    for affected in () if record.get("withdrawn") else record.get("affected", ()):
        package = affected.get("package", {})
        name = plain(package.get("name", ""))
        if name not in packages or package.get("ecosystem") != "PyPI":
            continue
        spans = [span for span in affected.get("ranges", ()) if span["type"] == "ECOSYSTEM"]
        found = [each for span in spans for each in affected_versions(span["events"])]
        if not spans:
            found = [f"=={version}" for version in affected.get("versions", ()) if is_version(version)]
        for each in found:
            yield name, each, number, what


def affected_versions(events: list[dict[str, str]]) -> Iterator[str]:
    """The versions of a range, as pip writes them. Its other events, such as `limit`, end nothing."""
    first: str | None = None  # of a hole that is not mended yet
    for event in events:
        for kind, version in event.items():
            if kind == "introduced":
                first = version
            elif kind in ENDS:
                yield ",".join([f">={first}"] * (first not in (None, "0")) + [f"{ENDS[kind]}{version}"])
                first = None
    if first is not None:  # nothing mends it
        yield f">={first}"


def is_version(text: str) -> bool:
    """Whether it is a version that pip can compare; old packages have others."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def main(root: Path, archive: Path | BytesIO) -> None:
    packages, table = pinned(root), root / ".ci/advisories.csv"
    found, newest, count = set(), "", 0
    for record in records(archive, packages):
        count, newest = count + 1, max(newest, str(record.get("modified", ""))[:10])
        found.update(rows_of(record, packages))
    if not count:
        raise ValueError("the archive has no advisories on these packages")
    by_hand = table.read_text(encoding="utf-8").split(IMPORTED)[0]
    with table.open("w", encoding="utf-8", newline="") as file:
        file.write(f"{by_hand}{IMPORTED} {newest}\n")
        csv.writer(file, lineterminator="\n").writerows(sorted(found))
    print(
        f"{len(found)} lines on {len({row[0] for row in found})} of {len(packages)} packages, up to {newest}"
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        main(ROOT, Path(sys.argv[1]))
    else:
        with urllib.request.urlopen(ARCHIVE) as answer:
            main(ROOT, BytesIO(answer.read()))
