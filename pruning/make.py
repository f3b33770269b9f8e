"""The only way in which a smaller model is made: what stays is chosen, what closes is closed and the
weights around it are refitted, it leaves the model, the rest trains on, and all of it is measured and
written.

    row = make(lab, base, Recipe("importance", Units(heads=24), refit="out+ffn+v", epochs=3))

A recipe on a base is a run of its own, which names its base. Its rows are the base, the base trained as
long where the recipe trains, and its own model; a finished run is found again by what it was made of."""

import time
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from headgates.analysis.significance import Scored, score
from headgates.configs.closing import RESAMPLE
from headgates.configs.recipe import PIECES, SHORTLIST, UNPRUNED, Recipe, Speed, Units
from headgates.configs.registry import imported
from headgates.data.ranks import all_sum, first, share
from headgates.gates import FFN_KINDS, WIDTH, Subnet
from headgates.gates.depth import skipped
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.lab.distilled_text import teacher_of
from headgates.lab.lab import Lab, Run
from headgates.lightning_modules.stage_record import StageResult
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.choice import Choice
from headgates.pruning.choosers import check_chooser, how, score_named, score_of
from headgates.pruning.closing import calibration_of, check_closing, close_heads, closed_heads
from headgates.pruning.endless import endless_share
from headgates.pruning.planning import Planning
from headgates.pruning.shortlisting import shortlisted
from headgates.pruning.trimming import trimmed
from headgates.records.fingerprint import recipe_fingerprint
from headgates.records.folder import RunFolder, recipe_of
from headgates.records.row import BASE, CONTINUED, PRUNED, ResultRow, other_words
from headgates.records.source import BATCH_TOKENS

GAP = 0.3  # points of the metric that making gates exact may change before the user is warned
SAME = 1e-4  # largest relative difference of the loss that removal may make


@dataclass(frozen=True, eq=False)
class Row:
    """What came of a recipe on a base, or one of the bases: its run, its row of result.json and its scored
    outputs of the test set. recipe: None of the base itself."""

    recipe: Recipe | None
    run: RunFolder
    result: ResultRow
    scored: Scored

    @property
    def title(self) -> str:
        return self.result.label if self.recipe is None else self.recipe.title


def make(lab: Lab, base: RunFolder, recipe: Recipe) -> Row:
    """The row of a recipe, made now unless it is there. Raises ValueError where the recipe cannot be made
    of this base."""
    check_chooser("--by", recipe.choose)
    if recipe.choose == "scratch" and lab.task.pretrained:
        raise ValueError(
            "scratch: a model of this task starts from a trained encoder, so there is none from random "
            "weights; leave it out"
        )
    own = CONTINUED if recipe.choose == UNPRUNED else PRUNED
    as_long = recipe.trained_as_long if recipe.epochs and own == PRUNED else None
    # what another process makes is waited for only where it is compared with
    elsewhere = as_long is not None and lab.is_made_elsewhere(recipe_key(lab, base, as_long))
    continued = make(lab, base, as_long).run if as_long and not elsewhere else None
    name = "-".join([lab.text.prefix, *recipe.file_words])
    key = recipe_key(lab, base, recipe)
    with lab.run(name, own, key, on=base, recipe=recipe) as run:
        if not run.done:
            predictor = run.load()
            check_closing(recipe.closing, predictor.model)
            if own == PRUNED and not elsewhere:
                run.compare_with(continued, predictor)
            elif own == CONTINUED:
                run.begin_rows(predictor)
            if recipe.choose == PIECES:
                run.finish(own, trimmed=trimmed(run, recipe))
            elif recipe.choose == SHORTLIST:
                run.finish(own, shortlisted=shortlisted(run, recipe))
            else:
                made(run, recipe, own, as_long if elsewhere else None)
    return row_of(run.folder, lab)


