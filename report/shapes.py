"""The shape of a smaller model, layer by layer: how many heads of each attention and how many neurons of each
feed-forward layer stay, and which layers are gone. The terminal has it as a table, the page as a drawing.

    open, of    site -> heads or neurons that stay, and of how many
    dropped     stack -> the layers that are gone, by the numbers of the base
"""

from collections.abc import Sequence
from typing import Any

from headgates.gates import ALL_KINDS, Subnet
from headgates.records.folder import RunFolder
from headgates.records.row import ResultRow
from headgates.report.table import own_speed, show

WORDS = {"self": "heads of self-attention", "cross": "of cross-attention", "ffn": "neurons"}


def shape_of(row: ResultRow) -> dict[str, Any] | None:
    """What a row says of the parts of its base that stay; None where its model is no part of the base, or all
    of it."""
    if row.subnet is None:
        return None
    subnet = Subnet.from_json(row.subnet)
    shape = {
        "open": {site.name: int(stay.sum()) for site, stay in subnet.units.items()},
        "of": {site.name: site.heads for site in subnet.units},
        "dropped": subnet.dropped,
    }
    return None if shape["open"] == shape["of"] and not shape["dropped"] else shape


def own_shape(run: RunFolder) -> None:
    """Print the shape of a run's own model where something of its base is gone, and how fast it is where that
    was measured."""
    row = run.own_row()
    if row is not None and (shape := shape_of(row)) is not None:
        ends = {site.rpartition(".")[2].split("-")[-1] for site in shape["open"]}
        counts = ", ".join(text for end, text in WORDS.items() if end in ends)
        show(f"shape: in each layer {counts}", ["layer", row.label], layer_cells(shape))
    if (sentence := own_speed(run)) is not None:
        print(sentence)


def layer_cells(shape: dict[str, Any]) -> list[list[str]]:
    """The name of each layer, and its open units, such as `5 6 256`: of its attentions, then of its
    feed-forward layer."""
    layers = {(stack, int(number)) for stack, number, _ in (site.split(".") for site in shape["of"])}
    layers |= {(stack, number) for stack, numbers in shape["dropped"].items() for number in numbers}
    cells = []
    for stack, number in sorted(layers, key=lambda layer: (layer[0] == "decoder", layer[1])):
        named = (f"{stack}.{number}.{kind}" for kind in ALL_KINDS)
        units = " ".join(str(shape["open"][site]) for site in named if site in shape["open"])
        cells.append([f"{stack} {number}", "dropped" if number in shape["dropped"].get(stack, ()) else units])
    return cells


def shape_cards(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The drawings of the runs' own models, where something of their base is gone.

    run: whose page has the drawing; everywhere: the pages of the base and of all runs on it have it, those of
    planned models; sentence: how fast and how good a planned model is."""
    cards = []
    for run in runs:
        row = run.own_row()
        if row is None or row.recipe is None or (shape := shape_of(row)) is None:
            continue
        cards.append(
            {
                "label": f"{row.label}, {row.recipe.budget.words}",
                "sentence": own_speed(run),
                "words": row.open_words,
                "run": run.path.resolve().name,
                "everywhere": row.speed is not None,
                "shape": shape,
            }
        )
    return cards
