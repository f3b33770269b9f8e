"""The systems of a comparison: the rows of result.json, by name and in their order."""

from configs.methods import METHODS
from configs.scores import FINETUNED, SCORES

BASES = ["base", "base-continued"]
USUAL_SCORES = ["greedy"]  # beside the gates unless --systems says otherwise


def default_systems(gate: str) -> list[str]:
    """The rows of a comparison unless --systems names others."""
    method = METHODS.get(gate)
    return [*BASES, *(method.rows if method else []), *(row + end for row in USUAL_SCORES for end in ("", FINETUNED))]


def all_systems() -> list[str]:
    """Every system that a run may have."""
    rows = [row for method in METHODS.values() for row in (*method.rows, method.scratch)]
    return [*BASES, *rows, *(score.row + end for score in SCORES.values() for end in ("", FINETUNED))]
