"""Heads, neurons and layers are traded off against each other for a speed or a size: the plan of least loss
(planner.py)."""

from headgates.configs.recipe import Recipe
from headgates.lab.lab import Run
from headgates.pruning.choice import Choice
from headgates.pruning.planning import Planning


def by_plan(run: Run, recipe: Recipe) -> Choice:
    """Raises ValueError at a budget that cannot be met, or a model that the runtime cannot run."""
    planning = Planning(run, run.text.source(run.base), recipe)
    return planning.once(planning.searched)
