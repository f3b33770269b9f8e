"""The systems of a comparison: the rows of result.json, by name and in their order."""

from headgates.configs.closing import LASTING
from headgates.configs.methods import METHODS
from headgates.configs.scores import FINETUNED, SCORES, ZERO, all_score_rows

BASES = ["base", "base-continued"]
USUAL_SCORES = ["greedy"]  # beside the gates unless --systems says otherwise


def default_systems(gate: str) -> list[str]:
    """The rows of a comparison unless --systems names others."""
    method = METHODS.get(gate)
    return [
        *BASES,
        *(method.rows if method else []),
        *(row + end for row in USUAL_SCORES for end in ("", FINETUNED)),
    ]


def all_systems() -> list[str]:
    """Every system that a run may have."""
    return [*BASES, *learned_rows(), *all_score_rows()]


def learned_rows() -> list[str]:
    """The rows of all methods that learn which heads stay."""
    return [row for method in METHODS.values() for row in (*method.rows, method.scratch)]


def systems_in_words() -> str:
    """Every system, with the rows of the scores as one pattern: they are many."""
    scores = ", ".join(score.row for score in SCORES.values())
    closings = " or ".join(f"-{closing}" for closing in LASTING if closing != ZERO)
    return (
        f"{', '.join([*BASES, *learned_rows()])}, and SCORE[CLOSING][{FINETUNED}], where SCORE is one "
        f"of {scores} and CLOSING {closings}"
    )
