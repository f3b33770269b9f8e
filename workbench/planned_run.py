"""The run of `fit.py --speedup X`: models that are to be so many times as fast as the base, each made in one
of the ways of configs/speed_methods.py, trained on, and measured: how well they translate, and how fast they
are by every runtime that can run them. A trained model may write longer or shorter lines, so both are
measured before training and after it."""

import time
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl

from headgates.configs.heads_per_kind import kinds_named
from headgates.configs.methods import METHODS
from headgates.configs.prune import PruneConfig
from headgates.configs.speed_methods import AS_LONG, LEARNED, SPEED_METHODS, SpeedMethod, speed_rows
from headgates.configs.systems import file_name
from headgates.gates import ALL_KINDS, FFN_KINDS, WIDTH, HeadMap, TargetBudget, attach, detach, remove
from headgates.gates.depth import drop_layers, skipped
from headgates.lightning_modules.gating import Gating
from headgates.models.progress import say
from headgates.tasks.base import Predictor
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.fingerprint import PLANNED
from headgates.workbench.folder import RunFolder
from headgates.workbench.lab import Lab, Run
from headgates.workbench.measure import interval_text
from headgates.workbench.planned import Plans
from headgates.workbench.points import Asked
from headgates.workbench.shape import Shape
from headgates.workbench.smaller_model import largest_model
from headgates.workbench.stages import as_many_batches, compute_of
from headgates.workbench.unpruned_model import UnprunedModel

CLOSING = "out+ffn+v"


def planned_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """The rows of `--systems` that are models for a speed; the run's own is the last.

    Raises ValueError at a speed that no shape reaches, or a model that the runtime cannot run."""
    config = lab.config
    words = [lab.text.prefix, PLANNED, f"{config.speedup:g}x", f"s{config.seed}"]
    with lab.run("-".join(words), gate=PLANNED, on=base) as run:
        if not run.done:
            ModelsForSpeed(run).make(continued)
    return run.folder


