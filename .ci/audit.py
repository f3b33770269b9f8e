"""Compare what is installed, constraints.txt and the lower bounds of pyproject.toml with advisories.csv: a
line for each version with a known hole, and exit code 1. It needs no network: `make audit`.

To add an advisory: a line in the table (package, first version without the hole, number, what it does)."""

import csv
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def versions(root: Path) -> Iterator[tuple[str, str, str]]:
    """(where, package, the lowest version that stands there)."""
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    listed = [
        *project["dependencies"],
        *(d for each in project["optional-dependencies"].values() for d in each),
    ]
    for requirement in map(Requirement, listed):
        lowest = next((each.version for each in requirement.specifier if each.operator in (">=", "==")), "0")
        if requirement.name != project["name"]:
            yield "pyproject.toml", requirement.name, lowest
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, equal, exact = line.partition("==")
        if equal:
            yield "constraints.txt", name, exact


def installed(packages: set[str]) -> Iterator[tuple[str, str, str]]:
    for package in sorted(packages):
        try:
            yield "installed", package, version(package)
        except PackageNotFoundError:
            continue


def holes(root: Path) -> list[str]:
    """A line for each version with a known hole."""
    with (root / ".ci/advisories.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    found = [*versions(root), *installed({row["package"] for row in table})]
    return [
        f"{where}: {package} {lowest} has {row['id']} ({row['what']}); take {row['below']} or later"
        for where, package, lowest in found
        for row in table
        if package.lower() == row["package"] and Version(lowest) < Version(row["below"])
    ]


if __name__ == "__main__":
    found = holes(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print("\n".join(found) or "no version with a known hole")
    sys.exit(bool(found))
