"""Plans for a run: the tables that a plan is made from, kept in the base's folder, the plans, and how fast
models are.

    speed/costs-RUNTIME-bBATCH-kBEAM-tTHREADS.json   a CostTable of milliseconds, with the machine's name
    speed/levels-KINDS[-bf16]-sSEED.json             what some widths of each layer add to the loss
    speed/lists-RUNTIME-bBATCH-kBEAM-tTHREADS.json   what shortlists take off the time, and lose

In the run's own folder, choice.json is what was chosen for a speed or a size.
"""

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor

from headgates.analysis.levels import text_loss
from headgates.analysis.significance import Scored, score, score_changed
from headgates.configs.closing import RESAMPLE
from headgates.configs.recipe import NO_SHORTLIST, PLAN, UNITS, MaxDrop, Recipe, Share, Speed
from headgates.data.ranks import cpu_threads, first
from headgates.data.text import ParallelText
from headgates.gates import ALL_KINDS, KINDS, HeadMap, Limit, Subnet, find_sites
from headgates.gates.depth import STACKS, skipped
from headgates.gates.sites import device_of
from headgates.lab.lab import Run
from headgates.lab.measure import load_average
from headgates.models.multiply_adds import decoding
from headgates.models.progress import minutes, say
from headgates.models.translator import Translator
from headgates.planning.cost_table import MEASURED_SHARES, CostTable, cost_table, parameters
from headgates.planning.planner import (
    DEPTHS_LOOKED_AT,
    SHAPES_LOOKED_AT,
    WALKED,
    LevelsRecord,
    Plan,
    Planner,
)
from headgates.planning.reached import CLOSE, reached
from headgates.planning.widths import MEASURED_NUMBERS, Widths, measured_numbers
from headgates.pruning.choice import Choice
from headgates.pruning.choosers import ORDER
from headgates.pruning.closing import (
    WITHOUT_TRAINING,
    Calibration,
    calibration_of,
    close_heads,
    closed_heads,
)
from headgates.pruning.max_drop import measured_drop, validated
from headgates.pruning.output_layers import (
    LIST_SIZES,
    LISTS_TIMED,
    LONGEST_LIST,
    UNCHANGED,
    ListCosts,
    OutputLayers,
    list_costs,
)
from headgates.pruning.runtime_cost import (
    RUNTIMES,
    TIMED,
    RuntimeCost,
    TimedLines,
    TimedPair,
    TimedText,
    check_runtime,
    compared,
    how_searched,
    runtimes_of,
    timed_text,
)
from headgates.pruning.scores import head_scores, ranked, request_of
from headgates.pruning.shortlisting import LinkedPieces, mean_rows
from headgates.records.fingerprint import trains
from headgates.records.folder import plain
from headgates.records.provenance import device_name
from headgates.records.row import Interval, other_words
from headgates.records.source import BATCH_TOKENS, Source

SPEEDS = (1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)  # of a search for the fastest
PLANS = 2  # of them that are usually enough
FAR = 1.1  # times faster than asked from which on it is said
LONG = 10.0  # seconds of which a word is said
BUSY = 0.5  # processes more than there are cores from which on it is said
MANY = 1.2  # pieces for each of the base's: who writes so many has lost what ends a sentence
VALID = 300  # lines of validation text that a plan's losses are of, and for larger models so many that
VALID_PASS, FEWEST = 2e10, 30  # lines times parameters are no more, but at least a few
REFIT_PASSES = 17  # over as many lines that a refit takes
RUNTIME_LABELS = {
    "torch": "own search",
    "bf16": "own search in bf16",
    "ct2": "CTranslate2",
    "int8": "CTranslate2 int8",
}
T = TypeVar("T")


class ChoiceRecord(TypedDict):
    """What a Choice of parts says; subnet: `Subnet.to_json`."""

    subnet: dict[str, Any]
    facts: dict[str, Any]
    seconds: float