def recipe_key(lab: Lab, base: RunFolder, recipe: Recipe) -> dict[str, Any]:
    """What the recipe's run is found by."""
    sampled = None
    name = score_of(recipe)
    score = None if name is None else score_named(name)
    if score is not None and score.sample is not None:
        wanted, corpus = lab.settings.sentences or score.sample, lab.text.corpus
        sampled = corpus.sampled(wanted, of=lab.settings.text.train_sentences)
    trains = recipe.epochs or recipe.learns
    return recipe_fingerprint(
        lab.settings,
        recipe,
        lab.text.corpus,
        lab.precision if trains else "32",
        base_hash=str(base.run_hash()),
        test=lab.text.test,
        sampled=sampled,
        code="" if score is None else score.code,
        teacher=teacher_of(lab.settings, base).run_hash() if lab.settings.distill.teacher else None,
    )


def row_of(run: RunFolder, lab: Lab, system: str | None = None) -> Row:
    """A system of a finished run, its own unless named."""
    own = first(run.own_system)
    if (system or own) == own and own in (BASE, CONTINUED):  # which are the same for all test lines
        folder, result = lab.own_row(run)
    else:
        folder, result = run, first(lambda: run.row_of(system or own))  # which it may just have written
    sources, references = lab.text.test
    scored = score(folder.outputs(result.system), references, lab.task.metrics, sources)
    recipe = result.recipe if system is None else None
    if result.system == CONTINUED:
        made_by = recipe_of(run.config())
        assert made_by is not None  # only recipes have such a row
        recipe = made_by.trained_as_long
    return Row(recipe, run, result, scored)


# ---------------------------------------------------------------- the steps


def made(run: Run, recipe: Recipe, own: str, waits_for: Recipe | None) -> None:
    """Choose, close and refit, remove, train, measure, write. waits_for: what the rows begin with once it is
    made."""
    choice: Choice = imported(how(recipe.choose))(run, recipe)
    if recipe.closing == RESAMPLE:
        measured_closed(run, recipe, choice)
        run.finish(own)
        return
    refit = 0.0
    if choice.subnet is not None:
        tell_neurons(recipe, choice.subnet)
        refit = shrink(run, recipe, choice, choice.subnet)
    predictor, result = choice.predictor, choice.result
    if epochs := recipe.epochs if result is None else choice.epochs_left:
        stage = run.settings.finetuning(epochs)
        name = CONTINUED if recipe.choose == UNPRUNED else "training"
        trained = run.train_on(name, predictor, stage, prefix="training-", seeded_as=seed_key(recipe))
        result = trained if result is None else result.then(trained)
    weights = run.folder / "best.pt"
    run.task.save_model(weights, predictor)
    if waits_for:
        run.compare_with(make(run.lab, run.base, waits_for).run, predictor)
    measure(run, recipe, own, choice, result, refit)
    run.finish(own)
    for file in (*run.folder.path.glob("*-best.pt"), *run.folder.path.glob("*-last.pt")):
        file.unlink(missing_ok=True)  # of its stages: only now, as a resumed run reads them


def tell_neurons(recipe: Recipe, subnet: Subnet) -> None:
    """Say how many neurons stay where that is not the number that was asked for."""
    if not isinstance(recipe.budget, Units) or (asked := recipe.budget.neurons) is None:
        return
    stay = subnet.units.select([kind for kind in recipe.kinds if kind in FFN_KINDS]).count()
    if stay != asked:
        say(
            f"{stay} neurons stay, and not {asked}: each layer keeps a multiple of {WIDTH}, and of a number "
            "between two the larger"
        )


def shrink(run: Run, recipe: Recipe, choice: Choice, subnet: Subnet) -> float:
    """Close what closes, refit the weights around it, and remove it. Returns the seconds of the refit. Raises
    AssertionError where removal changed what the model says."""
    model = choice.predictor.model
    closing = subnet.closing.select(recipe.kinds)  # a refit leaves other kinds as they are
    if subnet == Subnet.of(model):  # nothing closes, and a refit would fit each weight to what it is
        return 0.0
    source = run.text.source(run.base, choice.predictor)
    calibration, begin = calibration_of(run, recipe, source), time.perf_counter()
    if recipe.refit and calibration.targets == "own":
        _ = calibration.data  # translated by the model with all its layers
    with skipped(model, subnet.dropped):
        close_heads(model, closing, recipe.closing, calibration)
        seconds = time.perf_counter() - begin
        before = loss_of(run, model, 1)
    subnet.remove(model)
    after = loss_of(run, model, 1)
    assert abs(after - before) <= SAME * max(1.0, abs(before)), f"removal moved the loss: {before}, {after}"
    return seconds if recipe.refit else 0.0


