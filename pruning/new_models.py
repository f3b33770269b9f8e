"""Models from random weights beside pruned ones: what another choice would have found there (Voita et al.
2019, table 2), and the smaller model that people train in place of pruning."""

import time
from dataclasses import replace
from typing import Any, TypedDict

from headgates.configs.fields import to_dict
from headgates.configs.json_file import parsed
from headgates.configs.recipe import Recipe, Speed
from headgates.configs.registry import imported
from headgates.configs.settings import ModelConfig
from headgates.configs.stages import StageConfig
from headgates.lab.lab import Run
from headgates.lightning_modules.generators import seed_generators
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.choice import Choice
from headgates.pruning.choosers import how
from headgates.pruning.planning import Planning
from headgates.pruning.smaller_model import largest_model
from headgates.records.folder import RunFolder
from headgates.tasks.base import Predictor

AS_LONG = 2  # epochs from random weights for each of training on: a plan takes about as long as the training


class UniformRecord(TypedDict):
    """The sizes of a smaller model, what its row says beside, and the seconds of the choice."""

    model: dict[str, Any]
    facts: dict[str, Any]
    seconds: float


def same_shape(run: Run, recipe: Recipe) -> Choice:
    """What a plan leaves for a speed or a size, or learned gates for a number of heads, from random weights:
    trained as the base and then as long as the others; a plan's AS_LONG times as long as the others."""
    other = replace(recipe, choose="plan" if recipe.planned else "l0")
    choice = imported(how(other.choose))(run, other)
    assert choice.subnet is not None
    predictor = new_predictor(run)
    choice.subnet.remove(predictor.model)
    if isinstance(predictor, Translator) and isinstance(choice.predictor, Translator):
        predictor.shortlist = choice.predictor.shortlist
    schedule = as_many_batches(run.base, run.settings.ranks)
    if recipe.planned:
        schedule = replace(schedule, epochs=AS_LONG * recipe.epochs)
        result = run.train("plan-scratch", predictor, schedule, prefix="training-", distilled=True)
    else:
        run.train("scratch", predictor, schedule, prefix="base-", seeded_as="base")
        stage = run.settings.finetuning(recipe.epochs)
        result = run.train_on(
            "scratch, on", predictor, stage, prefix="scratch-", seeded_as="base-continued", whole=True
        )
    return Choice(predictor, None, choice.seconds, result, choice.facts)


def uniform(run: Run, recipe: Recipe) -> Choice:
    """The largest model with fewer decoder layers or a smaller width that is as fast, trained as the base
    was, on the text of the others. Its sizes are kept in the run's folder: a resumed run goes on with the
    model that it trained, where timings of now would choose another one."""
    settings, budget = run.settings, recipe.budget
    assert isinstance(budget, Speed)

    def make() -> UniformRecord:
        begin, planning = time.perf_counter(), Planning(run, run.text.source(run.base), recipe)
        whole = planning.timer.whole
        model, cost = largest_model(
            settings.model,
            lambda model: planning.timer(new_predictor(run, model).model),
            whole / budget.factor,
        )
        facts = {"speed": planning.about(whole / cost)}
        return {"model": to_dict(model), "facts": facts, "seconds": time.perf_counter() - begin}

    found = run.folder.cached("choice.json", UniformRecord, {"run": run.folder.run_hash()}, make)
    try:
        model = parsed(found["model"], ModelConfig)
    except ValueError as error:
        raise run.folder.foreign("choice.json", str(error)) from None
    say(f"uniform: {model.encoder_layers} + {model.decoder_layers} layers of width {model.d_model}")
    predictor = new_predictor(run, model)
    schedule = replace(as_many_batches(run.base, run.settings.ranks), epochs=settings.train.epochs)
    result = run.train("uniform", predictor, schedule, prefix="training-", distilled=True)
    return Choice(predictor, None, found["seconds"], result, found["facts"])


def new_predictor(run: Run, model: ModelConfig | None = None) -> Predictor:
    seed_generators(run.seed)
    settings = run.settings if model is None else replace(run.settings, model=model)
    return run.task.new_predictor(run.base.path, settings)


def as_many_batches(base: RunFolder, ranks: int) -> StageConfig:
    """How a base was trained, with as many batches a step as it had, by so many ranks."""
    settings: dict[str, Any] = base.config()
    schedule = StageConfig(**settings["train"])
    its_ranks = settings.get("devices", 1) * settings.get("num_nodes", 1)
    return replace(schedule, accumulate=max(1, schedule.accumulate * its_ranks // ranks))
