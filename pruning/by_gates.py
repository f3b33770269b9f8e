"""Gates learn what stays: with the weights, or on frozen weights before a refit; by a price for each head,
to a number of heads, under a limit on what they cost, or to the fewest heads that lose little.   Voita et
al. 2019."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headgates.configs.learned import LEARNED
from headgates.configs.recipe import Lambda, MaxDrop, Recipe, Share, Speed, Units
from headgates.data.ranks import first, is_first
from headgates.gates import (
    FFN_KINDS,
    WIDTH,
    GateBank,
    HeadMap,
    Subnet,
    TargetBudget,
    attach,
    detach,
    heads_left,
    remove,
)
from headgates.lab.lab import Run
from headgates.lightning_modules.gating import Gating, first_settled
from headgates.lightning_modules.stage_record import StageResult
from headgates.models.translator import Translator
from headgates.pruning.by_score import check_counts
from headgates.pruning.choice import Choice
from headgates.pruning.max_drop import Try, fewest, numbers_of_heads, validated
from headgates.pruning.planning import Planning
from headgates.tasks.base import Predictor

Targets = int | dict[str, int]


def by_gates(run: Run, recipe: Recipe) -> Choice:
    """Raises ValueError at numbers that the model has not, and at a speed or a drop that cannot be met."""
    if isinstance(recipe.budget, Speed | Share):
        return at_cost(run, recipe)
    if isinstance(recipe.budget, MaxDrop):
        return fewest_learned(run, recipe)
    predictor = run.load()
    targets: Targets | None = None
    if isinstance(recipe.budget, Units):
        counts = recipe.budget.counts
        check_counts(heads_left(predictor.model, recipe.kinds), counts)
        targets = counts["heads"] if set(counts) == {"heads"} else counts
    price = recipe.budget.price if isinstance(recipe.budget, Lambda) else None
    bank, result, seconds = train_gates(run, recipe, predictor, targets, price=price)
    if is_first():
        bank.save(run.folder / "gates.json")
    soft = bank.values()
    bank.binarise(False)  # its last epochs may have trained the weights for gates at 0 or 1
    closed = bank.closed()
    # weights that trained on beside gates at 0 or 1 never met the others
    moved = soft.map(lambda row: row.double()) != (~closed).map(lambda row: row.double())
    looked_at = result is not None and result.settled is None and moved
    facts = {"soft": run.task.outputs(predictor, run.text.test[0])} if looked_at else {}
    detach(predictor.model)
    return Choice(predictor, Subnet.of(predictor.model).without(closed), seconds, result, facts)


def train_gates(
    run: Run,
    recipe: Recipe,
    predictor: Predictor,
    targets: Targets | None,
    *,
    price: float | None = None,
    name: str = "gates",
    prefix: str = "training-",
) -> tuple[GateBank, StageResult | None, float]:
    """Train gates on the predictor's heads as they are now; return them, how the training went where it
    trained the weights too, and the seconds of the choice alone.

    With a refit, or without epochs, the parts are chosen in a stage of its own, on frozen weights. targets,
    price: how many stay, or what each costs. name, prefix: of the stage, and of its files in the folder."""
    settings, model, gates = run.settings, predictor.model, run.settings.gates
    learned = LEARNED[recipe.choose]
    bank = attach(
        model,
        learned.gate,
        recipe.kinds,
        heads=targets,
        lam=price,
        warmup=gates.lambda_warmup,
        multiple=WIDTH,
        **learned.gate_options(gates),
    )
    if recipe.learns_weights:
        gating = Gating(gates, bank, epochs=recipe.epochs)
        stage = settings.finetuning(recipe.epochs)
        trained = run.train_on(name, predictor, stage, seeded_as="gates", prefix=prefix, gating=gating)
        return bank, trained, 0.0
    return bank, None, choose_on_frozen(run, f"{name}: choice", predictor, bank)


def choose_on_frozen(run: Run, name: str, predictor: Predictor, bank: GateBank) -> float:
    """Train the gates alone, for --gates.choose-epochs; the seconds that this took."""
    model = predictor.model
    model.requires_grad_(False)
    bank.requires_grad_(True)
    result = move_gates(run, name, predictor, bank, run.settings.gates.choose_epochs)
    model.requires_grad_(True)
    return result.seconds


def move_gates(run: Run, name: str, predictor: Predictor, bank: GateBank, epochs: int) -> StageResult:
    """Train the gates, and what else of the model takes gradients, in a stage that leaves them noisy."""
    # gates move too far for a running average
    stage = replace(run.settings.finetuning(epochs), average=0.0)
    gating = Gating(replace(run.settings.gates, settle=0.0), bank, epochs=epochs)
    return run.train_on(name, predictor, stage, prefix="choice-", gating=gating)


# ---------------------------------------------------------------- other budgets


def at_cost(run: Run, recipe: Recipe) -> Choice:
    """What gates close that learn while what is open in expectation comes to cost what the budget allows; the
    lowest close until the model itself does. Before a refit the weights are frozen meanwhile; without one
    they learn too, and the model that is left trains for the epochs in which gates would stand at 0 or 1.

    Raises ValueError at a budget that cannot be met."""
    learned, gates, epochs = LEARNED[recipe.choose], run.settings.gates, recipe.epochs
    moving = min(first_settled(epochs, gates.settle), epochs - 1)  # of two epochs at least (`check_recipe`)
    predictor, planning = run.load(), Planning(run, run.text.source(run.base), recipe)
    planning.tell_time(losses=False)
    options = learned.gate_options(gates)
    bank = attach(predictor.model, learned.gate, recipe.kinds, multiple=WIDTH, **options)
    bank.budget = TargetBudget({"": planning.limit(predictor.model)}, gates.lambda_warmup)
    result, seconds = None, 0.0
    if recipe.learns_weights:
        result = move_gates(run, "gates", predictor, bank, moving)
    else:
        seconds = choose_on_frozen(run, "plan-learned: choice", predictor, bank)
    opened = bank.open_prob().map(lambda p: -(1 - p.double()).clamp_min(1e-300).log())
    detach(predictor.model)
    found = planning.once(lambda: planning.lowest_first(shares_of_blocks(opened)))
    found.seconds += seconds
    if result is not None:
        assert isinstance(found.predictor, Translator)
        found.predictor = found.predictor.with_model(predictor.model)
        found.result, found.epochs_left = result, epochs - moving
    return found


def shares_of_blocks(opened: HeadMap) -> HeadMap:
    """How far heads and neurons are open, as the order in which the lowest close: neurons close in blocks, by
    the sum of their scores, and a block is open as far as its neurons are on average."""
    return HeadMap({site: row / WIDTH if site.kind in FFN_KINDS else row for site, row in opened.items()})


@dataclass(frozen=True)
class Wish:
    """What one model of the path is made for: so many heads, or what gates leave at a price. word: begins the
    names of its files."""

    heads: int | None
    price: float | None
    word: str

    @property
    def words(self) -> str:
        return f"{self.heads} heads" if self.price is None else f"λ {self.price:g}"


def fewest_learned(run: Run, recipe: Recipe) -> Choice:
    """The fewest heads whose loss of quality is accepted: gates are trained for one number, or at one price,
    after the other, each time on the smaller model of the one before."""
    assert isinstance(recipe.budget, MaxDrop)
    predictor = run.load()
    if prices := recipe.budget.prices:
        wishes = [Wish(None, price, f"lambda-{price:g}") for price in prices]
    else:
        total = heads_left(predictor.model, recipe.kinds).count()
        wishes = [Wish(count, None, f"{count}") for count in numbers_of_heads(recipe, total)]

    def stage(wish: Wish) -> StageResult:
        # which the first may just have written
        return first(lambda: run.folder.read_json(f"{wish.word}-stage.json", StageResult))

    def tries() -> Iterator[Try]:
        for wish in wishes:
            if not heads_left(predictor.model, recipe.kinds).count():
                return  # nothing is left to close
            make_smaller(run, recipe, predictor, wish)
            left, result = heads_left(predictor.model, recipe.kinds).count(), stage(wish)
            yield Try(wish.words, left, validated(run, predictor), result.losses[result.best_epoch])

    found, facts = fewest(run, recipe, tries(), validated(run, predictor))
    best = next(wish for wish in wishes if wish.words == found.asked)
    weights = run.folder / f"{best.word}-heads.pt"
    kept = run.task.load_predictor(run.folder.path, weights, run.text.settings)
    for wish in wishes:
        if wish != best:  # a walk that left no head has no later file
            first(partial((run.folder / f"{wish.word}-heads.pt").unlink, missing_ok=True))
    return Choice(kept, Subnet.of(kept.model), result=stage(best), facts=facts)


def make_smaller(run: Run, recipe: Recipe, predictor: Predictor, wish: Wish) -> None:
    """Make the predictor's model the one that is wished, trained from what it was, unless that is on disk."""
    weights = run.folder / f"{wish.word}-heads.pt"
    if first(weights.is_file):
        found: Any = run.task.load_predictor(run.folder.path, weights, run.text.settings)
        predictor.model = found.model.to(next(predictor.model.parameters()).device)  # type: ignore[misc]
        return
    bank, *_ = train_gates(
        run, recipe, predictor, wish.heads, price=wish.price, name=wish.words, prefix=f"{wish.word}-"
    )
    closed = bank.closed()
    detach(predictor.model)
    remove(predictor.model, closed)
    run.task.save_model(weights, predictor)
    for file in ("best.pt", "last.pt"):
        (run.folder / f"{wish.word}-{file}").unlink(missing_ok=True)
