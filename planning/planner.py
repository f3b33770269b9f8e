"""Which heads, neurons and layers to close for a speed: a plan.

1. What widths of each layer cost in loss (analysis/levels.py), on lines between those measured, and what
   layers cost that are dropped together: in each stack the next to go is that which adds least beside those
   that are gone, and numbers of layers gone in one stack are measured with numbers in the other.
2. What it costs in time, parameters or multiply-adds (cost_table.py).
3. For every budget, and all layers that may be gone, the widths of least summed loss: a knapsack over the
   layers left, each of which has the widths of its sub-layers together (analysis/knapsack.py).
4. An output layer that is cheaper, such as one with a shortlist, leaves more of the budget to the layers, and
   adds its own loss. The same knapsack has the best widths for what each leaves.
5. Losses do not add up, so of the shapes of least summed loss that is taken whose loss as a whole is least. A
   local search from there gained nothing on new text (LOG.md). Nor do they say how many layers a model should
   keep that is refitted: the best shape of each number of layers is refitted, and the losses compared.

A layer's best heads and neurons are the highest of an order. What there was before plans, closing the lowest
of an order one by one until the model is fast enough, is here too (`Planner.lowest_first`).
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, cached_property, partial
from operator import itemgetter
from statistics import fmean
from typing import Any, NotRequired, TypedDict

from headgates.analysis.batches import Queries, query_tokens
from headgates.analysis.knapsack import Knapsack, Option, split_between, undominated
from headgates.analysis.levels import Levels, highest, level_losses, text_loss
from headgates.gates import WIDTH, HeadMap, HeadSite, Subnet, find_sites
from headgates.gates.depth import STACKS, skipped
from headgates.planning.cost_table import CostTable, Layer, by_stack, open_units, sites_by_layer
from headgates.planning.prefix import KeptOutputs
from headgates.planning.widths import Widths, measured_numbers

CROSS = "cross"  # the kind of attention that reads the source
SHAPES_LOOKED_AT = 6  # of least summed loss; each costs a pass, for each of a few plans
DEPTHS_LOOKED_AT = 36  # numbers of layers, of least summed loss; each costs a refit, for the first plan
POINTS_KEPT = 3  # of least loss, where the walks of other plans begin while budgets differ by no more than
AS_DEEP = 1.25  # times
WALKED = 8  # plans that such a walk looks at, about
BatchLoss = Callable[[Any, Any], Any]
Point = tuple[tuple[int, ...], tuple[int, ...]]  # layers of each stack, and heads of each padded part


class DropRecord(TypedDict):
    """gone: how many layers of each stack, in the order in which they go."""

    gone: list[int]
    rise: float


class LevelsRecord(TypedDict):
    """widths: site -> units that stay -> what that adds to the loss."""

    widths: dict[str, dict[str, float]]
    drop_order: NotRequired[dict[str, list[int]]]
    dropped: NotRequired[list[DropRecord]]


@dataclass(frozen=True)
class Plan:
    """What stays, what that costs, and what it adds to the loss of the text that was planned on, in nats
    per unit; None where no loss was looked at. output: its output layer, by its place among the
    planner's."""

    subnet: Subnet
    cost: float
    loss: float | None = None
    output: int = 0


def key_of(subnet: Subnet) -> tuple[Any, ...]:
    """What tells subnets of one order apart: the numbers at each site, and the layers."""
    return tuple(open_units(subnet).values()), tuple(subnet.layers.items())


def cheapest_first(layers: Sequence[int], rise: Callable[[Sequence[int]], float], keep: int = 1) -> list[int]:
    """The order in which all but `keep` of the layers go, each the one that adds least beside those that are
    gone. rise: what some add together. A layer is looked at again only where what it added before would make
    it the next: it seldom adds less beside more that are gone."""
    if len(layers) <= keep:
        return []
    added, gone, total = {layer: rise([layer]) for layer in layers}, list[int](), 0.0
    while len(added) > keep:
        now: dict[int, float] = {}
        for layer in sorted(added, key=added.__getitem__):
            if now and added[layer] >= min(now.values()):
                break
            now[layer] = rise([*gone, layer]) - total if gone else added[layer]
        added |= now
        gone.append(min(now, key=now.__getitem__))
        total += added.pop(gone[-1])
    return gone


