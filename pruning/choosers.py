"""What may choose the parts that stay, by name: one line each. Nothing here imports torch.

To add a score: a function f(model, batches, **options) -> HeadMap in a file of analysis/scores/, and a line
in SCORES. To add another way: a function f(run, recipe) -> Choice (pruning/choice.py) and a line in OTHERS.
A learned gate has its line in configs/learned.py. `module:function` names a score of the user's own, from
any module that Python finds."""

import inspect
import sys
from dataclasses import dataclass, replace

from headgates.configs.closing import ZERO
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.kinds import ALL_KINDS, FFN_KINDS, KINDS
from headgates.configs.learned import LEARNED
from headgates.configs.recipe import LAYERS, PIECES, SHORTLIST, UNITS, UNPRUNED, Recipe, Share, Speed
from headgates.configs.registry import imported
from headgates.data.file_digest import file_digest


@dataclass(frozen=True)
class Score:
    """How a score is made.

    function: "module:name". takes: what it is given beside the model and batches of training pairs, of
    pruning.scores.ScoreRequest; the pairs are read only if it iterates over them. l2: each layer's scores
    are divided by their l2 norm (Michel et al. 2019, section 4.1). sample: how many training pairs it reads
    unless --sentences says otherwise: a sample, or all of the run where it has no more; None where it reads
    none. family: a score whose numbers this one shares. sign: -1 closes the highest first. signed: an
    estimate of what closing a head adds to the loss, below 0 where the model is better without it. refine:
    "module:name" of a function (model, batches, closed, **those of `takes`) -> closed that improves a
    choice at its count. part: of a function that gives several HeadMaps, which of them. code: of a function
    of the user's own, digits that tell its file from the file as it was before an edit."""

    function: str
    takes: tuple[str, ...] = ()
    sign: int = 1
    l2: bool = False
    family: str | None = None
    signed: bool = False
    sample: int | None = None
    refine: str | None = None
    one_by_one: bool = False  # it closes, or opens, every head alone: neurons are too many
    part: str = ""
    code: str = ""

    @property
    def drawn(self) -> bool:
        """Depends on a seed: by the pairs of its sample, or by what it draws."""
        return self.sample is not None or "seed" in self.takes

    @property
    def of_neurons(self) -> bool:
        """Scores feed-forward neurons too; the others read attention, or close every head alone."""
        return "kinds" in self.takes and not self.one_by_one

    @property
    def by_chance(self) -> bool:
        """Nothing but a seed decides."""
        return "seed" in self.takes and self.sample is None

    @property
    def measures_outputs(self) -> bool:
        """Whether each head needs outputs of its own, of validation lines."""
        return "valid" in self.takes


ROOM = "headgates.analysis.scores"
GRADIENT = ("kinds", "loss", "ranks")
CAUSAL = "headgates.analysis.causal_gating:causal_scores"
SAMPLE = 1000  # training pairs: seconds on a CPU
SMALL_SAMPLE = 200  # training pairs: of a score that goes over them once for each head, or token
ORDER = "obs"  # of a plan: within a layer the heads and neurons that it closes last stay
STANDS = 16_000  # training pairs until the order stands: measured, results/importance_sample.jsonl
IMPORTANCE = Score(f"{ROOM}.importance:raw_importance", GRADIENT, sample=STANDS)
LOSS = Score(f"{ROOM}.exact_effects:exact_effects", ("loss", "ranks"), signed=True, sample=SMALL_SAMPLE)
OBS = Score(f"{ROOM}.obs:obs", ("loss", "draw", "seed", "kinds"), sample=SAMPLE)
INTEGRATED = Score(f"{ROOM}.integrated:integrated", ("loss", "ranks"), signed=True, sample=SAMPLE)
GATING = Score(CAUSAL, ("loss", "seed"), part="facilitation", sample=SMALL_SAMPLE)
SCORES: dict[str, Score] = {
    "importance": replace(IMPORTANCE, l2=True),
    "raw-importance": replace(IMPORTANCE, family="importance"),
    "random": Score(f"{ROOM}.random_score:random_score", ("seed", "kinds")),
    "loss": LOSS,
    "loss-swap": replace(
        LOSS, signed=False, family="loss", refine=f"{ROOM}.loss_swaps:loss_swapped", one_by_one=True
    ),
    "ablation": Score(
        "headgates.pruning.ablation:ablation_score",
        ("source", "valid", "kinds", "file", "fresh"),
        one_by_one=True,
    ),
    "obs": OBS,
    "obs-swap": replace(OBS, family="obs", refine=f"{ROOM}.swaps:swapped", one_by_one=True),
    "fisher": Score(
        f"{ROOM}.fisher:fisher", ("loss", "kinds", "ranks"), sample=SAMPLE, refine=f"{ROOM}.fisher:rearranged"
    ),
}
OFFERED = [*LEARNED, *SCORES, "plan", "scratch", "uniform"]  # on the command line
SCORES |= {  # rows of the exactness card alone (explain/causes.py)
    "gradient": replace(INTEGRATED, function=f"{ROOM}.integrated:gradient"),
    "integrated": INTEGRATED,
    "weight-norm": Score(f"{ROOM}.weight_norm:weight_norm", ("kinds",)),
    "fluctuation": Score(f"{ROOM}.fluctuation:fluctuation", ("loss", "kinds"), sample=SAMPLE),
    "confidence": Score("headgates.analysis.confidence:confidence", sample=SAMPLE),
    "lrp": Score("headgates.analysis.lrp:relevance_score", ("logits", "ranks"), sample=SMALL_SAMPLE),
    "facilitation": GATING,
    "interference": replace(GATING, family="facilitation", part="interference", sign=-1),
    "irrelevance": replace(GATING, family="facilitation", part="irrelevance", sign=-1),
}
OTHERS = {  # "module:name" of what chooses in another way
    UNPRUNED: "headgates.pruning.choice:everything",
    LAYERS: "headgates.pruning.choice:named_layers",
    "plan": "headgates.pruning.by_plan:by_plan",
    "scratch": "headgates.pruning.new_models:same_shape",
    "uniform": "headgates.pruning.new_models:uniform",
}


