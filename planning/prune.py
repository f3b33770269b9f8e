"""A model becomes smaller or faster in one call, without training.

    print(prune(model, batches, speedup=2))

1. A plan (planner.py) says which heads, neurons and layers stay: those whose loss is least where they go, for
   a number of heads or neurons, a share of the parameters or multiply-adds, or a speed that is measured.
2. The output projections of what stays are refitted by least squares to what the model gave (reconstruct.py).
3. The rest is taken out of the model, in place.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn

from headgates.analysis.batches import Loss, batch_loss, known_tokens, passed
from headgates.analysis.levels import text_loss
from headgates.gates import ALL_KINDS, FFN_KINDS, KINDS, WIDTH, HeadMap, Subnet, reconstruct
from headgates.gates.attach_modes import check_ungated
from headgates.gates.depth import alike_layers, skipped
from headgates.gates.names import check_name, check_numeric
from headgates.gates.proof import memory_of
from headgates.gates.short_example import Inputs, short_example
from headgates.gates.site_walk import check_eager
from headgates.gates.sites import device_of
from headgates.gates.targets import check_number
from headgates.planning.cost_table import CostMeasure, Layer, cost_table, counting_table, parameters
from headgates.planning.order import BY_PLAN, ScoreFunction, check_choice, order_of
from headgates.planning.plan_text import PlanText, sizes_of_batches
from headgates.planning.planner import Plan, Planner
from headgates.planning.pruned import Pruned
from headgates.planning.reached import CLOSE, reached
from headgates.planning.timing import ModelRun, Timer, multiply_adds

COUNTED = {"heads": KINDS, "neurons": FFN_KINDS}  # budgets that are numbers of units, and of which kinds
SHARED_OUT = {"params": "parameters", "macs": "multiply-adds", "speedup": "time"}
GPU_WIDTH = 64  # neurons stay in multiples of it on a GPU, for its matrix units
COUNTABLE = 0.0, 1.0  # what counts may cost of what is asked for
# arguments of a batch that a short example of words stands for
OF_WORDS = {"input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "labels"}
TIMED_BATCHES = 4  # that are run, where the user says nothing


@torch.inference_mode(False)
def prune(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    heads: int | None = None,
    neurons: int | None = None,
    params: float | None = None,
    macs: float | None = None,
    speedup: float | None = None,
    choose: str | ScoreFunction | HeadMap = BY_PLAN,
    refit: str | None = "out",
    loss: Loss | None = None,
    run: ModelRun | None = None,
    layers: bool = True,
    multiple: int | None = None,
    even: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Pruned:
    """Make a model smaller, in place, and say what stays and what that costs.

    batches: a few hundred sentences, images or sounds in batches of the model's arguments, labels included;
    of every four the last is held out for the losses, and the others serve for the refits. One budget:

    heads, neurons: how many stay in the model; both may be given. Neurons stay in multiples, so the next
    smaller number that can be had. params, macs: the share of the parameters, or of the multiply-adds of a
    run, that stays, in (0, 1). speedup: how many times as fast the model should be, above 1.

    choose: "plan" looks at the loss of every width of every layer, of layers that go, and of shapes as a
    whole. The name of a score (planning/order.py), a function (model, batches) -> HeadMap or a HeadMap of
    numbers closes the lowest instead, one after the other. refit: "out", the output projections of attentions
    and feed-forward layers that stay, or None. loss (model, batch): summed over what it is the loss of; the
    model's own unless given. run (model): what is timed, and counted for macs, such as a call of `generate`;
    a forward pass of some of the batches unless given. layers: whether layers may go, for a share or a speed.
    multiple: of neurons, 16 unless given, and 64 on a GPU. even: layers stay alike, so that a class with a
    field for their sizes opens the saved folder; of a number the next smaller that they can share. report:
    takes a line for each step.

    Raises ValueError at anything else, at a model with gates, batches without a loss, and, saying the least
    that can be had, a budget that cannot be met; the model is then as it was."""
    budgets = dict(heads=heads, neurons=neurons, params=params, macs=macs, speedup=speedup)
    asked = one_budget({name: number for name, number in budgets.items() if number is not None})
    if refit is not None:
        check_name("refit", refit, ("out",))
    if multiple is not None:
        check_numeric("multiple", multiple, whole=True, least=1)
    check_choice(choose)
    for what, given in (("loss", loss), ("run", run)):
        if not (given is None or callable(given)):
            raise ValueError(f"{what}: expected a function, got {given!r}")
    if run is not None and not asked.keys() & {"macs", "speedup"}:
        raise ValueError("run= is what is timed or counted: give speedup= or macs= with it, or leave it out")
    check_ungated(model)
    check_eager(model)
    text, loss = PlanText.of(model, batches), loss or batch_loss
    loss_before, before = text_loss(model, text.held_out, loss), int(parameters(model))
    if not math.isfinite(loss_before):
        raise ValueError(
            f"the loss of the held-out batches is {loss_before}, so no plan can be compared by it; each of "
            "them needs a label that counts, and the model finite weights"
        )
    if multiple is None:
        multiple = GPU_WIDTH if device_of(model).type == "cuda" else WIDTH
    inputs: Inputs | None = None  # of the passes that prove that layers can go
    of_words = isinstance(text.fit[0], Mapping) and text.fit[0].keys() <= OF_WORDS
    if isinstance(text.fit[0], Mapping) and not (of_words and short_example(model)):
        inputs = (), dict(text.fit[0])
    chosen = text.fit[:: -(-len(text.fit) // TIMED_BATCHES)]
    used = run or partial(forward_passes, chosen)

    def planner_of(kinds: Sequence[str], **options: Any) -> Planner:
        report(f"the order of {'heads and neurons' if len(kinds) == len(ALL_KINDS) else 'units'}")
        order = order_of(model, text.fit, choose, kinds=kinds, loss=loss)
        return Planner(
            model,
            order,
            batches=text.fit,
            valid=text.held_out,
            loss=loss,
            units=text.units,
            multiple=multiple,
            queries=known_tokens,
            even=even,
            report=report,
            **options,
        )

    def plan_with(planner: Planner, budget: float) -> Plan | None:
        if budget < planner.least_cost:
            return None
        if choose != BY_PLAN:
            return planner.lowest_first(budget)
        return planner.plan(budget)

    subnet, predicted, timer, full = Subnet.of(model), None, None, 0.0
    measure: CostMeasure | None = None
    if asked.keys() <= COUNTED.keys():
        for name, number in asked.items():
            table = counting_table(model, COUNTED[name])
            planner = planner_of(COUNTED[name], table=table, dropping=())
            subnet = subnet.without(counted(planner, name, int(number), plan_with).closing)
    else:
        ((name, number),) = asked.items()
        timer = Timer(model, used) if name == "speedup" else None
        measure = timer or (parameters if name == "params" else multiply_adds(used))
        whole = timer.whole if timer else measure(model)
        dropping, staying = layers_that_go(model, inputs, report) if layers else ([], [])
        table = cost_table(
            model,
            measure,
            unit=SHARED_OUT[name],
            whole=whole,
            dropping=dropping,
            staying=staying,
            multiple=multiple,
            report=report,
        )
        full = table.cost(subnet)
        target = full / number if timer else full * number
        planner = planner_of(ALL_KINDS, table=table, dropping=dropping, staying=staying)

        def measured(plan: Plan) -> float:
            with plan.subnet.removed(model):
                cost = full * measure(model) / whole
            said = f"{full / cost:.2f} times as fast" if timer else f"{cost / full:.3f} of the {table.unit}"
            report(f"{said}: {plan.subnet.words}")
            return cost

        plan_for = partial(plan_with, planner)
        close = CLOSE if timer else COUNTABLE
        plan = reached(plan_for, measured, target, close=close)
        if plan is None:
            raise ValueError(f"{name}={number:g} cannot be met: {planner.too_small(target)}")
        if plan.cost > target * close[1] * (1 + 1e-9):  # which a table that is a little off does not say
            if not timer:
                share = f"{plan.cost / full:.3f} of the {table.unit}"
                raise ValueError(f"{name}={number:g} cannot be met: the smallest model found has {share}")
            report(f"no plan is {number:g} times as fast: the fastest found is {full / plan.cost:.2f}")
        subnet = plan.subnet
        del plan_for  # the refits of its planner may be as large as a part of the model
        predicted = full / table.cost(subnet) if timer else table.cost(subnet) / full
    del planner
    check_removal(model, subnet, inputs)  # before a weight changes
    if refit:
        with skipped(model, subnet.dropped):
            reconstruct(model, subnet.closing, text.fit, passed, positions=known_tokens)
    subnet.remove(model, inputs=inputs)
    found: list[float] = []
    if measure:
        found = timer.speedups(model) if timer else [measure(model) / whole]
    loss_after = text_loss(model, text.held_out, loss)
    return Pruned(
        subnet,
        (loss_before / text.units, loss_after / text.units),
        text.unit,
        (before, int(parameters(model))),
        asked,
        predicted,
        tuple(found),
        f"{'run(model)' if run else f'a pass of {sizes_of_batches(chosen)}'}, {timer.place}" if timer else "",
    )


def one_budget(asked: dict[str, float]) -> dict[str, float]:
    """Raises ValueError unless this is one budget, or a number of heads and one of neurons."""
    if not asked or (len(asked) > 1 and not asked.keys() <= COUNTED.keys()):
        raise ValueError(
            "expected one of heads=, neurons= (or both), params=, macs= and speedup=, got "
            f"{' and '.join(asked) or 'none'}"
        )
    for name, number in asked.items():
        kind: type[Any] = Integral if name in COUNTED else Real
        if isinstance(number, bool) or not isinstance(number, kind):
            raise ValueError(f"{name}: expected a {'whole ' * (kind is Integral)}number, got {number!r}")
        if name in ("params", "macs") and not 0 < number < 1:
            raise ValueError(f"{name}: expected the share that stays, above 0 and below 1, got {number:g}")
        if name == "speedup" and not number > 1:
            raise ValueError(f"speedup: expected more than 1, such as 2 for twice as fast, got {number:g}")
    return asked


def counted(
    planner: Planner, name: str, number: int, plan_with: Callable[[Planner, float], Plan | None]
) -> Subnet:
    """The subnet in which so many units stay; of neurons, the next smaller number that their multiples
    allow. Raises ValueError where that many cannot stay."""
    total = int(planner.table.cost(planner.whole))
    least = int(planner.table.cost(planner.smallest()))
    steps = {steps.step for steps in planner.steps.values()} if name == "heads" else {1}
    check_number(name, number, least, total, min(steps) if len(steps) == 1 else 1)
    if number in (least, total):
        return planner.smallest() if number == least else planner.whole
    plan = plan_with(planner, number)
    assert plan is not None  # the budget is above the least
    return planner.filled(plan.subnet, number)


def layers_that_go(
    model: nn.Module, inputs: Inputs | None, report: Callable[[str], None]
) -> tuple[list[str], list[Layer]]:
    """The stacks whose layers can be dropped, and layers of them that cannot, as they make what others need.
    The last of each stack is dropped and put back, then the first, and those that are not like the layer
    before or after them: what a layer holds may go by its number."""
    stacks, staying, whole = list[str](), list[Layer](), Subnet.of(model)
    for stack, row in whole.layers.items():
        sort = {number: alike[0] for alike in alike_layers(model, stack) for number in alike}
        last, *others = range(len(row) - 1, -1, -1)
        ends = [n for n in others if not n or any(sort.get(n) != sort.get(n + step) for step in (-1, 1))]
        for number in [last, *ends] if others else []:
            try:
                check_removal(model, whole.without(layers={stack: [number]}), inputs)
                stacks += [stack] * (number == last)
            except ValueError as error:
                if number == last:
                    report(f"every layer of the {stack} stays: {error}")
                    break
                report(f"layer {number} of the {stack} stays: {error}")
                staying.append((stack, number))
    return stacks, staying


def check_removal(model: nn.Module, subnet: Subnet, inputs: Inputs | None) -> None:
    """Raises ValueError where the rest cannot be removed; the model stays as it was."""
    put_back = memory_of(model)
    subnet.remove(model, inputs=inputs)
    put_back()


def forward_passes(batches: Sequence[Any], model: nn.Module) -> None:
    for batch in batches:
        passed(model, batch)
