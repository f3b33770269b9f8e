"""results/families.md, written by the checks of every family:  python -m tests.gates.family_table"""

from pathlib import Path

from tests.gates.family_checks import COLUMNS
from tests.worlds.families import FAMILIES

PATH = Path(__file__).resolve().parents[2] / "results" / "families.md"
BEGIN = "<!-- the table is written by `python -m tests.gates.family_table` -->\n\n"
END = "\n\n<!-- end of the table -->"
HEADINGS = ["family", "attention class", *COLUMNS]


def recorded() -> list[list[str]]:
    """The table in results/families.md, its headings first."""
    text = PATH.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    headings, _, *rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [headings, *rows]


def write() -> None:
    rows = [
        [family.name, f"`{family.classes}`", *(check(family) for check in COLUMNS.values())]
        for family in FAMILIES
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *rows))
    before, rest = PATH.read_text(encoding="utf-8").split(BEGIN)
    PATH.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    write()
