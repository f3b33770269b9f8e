"""The scores that heads are closed by, lowest first: one table for prune.py, the rows of fit.py, compare.py, sweeps and the report page.

To add one: a function f(model, batches, **options) -> HeadMap in a file of analysis/, and a line here. `batches` are training pairs, read
only if the function iterates over them; `takes` names what else it is given, of pruning.scores.ScoreRequest. Nothing here imports torch, so
that --help answers at once: `function` is imported when it is called.
"""

from dataclasses import dataclass

FINETUNED = "-finetuned"  # a row trained on for as many steps as the gates
ZERO = "zero"  # a closed head says nothing, and nothing else changes
CLOSINGS = (ZERO, "mean", "rescale", "repair")  # what closing a head means, of the ways that leave weights to train on and to save


@dataclass(frozen=True)
class Score:
    """How a score is made, and what is made of it.

    function: "module:name". row: what fit.py calls the model whose lowest heads are closed. finetune_seed: of its fine-tuning, a number of
    its own. sign: -1 closes the highest first. l2: each layer's scores are divided by their l2 norm (Michel et al. 2019, section 4.1)
    unless --normalise says otherwise."""

    function: str
    row: str
    finetune_seed: int
    takes: tuple[str, ...] = ()
    sign: int = 1
    l2: bool = False
    family: str | None = None  # a score whose numbers this one shares, computed and kept once

    @property
    def from_gradients(self) -> bool:
        """Takes --abs, --sentences and --recompute."""
        return "absolute" in self.takes

    @property
    def seeded(self) -> bool:
        """One curve for each seed."""
        return "seed" in self.takes


GRADIENT = ("absolute", "kinds", "closed", "loss")
SCORES: dict[str, Score] = {
    "gradient": Score("analysis.importance:importance", "greedy", 3, GRADIENT, l2=True),
    "ablation": Score("pruning.ablation_score:ablation_score", "ablation", 6, ("source", "valid", "kinds", "file", "fresh", "report")),
    "random": Score("analysis.random_score:random_score", "random", 4, ("seed",)),
    "weight-norm": Score("analysis.weight_norm:weight_norm", "weight-norm", 5),
    "reverse": Score("analysis.importance:importance", "reverse", 7, GRADIENT, l2=True, sign=-1, family="gradient"),
}


@dataclass(frozen=True)
class ScoreRow:
    """What the name of a row says: the row of its score, the closing unless it is zero, -finetuned. closing: one of CLOSINGS."""

    score: str
    closing: str = ZERO
    finetuned: bool = False

    @property
    def name(self) -> str:
        """greedy, greedy-repair, greedy-finetuned, greedy-repair-finetuned."""
        closing = "" if self.closing == ZERO else f"-{self.closing}"
        return SCORES[self.score].row + closing + FINETUNED * self.finetuned


def all_score_rows() -> dict[str, ScoreRow]:
    """Every row that a score may have, by name: the scores in their order, of each the closings, of each as closed and trained on."""
    rows = (ScoreRow(score, closing, finetuned) for score in SCORES for closing in CLOSINGS for finetuned in (False, True))
    return {row.name: row for row in rows}


def score_rows(systems: list[str]) -> dict[str, list[str]]:
    """Score -> those of its rows that are among the systems, closing by closing, the plain row before the fine-tuned one."""
    rows: dict[str, list[str]] = {}
    for name, row in all_score_rows().items():
        if name in systems:
            rows.setdefault(row.score, []).append(name)
    return rows
