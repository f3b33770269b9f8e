"""Every family of docs/families.md does what its row says: each cell is made again by its check and compared
with the page."""

import pytest

from tests.gates.families import BY_NAME, FAMILIES
from tests.gates.family_checks import COLUMNS
from tests.gates.family_table import HEADINGS, recorded

# one row for each mechanism: slot; hook; a shared position bias; (T, B, E) and a refit; projections inside;
# transposed weights; shared key heads; weight. `python -m tests.gates.family_table` checks them all.
ROWS = [
    "our own Transformer",
    "BART",
    "T5",
    "FSMT",
    "BERT",
    "GPT-2",
    "Llama",
    "torch.nn.Transformer",
    "fairseq (a stand-in of its layout)",
]


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    headings, *rows = recorded()
    return {row[0]: dict(zip(headings, row, strict=True)) for row in rows}


def test_the_page_has_a_row_for_every_family_and_a_column_for_every_check():
    headings, *rows = recorded()
    assert headings == HEADINGS
    assert [row[:2] for row in rows] == [[family.name, f"`{family.classes}`"] for family in FAMILIES]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_cell_of_the_page_says_what_its_check_finds(column, name, table):
    assert COLUMNS[column](BY_NAME[name]) == table[name][column]
