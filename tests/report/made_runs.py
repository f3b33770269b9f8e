"""Finished runs that recipes made of the toy base, without their models: config.yaml, result.json and
outputs."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from headgates.configs.recipe import Recipe
from headgates.records.folder import RunFolder
from headgates.records.row import BASE, CONTINUED, PRUNED, ResultRow

TOY = Path(__file__).parents[2] / "examples/toy_run/toy-en-de-none-s1"


def toy_base(runs: Path) -> RunFolder:
    return RunFolder(shutil.copytree(TOY, runs / TOY.name))


def subnet(row: ResultRow, closed: int, dropped: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """What stays where the first `closed` heads of each site close. dropped: layers of two that go."""
    dropped = dropped or {}
    sites = {}
    for site, heads in (row.heads_by_site or {}).items():
        stack, layer, _ = site.split(".")
        stay = [] if int(layer) in dropped.get(stack, ()) else heads[closed:]
        sites[site] = {"of": len(heads), "stay": stay}
    layers = {
        stack: {"of": 2, "stay": [i for i in range(2) if i not in dropped.get(stack, ())]}
        for stack in ("encoder", "decoder")
    }
    return {"version": 1, "sites": sites, "layers": layers}


def made_run(
    base: RunFolder,
    recipe: Recipe,
    closed: int,
    value: float,
    *,
    continued: float | None = None,
    dropped: dict[str, list[int]] | None = None,
    outputs: Sequence[str] = (),
    **others: Any,
) -> RunFolder:
    """A run whose model lacks the first `closed` heads of each site and has a BLEU of `value`. continued: the
    BLEU of the base trained as long."""
    whole = base.row_of(BASE)

    def valued(row: ResultRow, value: float) -> ResultRow:
        bleu = replace(row.measures["bleu"], value=value, ci95=(value - 1, value + 1), difference=value - 95)
        return replace(row, measures=row.measures | {"bleu": bleu})

    stay = subnet(whole, closed, dropped)
    left = sum(len(units["stay"]) for units in stay["sites"].values())
    own = replace(whole, system=PRUNED, recipe=recipe, heads_open=left, stage=None, above_trivial=None)
    rows = [whole, valued(replace(own, subnet=stay, **others), value)]
    if continued is not None:
        rows.insert(1, valued(replace(whole, system=CONTINUED, recipe=recipe.trained_as_long), continued))
    run = RunFolder(base.path.parent / "-".join(["toy", *recipe.file_words]))
    config = dict(base.config())
    config |= {
        "base": str(base.path),
        "base_hash": config["run_hash"],
        "run_hash": "0",
        "recipe": recipe.to_json(),
    }
    run.write_text("config.yaml", yaml.safe_dump(config))
    result = {"rows": [row.to_json() for row in rows], "system": PRUNED, "reference": BASE, "finished": True}
    run.write_json("result.json", result)
    run.write_outputs(BASE, base.outputs(BASE))
    if outputs:
        run.write_outputs(PRUNED, outputs)
    return run
