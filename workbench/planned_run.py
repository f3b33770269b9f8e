"""The run of `fit.py --speedup X`: heads, neurons and layers are planned for a speed on the base, closed and
removed, weights refitted, and what is left is trained on; its speed is measured before training and after it,
as a trained model may write longer or shorter lines."""

import time
from dataclasses import replace
from typing import Any

from headgates.configs.prune import PruneConfig
from headgates.configs.systems import PLANNED as ROWS
from headgates.gates import remove
from headgates.models.depth import drop_layers, skipped
from headgates.models.progress import say
from headgates.tasks.base import Predictor
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.fingerprint import PLANNED
from headgates.workbench.folder import RunFolder
from headgates.workbench.lab import Lab, Run
from headgates.workbench.measure import interval_text
from headgates.workbench.planned import Plans
from headgates.workbench.points import Asked
from headgates.workbench.stages import compute_of
from headgates.workbench.unpruned_model import UnprunedModel

CLOSING = "out+ffn+v"


def planned_run(lab: Lab, base: RunFolder, continued: RunFolder | None) -> RunFolder:
    """Rows `plan`, refitted without training, and `plan-trained`, trained on from it as the base is.

    Raises ValueError at a speed that no shape reaches, or a model that the runtime cannot run."""
    config = lab.config
    words = [lab.text.prefix, PLANNED, f"{config.speedup:g}x", f"s{config.seed}"]
    with lab.run("-".join(words), gate=PLANNED, on=base) as run:
        if not run.done:
            make_planned(run, continued)
    return run.folder


def make_planned(run: Run, continued: RunFolder | None) -> None:
    config, before = run.config, run.load()
    evaluation = run.compare_with(continued, before)
    begin = time.perf_counter()
    settings = PruneConfig(
        source=str(run.base.path),
        speedup=[float(config.speedup or 0)],
        runtime=config.runtime,
        beam=config.search.beam,
        threads=config.threads,
        seed=config.seed,
    )
    source = run.text.source(run.base)
    source.corpus = run.text.corpus
    unpruned = UnprunedModel.of(source, settings)
    with Plans(unpruned, settings, Calibration(unpruned, seed=config.seed)) as plans:
        ask = next(plans.asked())
        choice, begin = time.perf_counter() - begin, time.perf_counter()
        predictor = made(run, ask)
        refit, weights = time.perf_counter() - begin, run.folder / "plan.pt"
        run.task.save_model(weights, predictor)
        untrained, trained = ROWS

        def add(system: str, place: Any, stage: Any, compute: dict[str, float]) -> None:
            row = evaluation.add(system, place, predictor, None, stage=stage, compute=compute)
            _, speed = plans.timer.compared(predictor.model, unpruned.test[0], settings.batch)
            row.others["speed"] = {**(ask.planned or {}), **(speed or {})}
            found = row.others["speed"]
            say(
                f"{system}: {interval_text(found['measured'])} times as fast by {plans.search}, predicted "
                f"{found['predicted']:.2f}"
            )

        add(untrained, weights, None, compute_of(run, None, choice, refit))
        result = run.train_on(trained, predictor)
        add(trained, run.folder / result.weights, result.to_json(), compute_of(run, result, choice, refit))
    run.finish(trained)


def made(run: Run, ask: Asked) -> Predictor:
    """The base without what is asked for, its weights refitted."""
    predictor = run.load()
    start = replace(run.text.source(run.base), predictor=predictor)
    start.corpus = run.text.corpus
    calibration = Calibration(start, seed=run.config.seed)
    model = predictor.model
    with skipped(model, ask.layers):
        close_heads(model, ask.closed, CLOSING, calibration)
    remove(model, ask.closed)
    drop_layers(model, ask.layers)
    return predictor
