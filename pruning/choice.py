"""What a choice of parts comes to, and the two choices that need no score: everything, and named layers."""

from dataclasses import dataclass, field
from typing import Any

from headgates.configs.recipe import Layers, Recipe
from headgates.gates import Subnet
from headgates.lab.lab import Run
from headgates.lightning_modules.stage_record import StageResult
from headgates.planning.cost_table import by_stack
from headgates.tasks.base import Predictor


@dataclass
class Choice:
    """predictor: the model, with all its parts still in it. subnet: which of them stay; None where it is
    another model altogether. seconds: of choosing. result: of the training that chose the parts and trained
    the weights with them. facts: what its row says beside: `speed` of a plan, `soft` gates.
    epochs_left: of the recipe, after a result."""

    predictor: Predictor
    subnet: Subnet | None
    seconds: float = 0.0
    result: StageResult | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    epochs_left: int = 0


def everything(run: Run, recipe: Recipe) -> Choice:
    predictor = run.load()
    return Choice(predictor, Subnet.of(predictor.model))


def named_layers(run: Run, recipe: Recipe) -> Choice:
    """Without the layers of the recipe. Raises ValueError at one that the model has not."""
    assert isinstance(recipe.budget, Layers)
    predictor = run.load()
    named = (name.split(".") for name in recipe.budget.dropped)
    dropped = by_stack((stack, int(number)) for stack, number in named)
    return Choice(predictor, Subnet.of(predictor.model).without(layers=dropped))
