"""The shape of a pruned model, layer by layer: how many heads of each attention and how many neurons of each
feed-forward layer stay, and which layers are gone. The terminal has it as a table, the page as a drawing.

A shape is what `Shape.to_json` (pruning/shape.py) writes:

    open, of    site -> heads or neurons that stay, and of how many; of dropped layers they may be missing
    dropped     stack -> the layers that are gone, by the numbers of the unpruned model
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headgates.configs.systems import label
from headgates.gates import ALL_KINDS, heads_left
from headgates.records.folder import RunFolder
from headgates.records.related import planned_runs
from headgates.records.row import ResultRow
from headgates.report.table import own_speed, show, speed_sentence

PLANNED = "speed/planned.json"  # of `prune.py --speedup`, in the folder of the model that was planned
Shape = Mapping[str, Any]


def shape_of(row: ResultRow) -> dict[str, Any]:
    """What a row says of its model's shape: of a plan what was planned, else without `of`, and with neurons
    where some are closed."""
    if "shape" in row.others.get("speed", {}):
        return dict(row.others["speed"]["shape"])
    opened = {site: len(heads) for site, heads in (row.heads_by_site or {}).items()}
    opened |= row.neurons_by_site or {}
    left = row.layers_left or {}
    dropped = {stack: [i for i, stays in enumerate(each) if not stays] for stack, each in left.items()}
    names = {site: site_of_whole(site, left, opened) for site in opened}
    return {"open": {names[site]: count for site, count in opened.items()}, "dropped": dropped}


def site_of_whole(site: str, left: Mapping[str, Sequence[bool]], sites: Mapping[str, Any]) -> str:
    """The site's name in the model before layers were dropped: once they are gone, the others move up."""
    stack, number, kind = site.split(".")
    own = {int(each.split(".")[1]) for each in sites if each.startswith(f"{stack}.")}
    stays = [i for i, here in enumerate(left.get(stack, ())) if here]
    moved = len(own) == len(stays) < len(left.get(stack, ()))
    return f"{stack}.{stays[int(number)]}.{kind}" if moved else site


def is_pruned(row: ResultRow) -> bool:
    """Whether heads or neurons are closed, or layers gone."""
    fewer = row.neurons_open is not None and row.neurons_open < (row.neurons_total or 0)
    return row.heads_open < row.heads_total or fewer or bool(row.layers_left) or "speed" in row.others


# ---------------------------------------------------------------- the terminal


def shapes_table(title: str, shapes: Mapping[str, Shape]) -> None:
    """Print a row for each layer and a column for each model: the heads of its attentions, then its
    neurons."""
    layers = list(dict.fromkeys(layer for shape in shapes.values() for layer in layers_of(shape)))
    layers.sort(key=lambda layer: (layer[0] == "decoder", layer[1]))
    cells = [
        [f"{stack} {number}", *(layer_text(shape, stack, number) for shape in shapes.values())]
        for stack, number in layers
    ]
    show(f"{title}: in each layer {what_counts(shapes)}", ["layer", *shapes], cells)


def layers_of(shape: Shape) -> Iterator[tuple[str, int]]:
    for site in shape["open"]:
        stack, number, _ = site.split(".")
        yield stack, int(number)
    for stack, numbers in shape["dropped"].items():
        yield from ((stack, number) for number in numbers)


def layer_text(shape: Shape, stack: str, number: int) -> str:
    """The open units of one layer, such as `5 6 256`: of its attentions, then of its feed-forward layer."""
    if number in shape["dropped"].get(stack, ()):
        return "dropped"
    named = (f"{stack}.{number}.{kind}" for kind in ALL_KINDS)
    return " ".join(str(shape["open"][site]) for site in named if site in shape["open"])


def what_counts(shapes: Mapping[str, Shape]) -> str:
    """What the numbers of a layer count."""
    words = {"self": "heads of self-attention", "cross": "of cross-attention", "ffn": "neurons"}
    ends = {site.rpartition(".")[2].split("-")[-1] for shape in shapes.values() for site in shape["open"]}
    return ", ".join(text for end, text in words.items() if end in ends)


def own_shape(run: RunFolder) -> None:
    """Print the shape of a run's own model where something of it is closed, and how fast it is where that was
    measured."""
    row = next((row for row in run.rows() if row.system == run.own_system()), None)
    if row is not None and is_pruned(row):
        shapes_table("shape", {label(row.system): shape_of(row)})
    if (sentence := own_speed(run)) is not None:
        print(sentence)


# ---------------------------------------------------------------- the page


def shape_cards(
    base: RunFolder,
    model: Any,
    gated: Mapping[str, tuple[str, ResultRow]],
    runs: Sequence[RunFolder] = (),
) -> list[dict[str, Any]]:
    """The drawings of pruned models: those that prune.py planned for a base, those that fit.py planned for
    it, beside it or beside one of these runs, the runs with gates on it, name -> label and row, and the base
    where it is itself pruned. model: of the base, which says of how many heads and neurons.

    run: whose page has the drawing; everywhere: the page of the base has it, and those of all runs on it;
    sentence: how fast and how good a planned model is."""
    whole = {site.name: len(row) for site, row in heads_left(model, ALL_KINDS).items()}

    def card(
        title: str, row: ResultRow, sentence: str | None, *, run: str | None, everywhere: bool
    ) -> dict[str, Any]:
        names = {site_of_whole(site, row.layers_left or {}, whole): count for site, count in whole.items()}
        shape = shape_of(row)
        of = shape.get("of", names)
        opened = {site: shape["open"].get(site, count) for site, count in of.items()}
        shape = {"open": opened, "of": of, "dropped": shape["dropped"]}
        words = {"label": title, "sentence": sentence, "words": row.open_words}
        return {**words, "run": run, "everywhere": everywhere, "shape": shape}

    cards = []
    if (base / PLANNED).is_file():
        first, *rows = (ResultRow.from_json(each) for each in base.read_json(PLANNED)["rows"])
        for row in rows:
            sentence = speed_sentence(row, first.parameters or 1)
            cards.append(card(asked(row), row, sentence, run=None, everywhere=True))
    for folder in planned_runs(base, runs):
        row, name = folder.row_of(folder.own_system()), folder.path.resolve().name
        if "shape" in row.others["speed"]:  # a smaller model that was trained instead has no part of the base
            title = f"{asked(row)}, {label(row.system)}"
            cards.append(card(title, row, own_speed(folder), run=name, everywhere=True))
    name = base.path.resolve().name
    own = [row for row in base.rows() if row.system == base.own_system() and is_pruned(row)]
    cards += [card(name, row, own_speed(base), run=name, everywhere=False) for row in own]
    for name, (title, row) in gated.items():
        if is_pruned(row):
            cards.append(card(title, row, None, run=name, everywhere=False))
    return cards


def asked(row: ResultRow) -> str:
    """What a plan was asked for: `speedup 1.5`."""
    speed = row.others["speed"]
    return f"{speed['budget']} {speed['asked']:g}"
