"""Compare what is installed, constraints.txt and the lower bounds of pyproject.toml with advisories.csv: a
line for each version with a known hole, and exit code 1; then what that covers. It needs no network: `make
audit`.

`python .ci/advisories.py` brings the table up to date. By hand: a line above `# imported` (package, affected
versions, number, what it does)."""

import csv
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from advisories import IMPORTED, pinned, plain
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]


def asked_for(root: Path) -> list[Requirement]:
    """What pyproject.toml depends on, with all extras."""
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"].values()
    listed = map(Requirement, [*project["dependencies"], *(each for extra in extras for each in extra)])
    return [requirement for requirement in listed if requirement.name != project["name"]]


def lowest(requirement: Requirement) -> str:
    return next((each.version for each in requirement.specifier if each.operator in (">=", "==")), "0")


def versions(root: Path) -> Iterator[tuple[str, str, str]]:
    """(where, package, the lowest version that stands there)."""
    for requirement in asked_for(root):
        yield "pyproject.toml", requirement.name, lowest(requirement)
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


def audit(root: Path) -> tuple[list[str], str]:
    """A line for each version with a known hole, and what the table covers."""
    own, _, imported = (root / ".ci/advisories.csv").read_text("utf-8").partition(IMPORTED)
    date, _, lines = imported.partition("\n")
    table = list(csv.DictReader([*own.splitlines(), *lines.splitlines()]))
    seen = [*versions(root), *installed(pinned(root))]
    holes = [
        f"{where}: {package} {number} has {row['id']} ({row['what']}); take one that is not {row['affected']}"
        for where, package, number in seen
        for row in table
        if plain(package) == row["package"]
        and SpecifierSet(row["affected"]).contains(number, prereleases=True)
    ]
    known, by_hand = len(lines.splitlines()), len(own.splitlines()) - 1
    covered = (
        f"Looked at {len({plain(package) for _, package, _ in seen})} packages, with {known} advisories that "
        f"osv.dev's sources had on{date}, and {by_hand} by hand. Not covered: what became known after that "
        "day, unless by hand, packages outside constraints.txt, and libraries inside wheels, such as CUDA. "
        "`python .ci/advisories.py` brings the table up to date; it needs a network."
    )
    return holes, covered


if __name__ == "__main__":
    found, covered = audit(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print("\n".join(found) or "no version with a known hole")
    print(covered)
    sys.exit(bool(found))
