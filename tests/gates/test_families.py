"""Every family of results/families.md does what its row says: each cell is made again by its check and
compared with the page."""

import pytest

from tests.gates.family_checks import COLUMNS
from tests.gates.family_table import HEADINGS, recorded
from tests.worlds.families import BY_NAME, FAMILIES

# one row for each mechanism: slot; hook; a shared position bias; (T, B, E) and a refit; projections inside;
# k and v in one transposed weight; shared key heads, one for all, a norm over all heads, a size in a config;
# rows head by head, and numbers beside them; position biases of the model's; a layer used twice; weight;
# more rows of q than of k, k and v of other widths in one weight, a parameter and a table beside them, two
# modes in one model; a weight in quarters, a bias that goes from layer to layer, two forwards in one model,
# two streams; two towers; stages of layers that see windows.
# `python -m tests.gates.family_table` checks them all.
SLOT = "our own Transformer"
ROWS = [
    SLOT,
    "BART",
    "T5",
    "FSMT",
    "BERT",
    "GPT-2 with cross-attention",
    "Llama",
    "one key head (Gemma)",
    "OLMo 2",
    "Phi-3",
    "DeBERTa",
    "Falcon, ALiBi",
    "MPNet",
    "ALBERT",
    "Qwen3-Next",
    "DeepSeek V3",
    "GPT-OSS",
    "Data2Vec, vision",
    "SigLIP, vision",
    "CLIP",
    "Swin",
    "CodeGen",
    "WavLM",
    "LED",
    "ProphetNet",
    "torch.nn.Transformer",
    "fairseq (a stand-in of its layout)",
]
# these take long, and are one thing in each attach mode, layout of neurons or kind of layer
FEW = {
    "neurons": [SLOT, "T5", "ALBERT", "Phi-3", "Falcon, ALiBi", "Mixtral", "Swin", "torch.nn.Transformer"],
    "layers dropped": [SLOT, "BART", "T5", "Llama", "WavLM", "CLIP", "torch.nn.Transformer"],
    "torch.export": [SLOT, "T5", "torch.nn.Transformer"],
    "torch.compile": [SLOT, "BERT", "torch.nn.TransformerEncoder"],
}


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, str]]:
    headings, *rows = recorded()
    return {row[0]: dict(zip(headings, row, strict=True)) for row in rows}


def test_the_page_has_a_row_for_every_family_and_a_column_for_every_check(table):
    assert [[name, *row][:3] for name, row in table.items()] == [
        [family.name, *HEADINGS[:2]] for family in FAMILIES
    ]
    assert list(table[SLOT]) == HEADINGS


@pytest.mark.parametrize(
    ("column", "name"),
    [(column, name) for column in COLUMNS for name in FEW.get(column, ROWS)],
)
def test_a_cell_of_the_page_says_what_its_check_finds(column, name, table):
    assert COLUMNS[column](BY_NAME[name]) == table[name][column]