def seed_key(recipe: Recipe) -> str:
    """What the seed of the stage that trains on comes from."""
    if recipe.choose == UNPRUNED:
        return CONTINUED
    if recipe.learns:
        return "gates"
    return ":".join(filter(None, [recipe.choose, recipe.refit, "trained"]))


def measure(
    run: Run, recipe: Recipe, own: str, choice: Choice, result: StageResult | None, refit: float
) -> None:
    """Add the row of the smaller model: metrics on the test set, loss on validation, sizes and seconds;
    speeds where a plan made it."""
    predictor, facts = choice.predictor, choice.facts
    row = run.evaluation.add(
        own,
        run.folder / "best.pt",
        predictor,
        None,
        recipe=recipe,
        stage=None if result is None else result.to_json(),
        compute=run.compute_of(result, choice.seconds, refit),
        loss=loss_of(run, predictor.model) if result is None else result.losses[result.best_epoch],
    )
    if run.evaluation.reference is None:
        run.evaluation.choose_reference()
    if own == PRUNED:
        outputs, before = map(run.folder.outputs, (own, BASE))
        row.endless = endless_share(predictor, run.text.test[0], outputs, before)
    if choice.subnet is not None:
        row.subnet = choice.subnet.to_json()
    if "drop" in facts:
        row.others["drop"], row.path = facts["drop"], facts["path"]
    if "soft" in facts:
        warn_of_gap(run, row, facts["soft"])
    if "speed" in facts:
        assert isinstance(predictor, Translator)  # or there was no plan
        speeds = Planning(run, run.text.source(run.base), recipe).speeds(predictor)
        found = speeds[facts["speed"]["runtime"]]
        row.speed = facts["speed"] | found | {"runtimes": speeds}
        predicted = f", predicted {facts['speed']['predicted']:.2f}"
        predicted += other_words(facts["speed"].get("predicted_on_other_lines"))
        predicted *= isinstance(recipe.budget, Speed)
        say(f"{found['measured']['median']:.2f} times as fast by {facts['speed']['timed']}{predicted}")


def measured_closed(run: Run, recipe: Recipe, choice: Choice) -> None:
    """Add the row of a model whose closed heads stay in it, as their outputs are sampled anew at every
    pass."""
    source, subnet = run.text.source(run.base, choice.predictor), choice.subnet
    assert subnet is not None
    calibration = calibration_of(run, recipe, source)
    with closed_heads(source.model, subnet.closing, recipe.closing, calibration):
        stay = subnet.units.select(recipe.kinds)
        xi = stay.map(Tensor.float)  # who opens the run finds the heads closed, at zero
        row = run.evaluation.add(PRUNED, run.base / "best.pt", choice.predictor, stay, xi=xi, recipe=recipe)
    row.seconds = None  # closed heads save no time


def warn_of_gap(run: Run, row: ResultRow, outputs: list[str]) -> None:
    """Warn where making gates exactly 0 or 1 changed much. outputs: of before."""
    metric = run.task.metrics[0]
    soft = score(outputs, run.text.test[1], (metric,)).main
    if abs(soft - row.main.value) > GAP:
        say(
            f"warning: making the gates exactly 0 or 1 changed {metric.title} from {soft:.2f} to "
            f"{row.main.value:.2f}: gates are still between; give more --epochs or a larger --gates.lr"
        )


def loss_of(run: Run, model: Any, most: int = 0) -> float:
    """The task's loss on validation, without smoothing, in nats per unit (target token); of the first batches
    alone unless 0."""
    sums = torch.zeros(2, dtype=torch.float64)  # the loss, units
    device = next(model.parameters()).device
    batches = run.text.data(run.folder).batches("valid", BATCH_TOKENS)
    with evaluation_mode(model), torch.no_grad():
        for batch in share(islice(batches, most or None)):
            sums[0] += float(run.task.loss(model, batch.to(device)))
            sums[1] += batch.target_tokens
    loss, units = all_sum(sums).tolist()
    return float(loss / units)
