"""The scores that heads are closed by, lowest first: one table for prune.py, the rows of fit.py, compare.py,
sweeps and the report page.

To add one: a function f(model, batches, **options) -> HeadMap in a file of analysis/, and a line here.
`batches` are training pairs, read only if the function iterates over them; `takes` names what else it is
given, of pruning.scores.ScoreRequest. Nothing here imports torch, so that --help answers at once: `function`
is imported when it is called.
"""

from dataclasses import dataclass

from headgates.configs.closing import LASTING

FINETUNED = "-finetuned"  # a row trained on for as many steps as the gates
ZERO = "zero"  # a closed head says nothing, and nothing else changes


@dataclass(frozen=True)
class Score:
    """How a score is made, and what is made of it.

    function: "module:name". row: what fit.py calls the model whose lowest heads are closed. finetune_seed: of
    its fine-tuning, a number of its own. sign: -1 closes the highest first. l2: each layer's scores are
    divided by their l2 norm (Michel et al. 2019, section 4.1) unless --normalise says otherwise. sample: how
    many training pairs it reads unless --sentences says otherwise: a fixed sample, or all of the run where it
    has no more. refine: "module:name" of a function (model, batches, closed, **those of `takes`) -> closed
    that improves a choice
    at its count, in
    pruning.scores.closed_by: as many heads closed,
    with by_kind=True
    of each kind."""

    function: str
    row: str
    finetune_seed: int
    takes: tuple[str, ...] = ()
    sign: int = 1
    l2: bool = False
    family: str | None = None  # a score whose numbers this one shares, computed and kept once
    sample: int | None = None  # None where no training pair is read, or not by a number of its own
    refine: str | None = None

    @property
    def from_gradients(self) -> bool:
        """Takes --abs and --recompute."""
        return "absolute" in self.takes

    @property
    def reads_pairs(self) -> bool:
        """Takes --sentences."""
        return self.sample is not None

    @property
    def seeded(self) -> bool:
        """One curve for each seed."""
        return "seed" in self.takes


GRADIENT = ("absolute", "kinds", "closed", "loss", "ranks")
SAMPLE = 1000  # training pairs: seconds on a CPU
STANDS = (
    16_000  # training pairs until the order by importance stands: measured, results/importance_sample.jsonl
)
SCORES: dict[str, Score] = {
    "gradient": Score(
        "headgates.analysis.scores.importance:importance", "greedy", 3, GRADIENT, l2=True, sample=STANDS
    ),
    "ablation": Score(
        "headgates.workbench.ablation_score:ablation_score",
        "ablation",
        6,
        ("source", "valid", "kinds", "file", "fresh", "report"),
    ),
    "random": Score("headgates.analysis.scores.random_score:random_score", "random", 4, ("seed",)),
    "weight-norm": Score("headgates.analysis.scores.weight_norm:weight_norm", "weight-norm", 5),
    "reverse": Score(
        "headgates.analysis.scores.importance:importance",
        "reverse",
        7,
        GRADIENT,
        l2=True,
        sign=-1,
        family="gradient",
        sample=STANDS,
    ),
    # a stage's seed is 10 * seed + its number: these end in 9, as no other's does, and 10 seeds lie between
    # them
    "obs": Score("headgates.analysis.scores.obs:obs", "obs", 9, ("loss", "draw"), sample=SAMPLE),
    "obs-swap": Score(
        "headgates.analysis.scores.obs:obs",
        "obs-swap",
        509,
        ("loss", "draw"),
        family="obs",
        sample=SAMPLE,
        refine="headgates.analysis.scores.swaps:swapped",
    ),
    "fisher": Score(
        "headgates.analysis.scores.fisher:fisher",
        "fisher",
        109,
        ("loss", "ranks"),
        sample=SAMPLE,
        refine="headgates.analysis.scores.fisher:rearranged",
    ),
    "fluctuation": Score(
        "headgates.analysis.scores.fluctuation:fluctuation", "fluctuation", 209, ("loss",), sample=SAMPLE
    ),
    "confidence": Score("headgates.analysis.confidence:confidence", "confidence", 309, sample=SAMPLE),
    "lrp": Score(
        "headgates.analysis.lrp:relevance_score", "lrp", 409, ("logits", "ranks"), sample=200
    ),  # a pass back for every target token
}


@dataclass(frozen=True)
class ScoreRow:
    """What the name of a row says: the row of its score, the closing unless it is zero, -finetuned. closing:
    one of LASTING."""

    score: str
    closing: str = ZERO
    finetuned: bool = False

    @property
    def name(self) -> str:
        """greedy, greedy-repair, greedy-finetuned, greedy-repair-finetuned."""
        closing = "" if self.closing == ZERO else f"-{self.closing}"
        return SCORES[self.score].row + closing + FINETUNED * self.finetuned


def all_score_rows() -> dict[str, ScoreRow]:
    """Every row that a score may have, by name: the scores in their order, of each the closings, of each as
    closed and trained on."""
    rows = (
        ScoreRow(score, closing, finetuned)
        for score in SCORES
        for closing in LASTING
        for finetuned in (False, True)
    )
    return {row.name: row for row in rows}


def score_rows(systems: list[str]) -> dict[str, list[str]]:
    """Score -> those of its rows that are among the systems, closing by closing, the plain row before the
    fine-tuned one."""
    rows: dict[str, list[str]] = {}
    for name, row in all_score_rows().items():
        if name in systems:
            rows.setdefault(row.score, []).append(name)
    return rows
