"""A plan that is measured itself: what parts cost alone does not quite add up, so a plan that costs more than
the target is made again for less, and one that costs much less for more."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from headgates.planning.planner import Plan, key_of

TIMINGS = 6  # plans that are measured
BUDGETS_TRIED = 12  # that plans are made for
CLOSE = 0.985, 1.01  # what a plan may cost of what is asked for
LESS = 0.01  # by which each further plan widens this downwards, as timings differ by about as much
STEP = 0.02  # of a budget, at least, where nothing is known on one side of the target


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
    ends it, of the target, at the first plan; of any plan so far, LESS below it at each plan after that."""
    tried, costs, budget = dict[Any, Plan](), dict[float, float](), target
    most = target * close[1]
    for _ in range(BUDGETS_TRIED):
        if (plan := plan_for(budget)) is None:
            if not costs or budget >= (1 - STEP) * min(costs):
                break
            budget = (budget + min(costs)) / 2  # nothing is so cheap
            continue
        key = key_of(plan.subnet), plan.output
        known = key in tried
        if not known:
            tried[key] = replace(plan, cost=measured(plan))
        costs[budget] = tried[key].cost
        least = target * (close[0] - LESS * (len(tried) - 1))
        if any(least <= cost <= most for cost in costs.values()) or len(tried) == TIMINGS:
            break
        budget = next_budget(costs, target, halve=known)
    if not tried:
        return None
    enough = [each for each in tried.values() if each.cost <= most]
    if not enough:
        return min(tried.values(), key=lambda each: each.cost)
    return min(enough, key=lambda each: (each.loss or 0.0, -each.cost))


def next_budget(costs: Mapping[float, float], target: float, *, halve: bool = False) -> float:
    """The budget to plan for next: between the largest one whose plan met the target and the next one whose
    plan did not, where there are both; else further on, by what plans cost of their budgets on average.
    costs: budget -> what its plan took. halve: take the middle between the two, as both have plans that are
    known."""
    fast = max((budget for budget, cost in costs.items() if cost <= target), default=0.0)
    slow = min((budget for budget, cost in costs.items() if cost > target and budget > fast), default=None)
    if fast and slow is not None:
        share = 0.5 if halve else (target - costs[fast]) / (costs[slow] - costs[fast])
        return fast + (slow - fast) * share
    budget = target / fmean(cost / budget for budget, cost in costs.items())
    return max(budget, (1 + STEP) * fast) if fast else min(budget, (1 - STEP) * min(costs))
