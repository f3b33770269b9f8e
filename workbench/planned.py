"""The models of `prune.py --speedup` (--params, --macs, --max-drop): the tables that a plan is made from,
kept in the run folder, the plans, and how fast the models are.

    speed/costs-RUNTIME-bBATCH-kBEAM-tTHREADS.json   a CostTable of milliseconds, with the machine's name
    speed/levels-KINDS-sSEED.json                    what each width of each layer adds to the loss
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from headgates.analysis.knee import drop
from headgates.analysis.significance import RESAMPLES, resample_counts, score
from headgates.configs.prune import PruneConfig
from headgates.data.parallel import ParallelText
from headgates.data.ranks import cpu_threads, first
from headgates.gates import ALL_KINDS, KINDS, HeadMap
from headgates.gates.depth import skipped
from headgates.models.multiply_adds import decoding
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.workbench.closing import Calibration, closed_heads
from headgates.workbench.cost_table import CostTable, cost_table
from headgates.workbench.curve import score_request
from headgates.workbench.folder import plain
from headgates.workbench.plan import Planned, Planner
from headgates.workbench.points import Asked
from headgates.workbench.provenance import device_name
from headgates.workbench.runtime_cost import (
    Lines,
    RuntimeCost,
    check_runtime,
    compared,
    default_runtime,
    runtimes_of,
    timed_text,
)
from headgates.workbench.scores import head_scores, ranked
from headgates.workbench.shape import shaped
from headgates.workbench.source import BATCH_TOKENS, Source
from headgates.workbench.unpruned_model import UnprunedModel

ORDER = "obs"  # within a layer the heads and neurons that it closes last stay
TIMINGS = 4  # plans that are timed for a speed
CLOSE = 0.97, 1.01  # what a plan may cost of what is asked for
VALID = 300  # lines of validation text that a plan's losses are of
LABELS = {"torch": "own search", "ct2": "CTranslate2", "int8": "CTranslate2 int8"}
UNITS = {"speedup": "milliseconds", "params": "parameters", "macs": "multiply-adds"}


class Plans:
    """All that one command asks of one model. Raises ValueError at a model that is none of ours, or that the
    runtime cannot run."""

    def __init__(self, unpruned: UnprunedModel, config: PruneConfig, calibration: Calibration):
        self.unpruned, self.config, self.calibration = unpruned, config, calibration
        self.translator: Translator = unpruned.translator
        model = unpruned.model
        self.runtime = default_runtime(model) if config.runtime == "auto" else config.runtime
        check_runtime(self.runtime, model)
        self.budget = next((name for name in UNITS if getattr(config, name)), "speedup")
        self.threads = cpu_threads(config.threads)
        self.stack = ExitStack()

    def __enter__(self) -> "Plans":
        self.text = timed_text(
            self.translator,
            self.unpruned.valid[0],
            batch=self.config.batch,
            beam=self.config.beam,
            runtime=self.runtime,
            threads=self.threads,
        )
        self.timer = self.stack.enter_context(
            RuntimeCost(self.translator, self.text, self.runtime, threads=self.threads)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @property
    def search(self) -> str:
        """How models are timed, in words."""
        config, threads = self.config, f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{LABELS[self.runtime]}, batch {config.batch}, beam {config.beam}, {threads}"

    # ---------------------------------------------------------------- tables

    def costs(self) -> CostTable:
        """The table of the budget's unit; times are measured once on a machine and kept."""
        unit, model = UNITS[self.budget], self.unpruned.model
        if unit == "parameters":
            return cost_table(model, parameters, unit=unit, padded=False)
        if unit == "multiply-adds":
            return cost_table(model, self.multiply_adds, unit=unit, padded=False)
        config, padded = self.config, self.runtime != "torch"
        name = f"speed/costs-{self.runtime}-b{config.batch}-k{config.beam}-t{self.threads}.json"
        key = {
            "weights": self.unpruned.weights,
            "device": device_name(),
            "versions": self.unpruned.facts["versions"],
            "batches": [[len(each.sources), each.written] for each in self.text.batches],
        }

        def make() -> dict[str, Any]:
            say(f"timing layers of other widths: {self.search}")
            return cost_table(model, self.timer, unit=unit, padded=padded, report=say).to_json()

        return CostTable.from_json(self.kept(name, key, make))

    def kept(
        self, name: str, cache_key: dict[str, Any], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """A table of the run folder; made again where it is of another machine or of other settings."""
        folder, fresh = self.unpruned.folder, self.config.fresh
        if not fresh and first((folder / name).is_file):
            stored = folder.read_json(name).get("cache_key")
            if stored != plain(cache_key):
                say(f"{name}: of another machine, or other settings or weights; made again")
                fresh = True
        return folder.cached(name, cache_key, make, fresh=fresh)

    def multiply_adds(self, model: Any) -> float:
        """Of the timed text."""
        total = 0
        for batch in self.text.batches:
            longest = 1 + max(map(len, batch.sources))
            total += sum(decoding(model, source=longest, steps=batch.written, beam=self.text.beam).values())
        return total

    def order(self, score: str, kinds: Sequence[str]) -> HeadMap:
        """The score of every head and neuron of these kinds."""
        request = replace(score_request(self.unpruned, self.config, self.config.seed), kinds=list(kinds))
        return ranked(score, head_scores(score, request)).select(kinds)

    def planner(self, order: HeadMap, *, whole_layers: bool) -> Planner:
        """With the losses of all widths, which are kept too."""
        unpruned, config = self.unpruned, self.config
        valid = valid_batches(unpruned, VALID)
        batches = [*self.calibration]
        kinds = "heads" if set(order.kinds) <= set(KINDS) else "all"
        key = {
            "weights": unpruned.weights,
            "kinds": sorted(order.kinds),
            "layers": "together" if whole_layers else None,
            "calibration": [config.calibration_sentences, config.calibration_targets],
            "text": unpruned.corpus.digest(),
        }
        return Planner(
            unpruned.model,
            order,
            batches,
            valid,
            loss=unpruned.task.loss,
            units=sum(batch.target_tokens for batch in valid),
            whole_layers=whole_layers,
            kept=lambda make: self.kept(f"speed/levels-{kinds}-s{config.seed}.json", key, make),
            report=say,
        )

    # ---------------------------------------------------------------- models

    def asked(self, kinds: Sequence[str] | None = None) -> Iterator[Asked]:
        """A model for each budget, the largest first; with --max-drop the fastest that loses no more. kinds:
        what may close, that of the configuration without. Raises ValueError at a budget that cannot be
        met."""
        config, table = self.config, self.costs()
        kinds = config.kinds if kinds is None else kinds
        planner = self.planner(self.order(ORDER, kinds), whole_layers={*kinds} == {*ALL_KINDS})
        full = table.cost(planner.whole)
        asked = sorted(getattr(config, self.budget) or config.speedups, reverse=self.budget != "speedup")
        budgets = [full / each if self.budget == "speedup" else full * each for each in asked]
        needed = budgets if getattr(config, self.budget) else budgets[:1]  # one, of speeds not the user's
        if min(needed) < table.cost(planner.smallest()):  # before minutes of losses are measured
            raise ValueError(planner.too_small(table, min(needed)))
        candidates = planner.candidates(table, budgets)
        for budget, shapes in zip(needed, candidates, strict=False):
            if not shapes:
                raise ValueError(planner.too_small(table, budget))

        def made() -> Iterator[Asked]:
            found: list[Asked] = []
            for number, budget, shapes in zip(asked, budgets, candidates, strict=True):
                if not shapes:
                    break  # and no faster one either
                first = planner.plan(shapes, table, budget, seed=config.seed)

                def again(budget: float) -> Planned | None:
                    (shapes,) = planner.candidates(table, [budget])
                    return planner.plan(shapes, table, budget, seed=config.seed) if shapes else None

                plan = self.reached(first, full, budget, again)
                ask = self.ask(planner, full, plan, number)
                if config.max_drop is None:
                    yield ask
                    continue
                if not self.acceptable(ask, config.max_drop):
                    break
                found.append(ask)
            if config.max_drop is not None:
                if not found:
                    raise ValueError(
                        f"--max-drop {config.max_drop:g}: even {asked[0]:g} times as fast loses more on "
                        "validation; allow more, or give smaller speeds with --speedup"
                    )
                yield found[-1]

        return made()

    def lowest_first(self, order: HeadMap) -> Asked:
        """The model of the first budget in which the lowest of an order closed first.
        Raises ValueError where it is not met."""
        table, planner = self.costs(), self.planner(order, whole_layers=True)
        number = getattr(self.config, self.budget)[0]
        full = table.cost(planner.whole)
        budget = full / number
        first = planner.lowest_first(table, budget)
        if first is None:
            raise ValueError(planner.too_small(table, budget))
        plan = self.reached(first, full, budget, lambda budget: planner.lowest_first(table, budget))
        return self.ask(planner, full, plan, number)

    def reached(
        self, plan: Planned, full: float, target: float, again: Callable[[float], Planned | None]
    ) -> Planned:
        """A plan that is as fast as the target where it is timed itself. What parts cost alone does not quite
        add up, so a plan that is slower is made again for less, and one that is much faster for more. full:
        what the unpruned model costs in the table. again: a plan for a budget, None where there is none. Of
        those that are fast enough, that of least loss; the fastest where none is."""
        if self.budget != "speedup":
            say(plan.shape.words)
            return plan
        tried, budget, (least, most) = dict[float, Planned](), target, (target * share for share in CLOSE)
        for _ in range(TIMINGS):
            # a table that was kept may be of an hour when the machine was faster or slower: ratios alone hold
            cost = full * self.timer(shaped(self.unpruned.model, plan.shape)) / self.timer.whole
            known = {each.shape.key for each in tried.values()}
            tried[budget] = replace(plan, cost=cost)
            say(f"{full / cost:.2f} times as fast: {plan.shape.words}")
            if least <= cost <= most or plan.shape.key in known:
                break
            budget = next_budget({budget: each.cost for budget, each in tried.items()}, target)
            if (next_one := again(budget)) is None:
                break
            plan = next_one
        enough = [each for each in tried.values() if each.cost <= most]
        if not enough:
            return min(tried.values(), key=lambda each: each.cost)
        return min(enough, key=lambda each: (each.loss or 0.0, -each.cost))

    def ask(self, planner: Planner, full: float, plan: Planned, number: float) -> Asked:
        """full: what the unpruned model costs."""
        planned = self.about(full / plan.cost, number) | {
            "loss": plan.loss,
            "summed_loss": plan.summed,
            "shape": plan.shape.to_json(),
        }
        return Asked("plan", planner.closed(plan.shape), plan.shape.dropped_by_stack, planned=planned)

    def about(self, predicted: float, number: float) -> dict[str, Any]:
        """What is said of a model beside what it measures. predicted: how many times less it costs."""
        return {
            "budget": self.budget,
            "unit": UNITS[self.budget],
            "asked": number,
            "predicted": predicted,
            "timed": self.search,
        }

    def acceptable(self, ask: Asked, limit: float) -> bool:
        """Whether a model loses at most so many points on validation, by `analysis.knee`."""
        unpruned, (lines, references) = self.unpruned, self.unpruned.valid
        task = unpruned.task
        before = score(task.outputs(unpruned.predictor, lines), references, task.metrics)
        with (
            skipped(unpruned.model, ask.layers),
            closed_heads(unpruned.model, ask.closed, self.config.closing, self.calibration),
        ):
            after = score(task.outputs(unpruned.predictor, lines), references, task.metrics)
        lost = drop(ask.closed.count(), after, before, resample_counts(len(lines), RESAMPLES))
        assert ask.planned is not None
        accepted = lost.acceptable(limit)
        say(
            f"{ask.planned['asked']:g} times as fast: {lost.mean:.2f} {task.metrics[0].title} lost on "
            f"validation (95% bound {lost.bound:.2f}), {'accepted' if accepted else 'too much'}"
        )
        return accepted

    def run(self, source: Source) -> tuple[list[str], dict[str, Any] | None]:
        """The outputs of the test lines by the runtime, and how many times as fast as the unpruned model they
        were made, in turns with it."""
        return self.timer.compared(source.model, self.unpruned.test[0], self.config.batch)

    def speeds(self, model: Any) -> dict[str, dict[str, Any]]:
        """Runtime -> `compared` with the unpruned model, and the metrics of both, on the test lines; of the
        runtimes that can run the model."""
        lines, references = self.unpruned.test
        config, found = self.config, dict[str, dict[str, Any]]()
        text = Lines(self.translator.source_vocab.encode(list(lines)), config.batch, config.beam)
        for runtime in runtimes_of(model):
            outputs, speed = compared(
                self.translator, model, self.unpruned.model, runtime, self.threads, text
            )
            ours, theirs = (
                score(self.translator.target_vocab.decode(ids), references, self.unpruned.task.metrics)
                for ids in outputs
            )
            found[runtime] = {**speed, **ours.values, "unpruned": theirs.values}
        return found


def parameters(model: Any) -> float:
    return float(sum(each.numel() for each in model.parameters()))


def next_budget(costs: Mapping[float, float], target: float) -> float:
    """The budget to plan for next: between the nearest two whose plans took more and less than the target,
    else the last one by what it missed. costs: budget -> what its plan took, the last one last."""
    slow = min((budget for budget, cost in costs.items() if cost > target), default=None)
    fast = max((budget for budget, cost in costs.items() if cost <= target), default=None)
    if slow is None or fast is None or fast >= slow:
        budget, cost = [*costs.items()][-1]
        return budget * target / cost
    return fast + (slow - fast) * (target - costs[fast]) / (costs[slow] - costs[fast])


def valid_batches(source: UnprunedModel, count: int) -> list[Any]:
    """The first validation pairs in batches."""
    empty, (lines, references) = ParallelText([], []), source.lines("valid", count)
    corpus = replace(source.corpus, train=empty, valid=ParallelText(lines, references), test=empty)
    return [*source.data(corpus).batches("valid", BATCH_TOKENS)]