def how(choose: str) -> str:
    """ "module:name" of the function that chooses."""
    if choose in LEARNED:
        return "headgates.pruning.by_gates:by_gates"
    return OTHERS.get(choose, "headgates.pruning.by_score:by_score")


def way(recipe: Recipe) -> str:
    """How a plan, or gates, reach a speed or a size, in a sentence; empty for what else chooses, or is
    wished."""
    if not isinstance(recipe.budget, Speed | Share) or not (recipe.learns or recipe.choose == "plan"):
        return ""
    how = f"gates learn {'with the' if recipe.learns_weights else 'on frozen'} weights under a limit of cost"
    if recipe.choose == "plan":
        parts = ["heads"] * (not {*KINDS}.isdisjoint(recipe.kinds))
        parts += ["neurons"] * (not {*FFN_KINDS}.isdisjoint(recipe.kinds))
        if {*recipe.kinds} == {*ALL_KINDS}:
            parts.append("layers")
            parts += ["output rows"] * (isinstance(recipe.budget, Speed) and recipe.budget.shortlist is None)
        words = " and ".join(", ".join(parts).rsplit(", ", 1))
        unit = "time" if isinstance(recipe.budget, Speed) else UNITS[recipe.budget.of]
        how = f"a plan chooses which {words} stay, by what each costs in loss and in {unit}"
    return f"{recipe.choose}, {recipe.budget.words}: {how}"


def check_chooser(flag: str, choose: str) -> None:
    """Raises ValueError unless there is such a chooser; a module of the user's own is looked for."""
    if choose in OFFERED or choose in OTHERS or choose in (PIECES, SHORTLIST):
        return
    if ":" not in choose:
        raise ValueError(
            f"{flag}: expected some of {', '.join(OFFERED)}, or module:function, got "
            f"{choose}{did_you_mean(choose, OFFERED)}"
        )
    score_named(choose)


def check_parts(recipe: Recipe) -> None:
    """Raises ValueError where neurons may close by a score that has none of them."""
    if recipe.gates_neurons and is_score(recipe.choose) and not score_named(recipe.choose).of_neurons:
        raise ValueError(
            f"--by {recipe.choose} scores no feed-forward neurons; take importance, raw-importance, random, "
            "obs or fisher, or --kinds heads"
        )


def score_named(name: str) -> Score:
    """A score by its name, or a function of the user's own, which is given what its parameters name. Raises
    ValueError where there is none."""
    if name in SCORES:
        return SCORES[name]
    function = imported(name)
    if not callable(function):
        raise ValueError(f"--by {name}: expected a function f(model, batches) -> HeadMap")
    known = ("loss", "logits", "draw", "seed", "kinds", "ranks", "source", "valid")
    taken = inspect.signature(function).parameters
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    code = "" if file is None else file_digest(file)[:8]
    return Score(name, tuple(each for each in taken if each in known), sample=SAMPLE, code=code)


def score_of(recipe: Recipe) -> str | None:
    """The score that a recipe's choice reads; None where it reads none."""
    return ORDER if recipe.planned else recipe.choose if is_score(recipe.choose) else None


def is_score(choose: str) -> bool:
    return choose in SCORES or ":" in choose


def is_drawn(recipe: Recipe) -> bool:
    """Whether another seed makes another model."""
    if recipe.epochs or recipe.learns or recipe.closing != ZERO:
        return True
    if recipe.choose in (LAYERS, PIECES, SHORTLIST, UNPRUNED):
        return False
    return not is_score(recipe.choose) or score_named(recipe.choose).drawn
