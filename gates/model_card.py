"""The README.md of a pruned folder: how to load it, what is left, and what that cost."""

import re
import sys
from pathlib import Path

from torch import nn

from .depth import layers_left
from .headmap import ALL_KINDS, FFN_KINDS
from .remove import heads_left

# how to load a folder, for which FOLDER stands
PLAIN = """```python
import transformers

model = {of}{name}.from_pretrained("FOLDER")
```

`headgates.load_pruned("FOLDER")` gives the same model, which then knows the first numbers of its heads."""
UNEVEN = """```python
import headgates as hg

model = hg.load_pruned("FOLDER"{given})
```

Its layers have different sizes, so `from_pretrained` alone cannot build them. Do not pass
`ignore_mismatched_sizes=True`: it opens the folder with random weights in these layers.
`hg.prune(..., even=True)` keeps layers alike."""
OTHER = """```python
import headgates as hg

model = hg.load_pruned("FOLDER", model={name}(...))  # a new one, with all its heads, neurons and layers
```"""


def model_card(model: nn.Module, *, theirs: bool, plain: bool, notes: str = "") -> str:
    """theirs: whether transformers made the model's class; plain: whether its `from_pretrained` builds what
    is left. notes: what is to be said of the cost."""
    name, origin = type(model).__name__, str(getattr(getattr(model, "config", None), "_name_or_path", ""))
    head = ["---", *["library_name: transformers"] * theirs, "tags: [headgates, pruned]", "---"]
    if (
        re.fullmatch(r"[\w.-]+/[\w.-]+", origin) and not Path(origin).exists()
    ):  # a place on the Hub, no folder
        head.insert(-1, f"base_model: {origin}")
    how = (PLAIN if plain else UNEVEN) if theirs else OTHER
    known = theirs and getattr(sys.modules.get("transformers"), name, None) is type(model)
    of, given = ("transformers.", "") if known else ("", f", model={name}(config)")
    parts = [
        "\n".join(head),
        f"# {name}, pruned",
        f"This model lost attention heads, neurons or layers with headgates. {what_is_left(model)}",
        "## Load it",
        how.format(name=name, of=of, given=given),
        "## What is left",
        table(model),
    ]
    if notes:
        parts += ["## What it cost", notes.strip()]
    return "\n\n".join(parts) + "\n"


def what_is_left(model: nn.Module) -> str:
    parameters = sum(each.numel() for each in model.parameters())
    stacks = [
        f"Of the {stack}'s {len(row)} layers, those with the numbers "
        f"{', '.join(str(number) for number, stays in enumerate(row) if stays)} are left."
        for stack, row in layers_left(model).items()
        if not all(row)
    ]
    return " ".join([f"It has {parameters:,} parameters.", *stacks])


def table(model: nn.Module) -> str:
    """A row for each attention and feed-forward layer, numbered as they are now."""
    rows = []
    for site, row in heads_left(model, ALL_KINDS).items():
        what = "neurons" if site.kind in FFN_KINDS else "heads"
        rows.append(f"| {site.name} | {int(row.sum()):,} of {site.heads:,} {what} |")
    return "\n".join(["| part | left |", "|---|--:|", *rows])
