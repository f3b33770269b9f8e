"""The rows beside l0 that close as many heads on the base by a score, without learning which.

    greedy        gradient importance, l2 within each layer: Michel et al. 2019
    random        one draw of the seed: what a score must beat
    weight-norm   |W_O W_V|_F of every head, without any data

Each has a twin, `<name>-finetuned`, trained on for as many steps as the gates. To add one: a line in SELECTORS and its names in
configs/schema.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from analysis.weight_norm import weight_norm
from gates import HeadMap
from protocol.material import Material
from pruning.orders import random_map
from runfolder.folder import RunFolder

FINETUNED = "-finetuned"


@dataclass(frozen=True)
class Selector:
    """scores: of every head of a base, in scores/<file>.json, the lowest closed first; l2: divided by their layer's norm before;
    seed: of its fine-tuning, beside those of the other stages."""

    scores: Callable[[Material, RunFolder], HeadMap]
    file: str
    seed: int
    l2: bool = False


SELECTORS = {
    "greedy": Selector(lambda material, base: material.gradient_scores(base), "gradient", seed=3, l2=True),
    "random": Selector(lambda material, base: random_map(material.load(base).model, material.config.seed), "random", seed=4),
    "weight-norm": Selector(lambda material, base: weight_norm(material.load(base).model), "weight-norm", seed=5),
}


def wanted(systems: list[str]) -> dict[str, list[str]]:
    """Selector -> those of its rows that are among the systems, in the order of SELECTORS, the plain one first."""
    rows = {name: [row for row in (name, name + FINETUNED) if row in systems] for name in SELECTORS}
    return {name: found for name, found in rows.items() if found}