def interpolated(known: Mapping[tuple[int, ...], float], at: tuple[int, ...]) -> float:
    """What is known at a point, or along straight lines between the nearest on each axis."""
    if at in known:
        return known[at]
    for axis, value in enumerate(at):
        numbers = {point[axis] for point in known}
        if value not in numbers:
            low, high = max(n for n in numbers if n < value), min(n for n in numbers if n > value)
            first, last = (interpolated(known, (*at[:axis], n, *at[axis + 1 :])) for n in (low, high))
            return first + (last - first) * (value - low) / (high - low)
    raise ValueError(f"the kept losses lack {at} layers gone; delete the file of them")


def steps_between(one: Point, other: Point) -> int:
    """How many layers and heads two points differ by."""
    return sum(abs(a - b) for own, its in zip(one, other, strict=True) for a, b in zip(own, its, strict=True))


@dataclass(frozen=True)
class StackShapes:
    """The widths of least summed loss of a stack's first layers, for every number of them and every budget.
    widths: of each layer those of its sites together, by the options of the knapsack."""

    layers: list[Layer]
    widths: list[list[tuple[int, ...]]]
    knapsack: Knapsack

    def picked(self, count: int, shares: int) -> dict[Layer, tuple[int, ...]]:
        """Of so many layers with so many shares of the budget."""
        options = self.knapsack.options(shares, count)
        return {
            layer: widths[option]
            for layer, widths, option in zip(self.layers[:count], self.widths, options, strict=False)
        }


# summed loss, place of the output layer, heads of each padded part, and of each stack the layers that stay
# and their shares of the room
Shape = tuple[float, int, tuple[int, ...], list[tuple[StackShapes, int, int]]]


