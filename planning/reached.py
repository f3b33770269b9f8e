"""A plan that is measured itself: what parts cost alone does not quite add up, so a plan that costs more than
the target is made again for less, and one that costs much less for more."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from headgates.planning.planner import Plan, key_of

TIMINGS = 4  # plans that are measured
CLOSE = 0.97, 1.01  # what a plan may cost of what is asked for


def reached(
    plan_for: Callable[[float], Plan | None],
    measured: Callable[[Plan], float],
    target: float,
    *,
    close: tuple[float, float] = CLOSE,
) -> Plan | None:
    """The plan of least loss that meets the target, or the cheapest plan if none does; its cost is what was
    measured. None where there is no plan at all.

    plan_for: the plan for a budget, None where nothing meets it. measured: what a plan costs. close: what
    ends it, of the target."""
    plan = plan_for(target)
    if plan is None:
        return None
    tried, budget, (least, most) = dict[float, Plan](), target, (target * share for share in close)
    for _ in range(TIMINGS):
        known = {(key_of(each.subnet), each.output) for each in tried.values()}
        tried[budget] = replace(plan, cost=measured(plan))
        if least <= tried[budget].cost <= most or (key_of(plan.subnet), plan.output) in known:
            break
        budget = next_budget({budget: each.cost for budget, each in tried.items()}, target)
        if (next_one := plan_for(budget)) is None:
            break
        plan = next_one
    enough = [each for each in tried.values() if each.cost <= most]
    if not enough:
        return min(tried.values(), key=lambda each: each.cost)
    return min(enough, key=lambda each: (each.loss or 0.0, -each.cost))


def next_budget(costs: Mapping[float, float], target: float) -> float:
    """The budget to plan for next: between the nearest two whose plans took more and less than the target,
    else the last one by what it missed. costs: budget -> what its plan took, the last one last."""
    slow = min((budget for budget, cost in costs.items() if cost > target), default=None)
    fast = max((budget for budget, cost in costs.items() if cost <= target), default=None)
    if slow is None or fast is None or fast >= slow:
        budget, cost = [*costs.items()][-1]
        return budget * target / cost
    return fast + (slow - fast) * (target - costs[fast]) / (costs[slow] - costs[fast])
