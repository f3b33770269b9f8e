"""The scores that heads are closed by, lowest first: one table for prune.py, the rows of fit.py, compare.py,
sweeps and the report page.

To add one: a function f(model, batches, **options) -> HeadMap in a file of analysis/, and a line here.
`batches` are training pairs, read only if the function iterates over them; `takes` names what else it is
given, of pruning.scores.ScoreRequest. Nothing here imports torch, so that --help answers at once: `function`
is imported when it is called.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """How a score is made.

    function: "module:name". sign: -1 closes the highest first. l2: each layer's scores are divided by their
    l2 norm (Michel et al. 2019, section 4.1) unless --normalise says otherwise. sample: how many training
    pairs it reads unless --sentences says otherwise: a sample, or all of the run where it has no more.
    signed: an estimate of what closing a head adds to the loss, below 0 where the model is better without it.
    refine: "module:name" of a function (model, batches, closed, **those of `takes`) -> closed that improves a
    choice at its count: as many heads closed, with by_kind=True of each kind. label: in figures and tables,
    where it is not the name."""

    function: str
    takes: tuple[str, ...] = ()
    sign: int = 1
    l2: bool = False
    family: str | None = None  # a score whose numbers this one shares, computed and kept once
    signed: bool = False
    sample: int | None = None  # None where no training pair is read, or not by a number of its own
    refine: str | None = None
    label: str | None = None
    one_by_one: bool = False  # it closes, or opens, every head alone: neurons are too many
    part: str = ""  # of a function that gives several HeadMaps, by name: which of them

    @property
    def from_gradients(self) -> bool:
        """Takes --abs and --recompute."""
        return "absolute" in self.takes

    @property
    def reads_pairs(self) -> bool:
        """Takes --sentences."""
        return self.sample is not None

    @property
    def drawn(self) -> bool:
        """Depends on a seed: by the pairs of its sample, or by what it draws."""
        return self.reads_pairs or "seed" in self.takes

    @property
    def of_neurons(self) -> bool:
        """Scores feed-forward neurons too; the others read attention, or close every head alone."""
        return "kinds" in self.takes and not self.one_by_one

    @property
    def by_chance(self) -> bool:
        """Nothing but a seed decides: one curve for each of several seeds."""
        return "seed" in self.takes and not self.reads_pairs


GRADIENT = ("absolute", "kinds", "closed", "loss", "ranks")
SAMPLE = 1000  # training pairs: seconds on a CPU
FEW = 200  # training pairs: of a score that goes over them once for each head, or token
CAUSAL = "headgates.analysis.causal_gating:causal_scores"
STANDS = 16_000  # training pairs until the order stands: measured, results/importance_sample.jsonl
SCORES: dict[str, Score] = {
    "importance": Score(
        "headgates.analysis.scores.importance:raw_importance",
        GRADIENT,
        l2=True,
        sample=STANDS,
    ),
    "gradient": Score(
        "headgates.analysis.scores.integrated:gradient",
        ("loss", "ranks"),
        signed=True,
        sample=SAMPLE,
        label="gradient, signed",
    ),
    "integrated": Score(
        "headgates.analysis.scores.integrated:integrated",
        ("loss", "ranks"),
        signed=True,
        sample=SAMPLE,
        label="integrated gradients (5 points)",
    ),
    "ablation": Score(
        "headgates.workbench.ablation:ablation_score",
        ("source", "valid", "kinds", "file", "fresh"),
        one_by_one=True,
    ),
    "random": Score("headgates.analysis.scores.random_score:random_score", ("seed", "kinds")),
    "weight-norm": Score("headgates.analysis.scores.weight_norm:weight_norm", ("kinds",)),
    "reverse": Score(
        "headgates.analysis.scores.importance:raw_importance",
        GRADIENT,
        l2=True,
        sign=-1,
        family="importance",
        sample=STANDS,
        label="importance, highest first",
    ),
    "obs": Score("headgates.analysis.scores.obs:obs", ("loss", "draw", "seed", "kinds"), sample=SAMPLE),
    "obs-swap": Score(
        "headgates.analysis.scores.obs:obs",
        ("loss", "draw", "seed", "kinds"),
        family="obs",
        sample=SAMPLE,
        refine="headgates.analysis.scores.swaps:swapped",
        one_by_one=True,
    ),
    "fisher": Score(
        "headgates.analysis.scores.fisher:fisher",
        ("loss", "kinds", "ranks"),
        sample=SAMPLE,
        refine="headgates.analysis.scores.fisher:rearranged",
    ),
    "fluctuation": Score(
        "headgates.analysis.scores.fluctuation:fluctuation", ("loss", "kinds"), sample=SAMPLE
    ),
    "confidence": Score("headgates.analysis.confidence:confidence", sample=SAMPLE),
    "lrp": Score("headgates.analysis.lrp:relevance_score", ("logits", "ranks"), sample=FEW),
    "loss": Score(
        "headgates.analysis.scores.exact_effects:exact_effects", ("loss", "ranks"), signed=True, sample=FEW
    ),
    "loss-swap": Score(
        "headgates.analysis.scores.exact_effects:exact_effects",
        ("loss", "ranks"),
        family="loss",
        sample=FEW,
        refine="headgates.analysis.scores.loss_swaps:loss_swapped",
        one_by_one=True,
    ),
    "facilitation": Score(CAUSAL, ("loss", "seed"), part="facilitation", sample=FEW),
    "interference": Score(
        CAUSAL,
        ("loss", "seed"),
        family="facilitation",
        part="interference",
        sign=-1,
        sample=FEW,
        label="interference, highest first",
    ),
    "irrelevance": Score(
        CAUSAL,
        ("loss", "seed"),
        family="facilitation",
        part="irrelevance",
        sign=-1,
        sample=FEW,
        label="irrelevance, highest first",
    ),
}