class ModelsForSpeed:
    """The models of one run."""

    def __init__(self, run: Run):
        self.run, self.config = run, run.config
        self.source = run.text.source(run.base)
        self.source.corpus = run.text.corpus  # read already
        self.settings = PruneConfig(
            source=str(run.base.path),
            speedup=[float(run.config.speedup or 0)],
            runtime=run.config.runtime,
            beam=run.config.search.beam,
            threads=run.config.threads,
            seed=run.config.seed,
            test_sentences=run.config.test_sentences,
            valid_sentences=len(run.text.corpus.valid),
        )

    def make(self, continued: RunFolder | None) -> None:
        self.evaluation = self.run.compare_with(continued, self.run.load())
        unpruned = UnprunedModel.of(self.source, self.settings)
        with Plans(unpruned, self.settings, Calibration(unpruned, seed=self.config.seed)) as self.plans:
            for name, rows in speed_rows(self.config.systems).items():
                method = SPEED_METHODS[name]
                if method.prunes:
                    self.add_pruned(name, method, rows)
                elif name == "uniform":
                    self.add_uniform(name)
                else:
                    self.add_scratch(name)
        self.run.finish(self.evaluation.rows[-1].system)

    # ---------------------------------------------------------------- made from the base

    def add_pruned(self, name: str, method: SpeedMethod, rows: list[str]) -> None:
        begin = time.perf_counter()
        ask = self.ask(name, method)
        choice, begin = time.perf_counter() - begin, time.perf_counter()
        predictor = self.closed(ask)
        refit, weights = time.perf_counter() - begin, self.run.folder / f"{name}.pt"
        self.run.task.save_model(weights, predictor)
        for row in rows:
            result = None
            if row != name:
                result = self.run.train_on(row, predictor, prefix=f"{file_name(row)}-")
                weights = self.run.folder / result.weights
                (self.run.folder / f"{file_name(row)}-last.pt").unlink(missing_ok=True)
            self.add(row, weights, predictor, ask, result, compute_of(self.run, result, choice, refit))

    def ask(self, name: str, method: SpeedMethod) -> Asked:
        """What a method closes."""
        if method.searched:
            return next(self.plans.asked(kinds_named([method.kinds])))
        if method.order == LEARNED:
            return self.plans.lowest_first(self.learned(name))
        return self.plans.lowest_first(self.plans.order(str(method.order), ALL_KINDS))

    def closed(self, ask: Asked) -> Predictor:
        """The base without what is asked for, its weights refitted."""
        predictor = self.run.load()
        start = replace(self.source, predictor=predictor)
        calibration = Calibration(start, seed=self.config.seed)
        with skipped(predictor.model, ask.layers):
            close_heads(predictor.model, ask.closed, CLOSING, calibration)
        return without(predictor, ask)

    def learned(self, name: str) -> HeadMap:
        """How far open gates are that were trained on frozen weights, while what is open in expectation came
        to cost what the speed allows: log(1 + exp(log_alpha)), which is at least 0."""
        method, gates, config = METHODS["l0-target"], self.config.gates, self.config
        predictor, table = self.run.load(), self.plans.costs()
        model = predictor.model
        bank = attach(model, gate=method.gate, kinds=ALL_KINDS, multiple=WIDTH, **method.gate_options(gates))
        limit = table.limit(model, table.cost(Shape.of(model)) / float(config.speedup or 1))
        budget = TargetBudget({"": limit}, gates.lambda_warmup)
        stage = replace(config.finetuning, epochs=gates.choose_epochs, average=0.0)
        model.requires_grad_(False)
        bank.requires_grad_(True)
        gating = Gating(replace(gates, settle=0.0), budget, epochs=stage.epochs)
        self.run.train_on(f"{name}: choice", predictor, stage, prefix=f"{name}-choice-", gating=gating)
        for file in ("best.pt", "last.pt"):
            (self.run.folder / f"{name}-choice-{file}").unlink(missing_ok=True)
        opened = bank.open_prob().map(lambda p: -(1 - p.double()).clamp_min(1e-300).log())
        detach(model)
        return shares_of_blocks(opened)

    # ---------------------------------------------------------------- from random weights

    def add_scratch(self, name: str) -> None:
        """The shape of the plan."""
        ask = next(self.plans.asked(ALL_KINDS))
        self.add_new(name, without(self.new(), ask), ask, epochs=AS_LONG * self.config.finetune.epochs)

    def add_uniform(self, name: str) -> None:
        """The largest model with fewer decoder layers or a smaller width that is as fast, trained as the
        base was, on the text of the others."""
        config, plans = self.config, self.plans
        whole = plans.timer(plans.unpruned.model)
        model, cost = largest_model(
            config.model,
            lambda model: plans.timer(self.new(model).model),
            whole / float(config.speedup or 1),
        )
        say(f"{name}: {model.encoder_layers} + {model.decoder_layers} layers of width {model.d_model}")
        ask = Asked(
            "uniform",
            HeadMap({}),
            {},
            planned=plans.about(whole / cost, float(config.speedup or 1)),
        )
        self.add_new(name, self.new(model), ask, epochs=config.train.epochs)

    def new(self, model: Any = None) -> Predictor:
        pl.seed_everything(self.config.seed, verbose=False)
        config = self.config if model is None else replace(self.config, model=model)
        return self.run.task.new_predictor(self.run.base.path, config)

    def add_new(self, name: str, predictor: Predictor, ask: Asked, *, epochs: int) -> None:
        stage = replace(as_many_batches(self.run.base, self.run.lab.machine.ranks), epochs=epochs)
        result = self.run.train(name, predictor, stage, prefix=f"{name}-", distilled=True)
        (self.run.folder / f"{name}-last.pt").unlink(missing_ok=True)
        self.add(
            name, self.run.folder / result.weights, predictor, ask, result, compute_of(self.run, result, 0.0)
        )

    # ---------------------------------------------------------------- measured

    def add(
        self, row: str, weights: Any, predictor: Predictor, ask: Asked, result: Any, compute: dict[str, float]
    ) -> None:
        stage = None if result is None else result.to_json()
        added = self.evaluation.add(row, weights, predictor, None, stage=stage, compute=compute)
        speeds = self.plans.speeds(predictor.model)
        added.others["speed"] = {**(ask.planned or {}), **speeds[self.plans.runtime], "runtimes": speeds}
        found = added.others["speed"]
        say(
            f"{row}: {interval_text(found['measured'])} times as fast by {self.plans.search}, predicted "
            f"{found['predicted']:.2f}"
        )


def shares_of_blocks(opened: HeadMap) -> HeadMap:
    """How far heads and neurons are open, as the order in which the lowest close: neurons close in blocks, by
    the sum of their scores, and a block is open as far as its neurons are on average."""
    return HeadMap({site: row / WIDTH if site.kind in FFN_KINDS else row for site, row in opened.items()})


def without(predictor: Predictor, ask: Asked) -> Predictor:
    remove(predictor.model, ask.closed)
    drop_layers(predictor.model, ask.layers)
    return predictor