class Planning:
    """What one recipe needs of the base for a speed or a size. Raises ValueError at a model that is none of
    ours, or that the runtime cannot run."""

    def __init__(self, run: Run, source: Source, recipe: Recipe):
        self.run, self.source, self.recipe, budget = run, source, recipe, recipe.budget
        self.translator: Translator = source.translator
        assert isinstance(budget, Speed | Share | MaxDrop)
        timed = Speed(1.0) if isinstance(budget, Share) else budget
        self.runtime, self.batch = timed.runtime, timed.batch
        if self.runtime == "auto":  # int8 of CTranslate2, or torch where that cannot run the model
            self.runtime = runtimes_of(source.model)[-1]
        check_runtime(self.runtime, source.model)
        self.beam = run.settings.search.beam
        self.budget = budget.of if isinstance(budget, Share) else "speedup"
        self.threads = cpu_threads(run.settings.threads)
        self.calibration = calibration_of(run, recipe, source)
        self.on_other_lines = dict[float, Interval]()  # cost of a plan timed on what it writes -> speeds

    @cached_property
    def text(self) -> TimedText:
        lines = self.source.lines("valid")[0]
        return first(
            lambda: timed_text(
                self.translator,
                lines,
                batch=self.batch,
                beam=self.beam,
                runtime=self.runtime,
                threads=self.threads,
            )
        )

    @cached_property
    def valid(self) -> list[Any]:
        """The validation pairs that losses are of, in batches."""
        return valid_batches(self.source, self.valid_lines)

    @property
    def valid_lines(self) -> int:
        return max(FEWEST, min(VALID, int(VALID_PASS / parameters(self.source.model))))

    @cached_property
    def bf16(self) -> bool:
        """Whether losses are computed in bf16: where what is planned is trained in it afterwards. At d=256
        they took half of the time, and were wrong by 0.0002 nats."""
        return trains(self.recipe) and self.run.lab.precision == "bf16"

    def loss(self, model: Any, batch: Any) -> Tensor:
        """The task's, by which widths, layers and plans are compared."""
        with torch.autocast(device_of(model).type, torch.bfloat16, enabled=self.bf16):
            return self.source.task.loss(model, batch)

    @cached_property
    def few(self) -> Calibration:
        """Pairs for refits whose outputs are about as long, and whose losses come in the same order, as after
        a refit on all of the calibration text, which takes longer."""
        few = replace(self.calibration, sentences=min(self.calibration.sentences or TIMED, TIMED))
        if few.targets == "own":
            _ = few.data  # translated now, by the model with all its layers
        return few

    @property
    def refit(self) -> str | None:
        """The refit that numbers of layers are compared after; None where all layers stay, or nothing is
        refitted."""
        refit = self.recipe.refit if {*self.recipe.kinds} == {*ALL_KINDS} else None
        return refit and WITHOUT_TRAINING.get(refit, refit)

    def refitted_loss(self, subnet: Subnet) -> float:
        """Of the validation lines, of what stays once it is refitted on few pairs."""
        model, closing = self.source.model, subnet.closing.select(self.recipe.kinds)
        few = self.few  # before any layer is skipped
        assert self.refit is not None
        with skipped(model, subnet.dropped), closed_heads(model, closing, self.refit, few):
            return text_loss(model, self.valid, self.loss)

    @cached_property
    def timer(self) -> RuntimeCost:
        return RuntimeCost(self.translator, self.text, self.runtime, threads=self.threads)

    @property
    def search(self) -> str:
        """How models are timed, in words."""
        return f"{RUNTIME_LABELS[self.runtime]}, {how_searched(self.batch, self.beam, self.threads)}"

    def order(self, score: str) -> HeadMap:
        """Of what may close, the lowest first."""
        kinds = self.recipe.kinds
        request = replace(request_of(self.run, self.recipe, self.source), kinds=kinds)
        return ranked(score, head_scores(score, request)).select(kinds)

    # ---------------------------------------------------------------- tables

    @cached_property
    def table(self) -> CostTable:
        """Costs in the budget's unit; times are measured once on a machine and kept."""
        unit, model = UNITS[self.budget], self.source.model
        if self.budget != "speedup":
            measure = parameters if self.budget == "params" else self.multiply_adds
            return cost_table(model, measure, unit=unit)
        padded = RUNTIMES[self.runtime] is not None
        name, key = self.table_file

        def make() -> CostTable:
            say(f"timing layers of other widths: {self.search}")
            whole = self.timer.whole
            return cost_table(model, self.timer, unit=unit, padded=padded, whole=whole, report=say)

        table = self.kept(name, CostTable, key, make)
        known = {stack: len(own) for stack, own in table.layers.items()}
        if missing := {each.stack for each in find_sites(model) if each.layer >= known.get(each.stack, 0)}:
            raise self.source.folder.foreign(name, f"it lacks the cost of a layer of the {min(missing)}")
        return table

    @cached_property
    def table_file(self) -> tuple[str, dict[str, Any]]:
        """The name of the file of measured times, and what it is made of."""
        return f"speed/costs-{self.runtime}-b{self.batch}-k{self.beam}-t{self.threads}.json", {
            "layers": "each",  # a stack's bare layer had one number
            "weights": self.source.weights,
            "device": device_name(),
            "versions": self.run.lab.provenance(self.recipe.seed)["versions"],
            "batches": [[len(each.sources), each.written] for each in self.text.batches],
        }

    def levels_file(self, kinds: Iterable[str]) -> tuple[str, dict[str, Any]]:
        """The name of the file of the losses of all widths of these kinds, and what it is made of."""
        settings, together = self.run.settings, {*self.recipe.kinds} == {*ALL_KINDS}
        word = ("heads" if {*kinds} <= {*KINDS} else "all") + "-bf16" * self.bf16
        return f"speed/levels-{word}-s{self.recipe.seed}.json", {
            "weights": self.source.weights,
            **({"precision": "bf16"} if self.bf16 else {}),
            "kinds": sorted({*kinds}),
            "widths": MEASURED_NUMBERS,
            "layers": "together" if together else None,
            "calibration": [settings.calibration_sentences, settings.calibration_targets],
            "order": settings.sentences,  # the training pairs that it reads, 0 for its own number
            "text": self.source.corpus.digest(),
            "lines": self.valid_lines,
        }

    def is_kept(self, name: str, cache_key: dict[str, Any]) -> bool:
        """Whether the base's folder has this table, of this machine and these settings."""
        folder = self.source.folder
        return first(
            lambda: (folder / name).is_file() and folder.read_json(name).get("cache_key") == plain(cache_key)
        )

    def kept(self, name: str, shape: type[T], cache_key: dict[str, Any], make: Callable[[], T]) -> T:
        """A table of the base's folder; made again where it is of another machine or of other settings."""
        folder, fresh = self.source.folder, False
        if first((folder / name).is_file) and folder.read_json(name).get("cache_key") != plain(cache_key):
            say(f"{name}: of another machine, or other settings or weights; made again")
            fresh = True
        return folder.cached(name, shape, cache_key, make, fresh=fresh)

    @cached_property
    def links(self) -> LinkedPieces:
        return LinkedPieces(self.run, self.source, self.recipe.seed)

    @cached_property
    def outputs(self) -> OutputLayers:
        """The output layers that a plan may have. A plan for a speed has the shortlist that was asked for;
        else it has the base's output layer or, where that has no shortlist yet, one with a list."""
        asked = getattr(self.recipe.budget, "shortlist", None)
        costs = UNCHANGED
        if self.looks_at_lists:
            name, key = self.lists_file

            def make() -> ListCosts:
                say(f"timing shortlists of the output layer: {self.search}")
                names = [asked] if asked else map(str, LIST_SIZES)
                share = 1.0 if asked else LONGEST_LIST
                return list_costs(self.links, names, self.timer, self.valid, share=share)

            found = (make() if asked else self.kept(name, ListCosts, key, make))["lists"]
            costs = found if asked else {**UNCHANGED, **found}
        return OutputLayers(self.translator, self.links, costs)

    @property
    def looks_at_lists(self) -> bool:
        asked = getattr(self.recipe.budget, "shortlist", None)
        if self.budget != "speedup" or self.recipe.choose != PLAN or asked == NO_SHORTLIST:
            return False
        whole = {*self.recipe.kinds} == {*ALL_KINDS}  # as layers may go
        return bool(asked) or (whole and self.translator.shortlist is None)

    @property
    def lists_file(self) -> tuple[str, dict[str, Any]]:
        """The name of the file of the costs of shortlists, and what it is made of."""
        name, whole = self.table_file
        key = {each: value for each, value in whole.items() if each != "layers"}
        return name.replace("costs", "lists"), key | {
            "sizes": LIST_SIZES,
            "lines": self.valid_lines,
            "seed": self.recipe.seed,
            "text": self.source.corpus.digest(),
            "calibration": self.run.settings.calibration_targets,
        }

    def multiply_adds(self, model: Any) -> float:
        """Of the timed text."""
        total = 0
        for batch in self.text.batches:
            longest = 1 + max(map(len, batch.sources))
            total += sum(decoding(model, source=longest, steps=batch.written, beam=self.text.beam).values())
        return total

    def planner(self, order: HeadMap) -> Planner:
        """With the losses of all widths, which are kept too. Layers may go where all of them may close."""
        source, valid = self.source, self.valid
        name, key = self.levels_file(order.kinds)
        return Planner(
            source.model,
            order,
            self.table,
            [*self.calibration],
            valid,
            loss=self.loss,
            units=sum(batch.target_tokens for batch in valid),
            dropping=STACKS if {*self.recipe.kinds} == {*ALL_KINDS} else (),
            outputs=self.outputs.options(self.full),
            refitted=self.refitted_loss if self.refit else None,
            kept=lambda make: self.kept(name, LevelsRecord, key, make),
            report=say,
        )

    def limit(self, model: Any) -> Limit:
        """The budget as a limit on the gates of a model."""
        return self.table.limit(model, self.target, self.recipe.kinds)

    @cached_property
    def full(self) -> float:
        """What the base costs."""
        return self.table.cost(Subnet.of(self.source.model))

    @property
    def target(self) -> float:
        """What the smaller model may cost."""
        budget = self.recipe.budget
        assert isinstance(budget, Speed | Share)
        return self.full / budget.factor if isinstance(budget, Speed) else self.full * budget.share

    # ---------------------------------------------------------------- plans

    def tell_time(self, losses: bool) -> None:
        """Say about how long the choice takes, by one timing and one pass of the loss, unless it is short;
        what is on disk already takes none. losses: whether widths and layers are looked at by their
        loss."""
        model, sites = self.source.model, find_sites(self.source.model, self.recipe.kinds)
        layers, budget = [len(getattr(model, stack).layers) for stack in STACKS], self.recipe.budget
        plans = PLANS * (len(budget.speeds or SPEEDS) if isinstance(budget, MaxDrop) else 1)
        passes = timings = refits = seconds = 0.0
        if losses:
            refits = plans * (self.budget == "speedup" and bool(self.recipe.refit) and not self.recipe.epochs)
            looks = plans * (SHAPES_LOOKED_AT + WALKED * (self.refit is not None))
            looks += min(DEPTHS_LOOKED_AT, math.prod(layers)) * (self.refit is not None)
            # layers before a width are kept; each layer goes beside those that are gone, and all with all
            if not self.is_kept(*self.levels_file({site.kind for site in sites})):
                passes += sum(len(Widths.of(site, each).measured) for site, each in sites.items()) / 2
                passes += sum(3 * n for n in layers) + math.prod(len(measured_numbers(n - 1)) for n in layers)
            passes += looks
            refits += looks * (self.refit is not None)
            for _ in range(1 + self.bf16):  # the first pass in bf16 prepares products
                begin = time.perf_counter()
                text_loss(model, self.valid, self.loss)
            small = 1 / budget.factor if isinstance(budget, Speed) else getattr(budget, "share", 1.0)
            of_refits = refits * REFIT_PASSES * small * len(self.few.text) / self.valid_lines
            seconds = (passes + of_refits) * (time.perf_counter() - begin)
        if self.budget == "speedup":
            kinds = len({site.kind for site in sites})
            timings = plans + (0 if self.is_kept(*self.table_file) else 2 + len(MEASURED_SHARES) * kinds)
            if losses and self.looks_at_lists and not self.is_kept(*self.lists_file):
                timings += LISTS_TIMED
            seconds += timings * self.timer.seconds_each
        load, cores = load_average() or 0.0, os.cpu_count() or 1
        if self.budget == "speedup" and load > cores + BUSY:
            say(
                f"warning: the load of this machine is {load:g} on {cores} cores; timings beside so much "
                "other work can be wrong by a tenth, and the plan with them"
            )
        if seconds > LONG:
            parts = {"timings": timings, "losses": passes, "refits": refits}
            said = ", ".join(f"{count:.0f} {what}" for what, count in parts.items() if count)
            say(f"planning takes about {minutes(seconds)}: {said}")

    def searched(self) -> Choice:
        """The plan of least loss for the budget; of a largest drop the fastest that loses no more. Raises
        ValueError at a budget that cannot be met."""
        self.tell_time(losses=True)
        budget, planner = self.recipe.budget, self.planner(self.order(ORDER))
        if not isinstance(budget, MaxDrop):
            return self.chosen(self.planned(planner, self.target))
        speeds, reference = budget.speeds or SPEEDS, validated(self.run, self.source.predictor)
        found: Choice | None = None
        for speed in speeds:
            if self.full / speed < planner.least_cost:
                break  # and no faster one either
            plan = self.planned(planner, self.full / speed)
            if not self.accepted(plan, reference, budget.points, speed):
                break
            found = self.chosen(plan)
        if found is None:
            raise ValueError(
                f"--max-drop {budget.points:g}: even {speeds[0]:g} times as fast loses more on validation; "
                "allow more, or give smaller speeds with --speedup"
            )
        return found

    def once(self, choose: Callable[[], Choice]) -> Choice:
        """What is chosen, kept in the run's folder: a resumed run goes on with the model that it trained,
        where timings of now would choose another one."""

        def make() -> ChoiceRecord:
            begin, found = time.perf_counter(), choose()
            assert found.subnet is not None
            seconds = time.perf_counter() - begin
            return {"subnet": found.subnet.to_json(), "facts": found.facts, "seconds": seconds}

        folder = self.run.folder
        record = folder.cached("choice.json", ChoiceRecord, {"run": folder.run_hash()}, make)
        if not isinstance(speed := record["facts"].get("speed"), dict):
            raise folder.foreign("choice.json", "it has no speed")
        listed = speed.get("shortlist")
        predictor = self.translator
        if listed:
            predictor = predictor.with_shortlist(self.links.shortlist(listed["by"]))
        try:
            subnet = Subnet.from_json(record["subnet"])
        except ValueError as error:
            raise folder.foreign("choice.json", str(error)) from None
        return Choice(predictor, subnet, record["seconds"], facts=record["facts"])

    def planned(self, planner: Planner, budget: float) -> Plan:
        """The plan for what a model may cost, timed where the budget is a speed."""
        if budget < planner.least_cost:  # before minutes of losses are measured
            raise ValueError(planner.too_small(budget))

        return self.reached(planner, planner.plan, budget)

    def lowest_first(self, order: HeadMap) -> Choice:
        """The model in which the lowest of an order closed first, until it costs no more than the budget.
        Raises ValueError where that is not met."""
        planner = self.planner(order)
        return self.chosen(self.reached(planner, planner.lowest_first, self.target))

    def reached(self, planner: Planner, plan_for: Callable[[float], Plan | None], target: float) -> Plan:
        """The plan for a target, or, timed itself where the budget is a speed, one that is as fast. Raises
        ValueError where no plan meets the target."""
        if self.budget != "speedup":
            if (plan := plan_for(target)) is None:
                raise ValueError(planner.too_small(target))
            say(plan.subnet.words)
            return plan

        speeds, endless = list[float](), 0.0  # what the largest plan costs whose outputs do not end

        def plan_within(budget: float) -> Plan | None:
            return None if budget <= endless else plan_for(budget)

        def timed(plan: Plan) -> float:
            nonlocal endless
            speed, interval, pieces = self.speed_of(plan)
            speeds.append(speed)
            # a table that was kept may be of an hour when the machine was faster or slower: ratios hold
            cost = self.full / speed
            if interval is not None:
                self.on_other_lines[cost] = interval
            words = plan.subnet.words + self.outputs.words(plan.output)
            rise = "" if plan.loss is None else f", loss {plan.loss:+.2f}"
            say(f"{speed:.2f} times as fast{other_words(interval)}{rise}: {words}")
            if pieces > MANY:
                endless = max(endless, plan.cost)
                say(
                    f"it writes {pieces:.1f} times as many pieces as the base, so no smaller model is tried: "
                    "--epochs trains it"
                )
            return cost

        found = reached(plan_within, timed, target)
        if found is None:
            raise ValueError(planner.too_small(target))
        asked = self.full / target
        slower = max((each for each in speeds if each < asked), default=1.0)
        faster = min((each for each in speeds if each >= asked), default=asked)
        if max(speeds) < asked * CLOSE[0]:
            advice = "ask for less" + ", or give --epochs" * (not self.recipe.epochs)
            say(f"no plan is {asked:.2f} times as fast: the fastest found is {max(speeds):.2f}; {advice}")
        if faster > FAR * asked:
            say(f"no plan was found between {slower:.2f} and {faster:.2f} times as fast: its steps are large")
        return found

    def speed_of(self, plan: Plan) -> tuple[float, Interval | None, float]:
        """How many times as fast a plan's model is, that on other lines, and the pieces that it writes for
        each of the base's. One that trains afterwards will write what the base writes; any other is closed
        and refitted as the recipe says, on fewer lines, and timed on what it writes itself."""
        base, subnet, closing = self.outputs.translator(plan.output), plan.subnet, self.recipe.closing
        if self.recipe.epochs or closing == RESAMPLE:
            # a list of the base's own is timed as that of the base beside it
            shortlist = None if base is self.translator else base.shortlist
            with subnet.removed(base.model):
                return self.timer.whole / self.timer(base.model, shortlist), None, 1.0
        model = copy.deepcopy(base.model)
        if subnet != Subnet.of(model):
            with skipped(model, subnet.dropped):
                close_heads(model, subnet.closing.select(self.recipe.kinds), closing, self.few)
            subnet.remove(model)
        lines = self.source.lines("valid", min(TIMED, self.valid_lines))[0]
        _, speed = self.beside_base(base.with_model(model), self.runtime, lines)
        return speed["measured"]["median"], speed["other_lines"], speed["tokens"]

    def beside_base(self, smaller: Translator, runtime: str, lines: Sequence[str]) -> TimedPair:
        """`compared` with the base, on these lines; by one opening alone where the runtime is not that which
        was asked for, as own search of a test set takes as long as the rest of a small plan."""
        ids, once = self.translator.source_vocab.encode(list(lines)), runtime != self.runtime
        text = TimedLines(ids, self.batch, self.beam, once)
        return compared(smaller, self.translator, runtime, self.threads, text)

    def chosen(self, plan: Plan) -> Choice:
        about = self.about(self.full / plan.cost) | {"loss": plan.loss}
        if plan.cost in self.on_other_lines:
            about["predicted_on_other_lines"] = self.on_other_lines[plan.cost]
        if (predictor := self.outputs.translator(plan.output)) is not self.translator:
            batches = [batch.sources for batch in self.text.batches]
            rows, by = mean_rows(predictor, batches), self.outputs.names[plan.output]
            about["shortlist"] = {"by": by, "rows": rows, "of": self.source.model.target_vocab}
        return Choice(predictor, plan.subnet, facts={"speed": about})

    def about(self, predicted: float) -> dict[str, Any]:
        """What is said of a model beside what it measures. predicted: how many times less it costs."""
        budget = self.recipe.budget
        asked = budget.factor if isinstance(budget, Speed) else getattr(budget, "share", None)
        return {
            "budget": self.budget,
            "unit": UNITS[self.budget],
            "asked": asked or predicted,
            "predicted": predicted,
            "timed": self.search,
            "runtime": self.runtime,
        }

    def accepted(self, plan: Plan, reference: Scored, limit: float, speed: float) -> bool:
        """Whether a plan's model loses at most so many points on validation, by `analysis.knee`."""
        model, subnet = self.source.model, plan.subnet
        closing = subnet.closing.select(self.recipe.kinds)
        with (
            skipped(model, subnet.dropped),
            closed_heads(model, closing, self.recipe.closing, self.calibration),
        ):
            scored = validated(self.run, self.outputs.translator(plan.output))
        name = f"{speed:g} times as fast"
        return measured_drop(self.run, name, subnet.units.count(), scored, reference, limit).acceptable(limit)

    def speeds(self, smaller: Translator) -> dict[str, dict[str, Any]]:
        """Runtime -> `compared` with the base, and the metrics of both, on the test lines; of the runtimes
        that can run the model."""
        lines, references = self.run.text.test
        metrics, found = self.source.task.metrics, dict[str, dict[str, Any]]()
        first: tuple[Scored, list[str]] | None = None  # most lines of all the others are among these
        for runtime in dict.fromkeys([*runtimes_of(smaller.model), self.runtime]):
            outputs, speed = self.beside_base(smaller, runtime, lines)
            values = []
            for texts in map(self.translator.target_vocab.decode, outputs):
                first = first or (score(texts, references, metrics, lines), texts)
                values.append(score_changed(*first, dict(enumerate(texts)), references, lines).values)
            found[runtime] = {**speed, **values[0], "unpruned": values[1]}
        return found


def valid_batches(source: Source, count: int) -> list[Any]:
    """The first validation pairs in batches."""
    empty, (lines, references) = ParallelText([], []), source.lines("valid", count)
    corpus = replace(source.corpus, train=empty, valid=ParallelText(lines, references), test=empty)
    return [*source.data(corpus).batches("valid", BATCH_TOKENS)]