@dataclass(eq=False)
class Planner:
    """Plans for one model and one text.

    order: of all heads and neurons, the highest stay. table: what they cost. batches: for the refits; valid:
    for the losses, with so many `units` of the loss. loss (model, batch): summed over units. dropping: the
    stacks whose layers may go, but for those `staying`. multiple: of neurons. even: whether all sites of a
    kind have one width. queries: of the positions of the refits. outputs: the ways to compute the output
    layer, by what each adds to the cost, below 0 where it takes off, and to the loss; the first alone where
    all are even. refitted: the loss of the text of what a subnet is refitted to, by which numbers of layers
    are compared. kept: where the losses of all widths and layers are kept; report: takes a line for each
    site. Raises ValueError where even sites of a kind differ in their units."""

    model: Any
    order: HeadMap
    table: CostTable
    batches: Sequence[Any]
    valid: Sequence[Any]
    _: KW_ONLY
    loss: BatchLoss
    units: int
    dropping: Collection[str] = STACKS
    staying: Collection[Layer] = ()
    multiple: int = WIDTH
    even: bool = False
    queries: Queries = query_tokens
    outputs: Sequence[Option] = (Option(0.0, 0.0),)
    refitted: Callable[[Subnet], float] | None = None
    kept: Callable[[Callable[[], LevelsRecord]], LevelsRecord] = lambda make: make()
    report: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        modules = find_sites(self.model, self.order.kinds)
        self.sites = [site for site in modules if site.heads]
        self.steps = {site: Widths.of(site, modules[site], self.multiple) for site in self.sites}
        self.options = {site: steps.all for site, steps in self.steps.items()}
        self.whole = Subnet.of(self.model)
        self.layers = sites_by_layer(self.whole)
        sizes = {(site.kind, site.heads): site for site in self.sites}
        if self.even and len(sizes) > len({site.kind for site in self.sites}):
            said = ", ".join(f"{site.heads} at {site.name}" for site in sizes.values())
            raise ValueError(f"even: expected as many heads or neurons in all layers, got {said}")
        self.seen = dict[tuple[Any, ...], float]()  # key of a subnet -> what it adds to the loss
        self.points = dict[float, list[Point]]()  # budget -> POINTS_KEPT

    @cached_property
    def levels(self) -> Levels:
        return Levels(self.model, self.batches, self.order, self.options, queries=self.queries)

    @cached_property
    def base(self) -> float:
        """The loss of the text before anything is closed."""
        return text_loss(self.model, self.valid, self.loss)

    @cached_property
    def known(self) -> LevelsRecord:
        """What each width of each site adds to the loss, and what dropped layers add together."""

        def measured() -> LevelsRecord:
            kept = KeptOutputs(self.model, self.valid, self.loss)
            rises = level_losses(
                self.levels,
                self.valid,
                {site: self.steps[site].measured for site in self.sites},
                loss=self.loss,
                report=lambda site: self.report(f"{site.name}: loss of each width"),
                near=lambda site: kept.before(site.stack, site.layer),
            )
            by_site: dict[str, dict[str, float]] = {}
            for (site, units), rise in rises.items():
                by_site.setdefault(site.name, {})[str(units)] = rise
            found = LevelsRecord(widths=by_site)
            if self.dropping:
                found["drop_order"], found["dropped"] = self.drop_losses()
            return found

        return self.kept(measured)

    @cached_property
    def rises(self) -> dict[tuple[HeadSite, int], float]:
        """Raises ValueError where the kept losses lack a width of the model."""
        known, found = self.known["widths"], dict[tuple[HeadSite, int], float]()
        for site in self.sites:
            for units in self.steps[site].measured:
                if str(units) not in known.get(site.name, {}):
                    raise ValueError(f"the kept losses lack {units} of {site.name}; delete the file of them")
                found[site, units] = known[site.name][str(units)]
        return found

    @cached_property
    def drops(self) -> list[tuple[frozenset[Layer], float]]:
        """Layers that may be gone together, and what that adds; the first is none, the last leaves one in
        each stack."""
        if not self.dropping:
            return [(frozenset(), 0.0)]
        orders = [[(stack, int(n)) for n in own] for stack, own in self.known["drop_order"].items()]
        rises = {tuple(each["gone"]): each["rise"] for each in self.known["dropped"]}
        return [
            (
                frozenset(layer for own, n in zip(orders, gone, strict=True) for layer in own[:n]),
                interpolated(rises, gone),
            )
            for gone in itertools.product(*(range(len(own) + 1) for own in orders))
        ]

    def drop_losses(self) -> tuple[dict[str, list[int]], list[DropRecord]]:
        """The order in which each stack's layers go, and what numbers of them add with numbers of the other
        stack's."""
        base, kept = self.base, KeptOutputs(self.model, self.valid, self.loss)  # before anything is skipped

        @cache
        def rise(gone: frozenset[Layer]) -> float:
            with skipped(self.model, by_stack(gone)):
                return text_loss(self.model, self.valid, self.loss) - base

        def rise_of(stack: str, gone: Sequence[int]) -> float:
            return rise(frozenset((stack, n) for n in gone))

        orders: dict[str, list[int]] = {}
        staying = by_stack(layer for layer in self.layers if not self.may_go(layer))
        for stack, left in by_stack(layer for layer in self.layers if self.may_go(layer)).items():
            with kept.before(stack, 0):  # where one stays in any case, all others may go
                keep = int(stack not in staying)
                gone = orders[stack] = cheapest_first(left, partial(rise_of, stack), keep)
            self.report(f"{stack}: layers go in the order {', '.join(map(str, gone)) or 'of none'}")
        dropped = list[DropRecord]()
        for each in itertools.product(*(measured_numbers(len(gone)) for gone in orders.values())):
            first = zip(orders.items(), each, strict=True)
            together = frozenset((stack, n) for (stack, gone), count in first for n in gone[:count])
            dropped.append(DropRecord(gone=list(each), rise=rise(together)))
        return orders, dropped

    # ---------------------------------------------------------------- the knapsack

    def choices(self, layer: Layer, fixed: Mapping[str, int]) -> list[tuple[tuple[int, ...], float]]:
        """All widths that a layer's sites may have together, and what they add to the loss. fixed: kinds
        whose heads are as many in every layer."""
        sites = self.sites_of(layer)
        widths = [
            [min(fixed[site.kind], site.heads)] if site.kind in fixed else self.options[site]
            for site in sites
        ]
        return [
            (each, sum(self.between(site, width) for site, width in zip(sites, each, strict=True)))
            for each in itertools.product(*widths)
        ]

    def sites_of(self, layer: Layer) -> list[HeadSite]:
        return [site for site in self.layers[layer].values() if site in self.steps]

    def cost_of(self, layer: Layer, widths: Sequence[int]) -> float:
        """What the layer costs, where the table fills no attention up beyond it."""
        own = {kind: site.heads for kind, site in self.layers[layer].items()}
        own |= {site.kind: width for site, width in zip(self.sites_of(layer), widths, strict=True)}
        return self.table.layer(layer, own, [own])

    def fixed_heads(self) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
        """Every way to give the kinds of each padded part one number of heads: those numbers, and kind -> its
        own; one empty way without such parts."""
        most: dict[tuple[str, ...], int] = {}
        for part in self.table.parts:
            heads = [site.heads for site in self.sites if site.kind in part.kinds]
            if part.padded and heads:
                most[part.kinds] = max(heads)
        numbers = (range(CROSS in kinds, count + 1) for kinds, count in most.items())
        for chosen in itertools.product(*numbers):
            yield chosen, {kind: n for kinds, n in zip(most, chosen, strict=True) for kind in kinds}

    def candidates(self, budget: float) -> list[Plan]:
        """The SHAPES_LOOKED_AT plans of least summed loss for a budget, best first, whose loss as a whole is
        not known: the best for each number of heads that padded attentions may have, for all layers that may
        be gone, and for each output layer; none where nothing meets it."""
        if self.even:
            return self.even_candidates(budget)
        plans = self.best_of(found := self.shapes(budget))
        if not all(map(self.reads_source, (plan.subnet for plan in plans))):
            found += self.shapes(budget, reading=True)
            plans = [plan for plan in self.best_of(found, len(found)) if self.reads_source(plan.subnet)]
        return plans[:SHAPES_LOOKED_AT]

    def of_each_point(self, budget: float) -> dict[Point, Shape]:
        """Numbers of layers and of heads -> the shape of least summed loss with so many, best first; of those
        that read the source. A model of 12 + 12 layers and 16 heads has tens of thousands, so none is made a
        plan here, but where no number of heads says that it reads the source."""
        best = dict[Point, Shape]()
        for reading in (False, True):
            for shape in sorted(self.shapes(budget, reading=reading), key=itemgetter(0)):
                total, _, heads, parts = shape
                point = tuple(count for _, count, _ in parts), heads
                if point in best or not math.isfinite(total):
                    continue
                if heads or self.reads_source(self.plan_with(shape).subnet):
                    best[point] = shape
            if best:
                break
        return best

    def shapes(self, budget: float, *, reading: bool = False) -> list[Shape]:
        """The shape of least summed loss for each number of heads of padded attentions, all layers that may
        be gone, and each output layer, with the room that it leaves of a budget; none where that is used up.
        reading: the decoder's layer that goes last keeps a head of cross-attention."""
        rooms = [budget - self.table.rest - output.cost for output in self.outputs]
        if (most := max(rooms)) <= 0:
            return []
        found, numbers = list[Shape](), by_stack(self.layers)
        kinds = {
            stack: sorted({site.kind for site in self.sites if site.stack == stack}) for stack in numbers
        }
        known = dict[Any, StackShapes]()
        for heads, fixed in self.fixed_heads():
            stacks = list[StackShapes]()
            for stack in numbers:
                key = stack, *(fixed.get(kind) for kind in kinds[stack])
                if key not in known:
                    known[key] = self.shapes_of(stack, fixed, most, reading=reading)
                stacks.append(known[key])
            for dropped, added in self.drops:
                left = [len(own) - len(dropped & {(stack, n) for n in own}) for stack, own in numbers.items()]
                losses = [each.knapsack.losses[count] for each, count in zip(stacks, left, strict=True)]
                for place, room in enumerate(rooms):
                    if room >= 0:
                        loss, shares = split_between(losses, stacks[0].knapsack.shares_of(room))
                        total = loss + added + self.outputs[place].loss
                        found.append((total, place, heads, [*zip(stacks, left, shares, strict=True)]))
        return found

    def best_of(self, shapes: Iterable[Shape], count: int = SHAPES_LOOKED_AT) -> list[Plan]:
        """So many different ones of least summed loss, best first."""
        plans: dict[Any, Plan] = {}
        for shape in sorted(shapes, key=itemgetter(0)):
            if len(plans) == count or not math.isfinite(shape[0]):
                break
            plan = self.plan_with(shape)
            plans.setdefault((key_of(plan.subnet), plan.output), plan)
        return [*plans.values()]

    def plan_with(self, shape: Shape) -> Plan:
        _, place, _, parts = shape
        picked = {layer: widths for each, *at in parts for layer, widths in each.picked(*at).items()}
        return self.plan_of(self.subnet_of(picked), place)

    def shapes_of(
        self, stack: str, fixed: Mapping[str, int], largest: float, *, reading: bool
    ) -> StackShapes:
        """Of one stack, whose layers that may go come last, the first to go at the end. fixed: as in
        `choices`; reading: as in `shapes`."""
        layers = [layer for layer in self.layers if layer[0] == stack]
        layers.sort(key=lambda layer: sum(layer in dropped for dropped, _ in self.drops))
        widths, options = list[list[tuple[int, ...]]](), list[list[Option]]()
        for layer in layers:
            choices, sites = self.choices(layer, fixed), self.sites_of(layer)
            if reading and any(site.kind == CROSS for site in sites):
                reading = False  # of the layers after it
                choices = [
                    (each, loss)
                    for each, loss in choices
                    if all(n for site, n in zip(sites, each, strict=True) if site.kind == CROSS)
                ]
            every = [Option(self.cost_of(layer, each), loss) for each, loss in choices]
            places = undominated(every)
            widths.append([choices[place][0] for place in places])
            options.append([every[place] for place in places])
        return StackShapes(layers, widths, Knapsack(options, largest))

    def plan_of(self, subnet: Subnet, output: int = 0) -> Plan:
        return Plan(subnet, self.table.cost(subnet) + self.outputs[output].cost, output=output)

    def even_candidates(self, budget: float) -> list[Plan]:
        """`candidates` where all sites of a kind have one width: a knapsack over the kinds."""
        found = list[tuple[float, Subnet]]()
        least = {site: steps.least for site, steps in self.steps.items()}
        for dropped, added in self.drops:
            gone = by_stack(dropped)
            floor = self.table.cost(self.subnet(least, gone))
            kinds: dict[str, list[HeadSite]] = {}
            for site in self.sites:
                if (site.stack, site.layer) not in dropped:
                    kinds.setdefault(site.kind, []).append(site)
            widths = [
                [dict.fromkeys(sites, n) for n in self.options[sites[0]] if n or kind != CROSS]
                for kind, sites in kinds.items()
            ]
            parts = [
                [
                    Option(
                        self.table.cost(self.subnet(least | each, gone)) - floor,
                        sum(self.between(*width) for width in each.items()),
                    )
                    for each in own
                ]
                for own in widths
            ]
            if (most := budget - floor) <= 0 or (answer := Knapsack(parts, most).at(most)) is None:
                continue
            picked = dict[HeadSite, int]()
            for own, place in zip(widths, answer[0], strict=True):
                picked |= own[place]
            found.append((answer[1] + added, self.subnet(picked, gone)))
        return [self.plan_of(subnet) for _, subnet in sorted(found, key=itemgetter(0))[:SHAPES_LOOKED_AT]]

    def plan(self, budget: float) -> Plan | None:
        """The best of `candidates`, or of `refitted_candidates`, by the loss of the whole; None where nothing
        meets the budget."""
        candidates = self.candidates(budget) if self.refitted is None else self.refitted_candidates(budget)
        if not candidates:
            return None
        best = min(candidates, key=self.whole_rise)
        return replace(best, loss=self.whole_rise(best) / self.units)

    def whole_rise(self, plan: Plan) -> float:
        """What a plan adds to the loss of the text, its output layer included."""
        return self.rise(plan.subnet) + self.outputs[plan.output].loss

    def refitted_candidates(self, budget: float) -> list[Plan]:
        """The `candidates`, and the best of a walk by what plans lose once refitted: from the best plan of
        each number of layers, by one layer of a stack or one head of a padded part, while that loses less.

        What layers add that are dropped from a whole model, and losses of widths summed, say little of small
        models: of a base of 6 + 6 layers at 3.3 times the speed, 4 + 3 had the least sum, and 6 + 2 less loss
        once both were refitted, and once both were trained; of 6 + 2 another number of heads (LOG.md)."""
        shapes = self.of_each_point(budget)
        plans, left, rises = dict[Point, Plan](), set[Point](), dict[Point, float]()

        def look_at(points: Iterable[Point]) -> None:
            for point in points:
                if point not in plans:
                    plans[point] = self.plan_with(shapes[point])
                    rises[point] = self.whole_rise(plans[point])

        look_at(self.walk_from(shapes, budget))
        while rises and (here := min(rises, key=rises.__getitem__)) not in left:
            left.add(here)
            look_at(point for point in shapes if steps_between(point, here) == 1)
        self.points[budget] = sorted(rises, key=rises.__getitem__)[:POINTS_KEPT]
        return self.candidates(budget) + [plans[point] for point in self.points[budget]]

    def walk_from(self, shapes: Mapping[Point, Shape], budget: float) -> list[Point]:
        """The best plan of each number of layers; near a budget that was walked for, what is nearest to the
        best points of that. shapes: the best first."""
        near = min(self.points, key=lambda other: abs(other - budget), default=None)
        if shapes and near and max(near, budget) <= AS_DEEP * min(near, budget):
            return [min(shapes, key=partial(steps_between, point)) for point in self.points[near]]
        first = dict[tuple[int, ...], Point]()
        for point in shapes:
            first.setdefault(point[0], point)
        if len(first) > POINTS_KEPT:
            self.report(f"refitting the best shape of each of {len(first)} numbers of layers")
        return [*first.values()][:DEPTHS_LOOKED_AT]

    def too_small(self, budget: float) -> str:
        """Why nothing meets a budget."""
        least, full = self.least_cost, self.table.cost(self.whole)
        return (
            f"nothing costs {budget / full:.2%} of the {self.table.unit} of the whole model: without all "
            f"that may close it costs {least / full:.2%}, {full / least:.2f} times less, not less"
        )

    @property
    def least_cost(self) -> float:
        """Of `smallest`, with the cheapest output layer."""
        return self.table.cost(self.smallest()) + min(output.cost for output in self.outputs)

    def smallest(self) -> Subnet:
        """All closed that may close, but for the last head that reads the source; where layers may go, one is
        left in each stack."""
        widths = {site: steps.least for site, steps in self.steps.items()}
        if not self.reads_source(found := self.without_empty(widths)):
            last = [site for site in self.sites if site.kind == CROSS][-1:]
            if self.even:  # as wide in all layers that are left
                last = [site for site in self.sites if site.kind == CROSS and found.has(site)]
            found = self.without_empty(widths | {site: self.steps[site].above(0) for site in last})
        return found

    def reads_source(self, subnet: Subnet) -> bool:
        """Whether a head of cross-attention is left, where the model has any. A decoder without one writes
        the same for every source, and no training brings that back; its loss, a few nats more than that of
        other small plans, does not say so."""
        cross = [site for site in self.whole.units if site.kind == CROSS and site.heads]
        return not cross or any(subnet.has(site) and open_units(subnet)[site] for site in cross)

    def subnet_of(self, picked: Mapping[Layer, Sequence[int]]) -> Subnet:
        """picked: of each layer that stays, the widths of its sites."""
        widths = {
            site: width
            for layer, own in picked.items()
            for site, width in zip(self.sites_of(layer), own, strict=True)
        }
        return self.subnet(widths, by_stack(layer for layer in self.layers if layer not in picked))

    def subnet(self, widths: Mapping[HeadSite, int], gone: Mapping[str, Sequence[int]]) -> Subnet:
        """The units of highest order stay, so many at each of these sites; other sites stay whole, and these
        layers go."""
        closed = HeadMap({site: ~highest(self.order[site], width) for site, width in widths.items()})
        return self.whole.without(closed, gone)

    # ---------------------------------------------------------------- the loss of a whole subnet

    def widths(self, subnet: Subnet) -> dict[HeadSite, int]:
        """The numbers at the sites of this order in the layers that stay."""
        return {site: n for site, n in open_units(subnet).items() if site in self.steps and subnet.has(site)}

    def rise(self, subnet: Subnet) -> float:
        """What the whole subnet adds to the loss of the text, as `refitted` says; else each output projection
        is refitted by itself."""
        key = key_of(subnet)
        if key not in self.seen:
            base = self.base  # before anything is closed
            if self.refitted is not None:
                self.seen[key] = self.refitted(subnet) - base
                return self.seen[key]
            widths = self.widths(subnet)
            with (
                self.levels.placed({site: n for site, n in widths.items() if n < site.heads}),
                skipped(self.model, subnet.dropped),
            ):
                self.seen[key] = text_loss(self.model, self.valid, self.loss) - base
        return self.seen[key]

    def groups(self, subnet: Subnet) -> Iterator[list[HeadSite]]:
        """The sites that change together: those of a part that is padded to one number of heads, or is even,
        else each alone. None of dropped layers."""
        for part in self.table.parts:
            own = [site for site in self.sites if site.kind in part.kinds and subnet.has(site)]
            for group in [own] if part.padded or self.even else [[site] for site in own]:
                if group:
                    yield group

    # ---------------------------------------------------------------- one by one

    def lowest_first(self, budget: float) -> Plan | None:
        """What is left when what scores lowest closes first: heads, and blocks of neurons by their sum;
        heads of attentions that are padded close together, by the mean of theirs. A layer whose sub-layers
        are all closed is dropped. Where nothing more can close, as one head of all padded cross-attentions
        stays, the layer of the lowest sum is dropped. None where the budget is never met."""
        scores = {site: self.order[site].double().sort().values.tolist() for site in self.sites}
        subnet, least = self.whole, {site: self.least(site) for site in self.sites}
        while (cost := self.table.cost(subnet)) > budget:
            found = next(self.next_lower(subnet, cost, scores, least), None)
            if found is None:
                return None
            subnet = found
        return Plan(subnet, cost)

    def next_lower(
        self,
        subnet: Subnet,
        cost: float,
        scores: Mapping[HeadSite, list[float]],
        least: Mapping[HeadSite, int],
    ) -> Iterator[Subnet]:
        """Subnets with a little less open, that whose units score lowest first; then those without a layer.
        Of most steps the first alone is made: with thousands of neurons the others would take minutes."""
        units = list[tuple[float, dict[HeadSite, int]]]()
        widths = self.widths(subnet)
        for sites in self.groups(subnet):
            fewer = {
                site: self.steps[site].below(widths[site])
                for site in sites
                if widths[site] > self.steps[site].least
            }
            if fewer:
                closing = [scores[s][s.heads - widths[s] : s.heads - n] for s, n in fewer.items()]
                units.append((fmean(map(sum, closing)), fewer))
        for _, fewer in sorted(units, key=itemgetter(0)):
            if self.reads_source(lower := self.without_empty({**least, **widths, **fewer})):
                yield lower
        layers = list[tuple[float, list[HeadSite]]]()
        for layer in self.layers:
            sites = [site for site in self.sites_of(layer) if site in widths]
            layers.append((sum(sum(scores[s][s.heads - widths[s] :]) for s in sites), sites))
        for _, sites in sorted(layers, key=itemgetter(0)):
            lower = self.without_empty({**least, **widths} | {site: least[site] for site in sites})
            if self.table.cost(lower) < cost and self.reads_source(lower):
                yield lower

    def without_empty(self, widths: Mapping[HeadSite, int]) -> Subnet:
        """The subnet of these widths, its layers dropped that have no more open than they must, but for the
        last of a stack."""
        dropped: set[Layer] = set()
        for (stack, number), sites in self.layers.items():
            last = sum(own == stack and (own, n) not in dropped for own, n in self.layers) == 1
            opened = any(widths.get(site, site.heads) > self.least(site) for site in sites.values())
            if self.may_go((stack, number)) and not last and not opened:
                dropped.add((stack, number))
        return self.subnet(widths, by_stack(dropped))

    def filled(self, subnet: Subnet, budget: float) -> Subnet:
        """Widened, a step at a time, where that adds least to the loss, as far as the budget allows."""
        while True:
            widths, steps = self.widths(subnet), list[tuple[float, int, Subnet]]()
            for place, sites in enumerate(self.groups(subnet)):
                wider = {site: self.steps[site].above(widths[site]) for site in sites}
                larger = self.subnet(widths | wider, subnet.dropped)
                units = sum(n - widths[site] for site, n in wider.items())
                if units and self.table.cost(larger) <= budget:
                    rises = (self.between(s, n) - self.between(s, widths[s]) for s, n in wider.items())
                    steps.append((sum(rises) / units, place, larger))
            if not steps:
                return subnet
            subnet = min(steps, key=itemgetter(0, 1))[2]

    def between(self, site: HeadSite, width: int) -> float:
        """What a width adds to the loss, on the line between the two that were measured."""
        if (site, width) in self.rises:
            return self.rises[site, width]
        known = self.steps[site].measured
        place = min(max(1, bisect_left(known, width)), len(known) - 1)
        low, high = known[place - 1], known[place]
        share = (width - low) / (high - low)
        return (1 - share) * self.rises[site, low] + share * self.rises[site, high]

    def may_go(self, layer: Layer) -> bool:
        stack, _ = layer
        return stack in self.dropping and stack in self.whole.layers and layer not in self.staying

    def least(self, site: HeadSite) -> int:
        return self.steps[site].least if site in self.steps else 0
