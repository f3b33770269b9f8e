"""docs/families.md, written by the checks of every family:  python -m tests.gates.family_table"""

from pathlib import Path

from tests.gates.families import FAMILIES, Family
from tests.gates.family_checks import COLUMNS

PATH = Path(__file__).resolve().parents[2] / "docs" / "families.md"
BEGIN, END = (
    "<!-- the table is written by `python -m tests.gates.family_table` -->",
    "<!-- end of the table -->",
)
HEADINGS = ["family", "attention class", *COLUMNS]


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def row_of(family: Family) -> list[str]:
    return [family.name, f"`{family.classes}`", *(check(family) for check in COLUMNS.values())]


def recorded() -> list[list[str]]:
    """The table in docs/families.md, its headings first."""
    text = PATH.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return [lines[0], *lines[2:]]


def write() -> None:
    rows = [line(HEADINGS), line(["---"] * len(HEADINGS)), *(line(row_of(family)) for family in FAMILIES)]
    before, rest = PATH.read_text(encoding="utf-8").split(BEGIN)
    PATH.write_text(
        f"{before}{BEGIN}\n\n" + "\n".join(rows) + f"\n\n{END}{rest.split(END)[1]}", encoding="utf-8"
    )


if __name__ == "__main__":
    write()
