"""Runs that belong together: those that recipes made of one base, each with the heads that it left open."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headgates.configs.recipe import Recipe
from headgates.gates import KINDS, HeadMap, Subnet
from headgates.models.progress import Report
from headgates.records.folder import RunFolder, find_runs, recipe_of
from headgates.records.row import PRUNED, ResultRow


@dataclass(frozen=True)
class MadeRun:
    """A finished run that a recipe made of its base: its own row, and which of the base's heads are open."""

    folder: RunFolder
    config: dict[str, Any]
    recipe: Recipe
    row: ResultRow
    open: HeadMap

    @property
    def gated(self) -> HeadMap:
        """The same of the kinds that it could close."""
        return self.open.select(self.recipe.kinds)

    @property
    def name(self) -> str:
        return self.folder.path.resolve().name


def is_part(run: RunFolder) -> bool:
    """Whether the model of a finished run is a part of its base: neither a base, nor another model."""
    return any(row.system == PRUNED and row.subnet is not None for row in run.rows())


def open_made_run(folder: RunFolder) -> MadeRun:
    """Raises ValueError if the run is a base, is not finished, or its model is no part of the base's."""
    folder.check_finished()
    config = folder.config()
    recipe = recipe_of(config)
    if recipe is None:
        raise ValueError(f"{folder.path} is a base; give a run that was made of one")
    if not is_part(folder):
        raise ValueError(f"{folder.path} is another model, no part of its base")
    row = folder.row_of(folder.own_system())
    subnet = Subnet.from_json(row.subnet)
    return MadeRun(folder, config, recipe, row, subnet.units.select(KINDS))


def siblings(base: RunFolder, *, besides: Sequence[RunFolder] = (), report: Report) -> list[RunFolder]:
    """The finished runs beside the base whose models are parts of it, without `besides`; of those that are
    broken is said why they are left out."""
    runs = []
    left_out = {folder.path.resolve() for folder in besides}
    base_hash = base.config().get("run_hash")
    for folder in find_runs(base.path.resolve().parent):
        try:
            config = folder.config()
            mine = base_hash is not None and config.get("base_hash") == base_hash
            if folder.path in left_out or not mine or not folder.finished():
                continue
            if is_part(folder):
                runs.append(open_made_run(folder).folder)
        except ValueError as error:
            report(f"left out: {error}")
    return runs
