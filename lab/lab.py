"""The context around a run: its folder is claimed or found finished, stages are trained in it, rows are
added, and its result is written.

    with lab.run("toy-en-de-l0-0.01-s1", PRUNED, key, on=base, recipe=recipe) as run:
        if not run.done:
            run.compare_with(continued, predictor)
            result = run.train_on("gates", predictor, gating=gating)
            run.evaluation.add(PRUNED, weights, predictor)
            run.finish(PRUNED)

Every stage ends with its files in the folder, so a crash loses no finished stage, and `--resume` continues.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from headgates.configs.cli import config_hash
from headgates.configs.recipe import Recipe
from headgates.configs.settings import Settings
from headgates.configs.stages import StageConfig
from headgates.data.ranks import first, is_first
from headgates.lab.distilled_text import distilled_data, distilled_seconds, teacher_of
from headgates.lab.evaluation import (
    Evaluation,
    evaluated,
    evaluation_key,
    kept_evaluation,
    measure_again,
    measured_here,
    stage_of,
)
from headgates.lab.experiment_text import ExperimentText
from headgates.lab.tracker import make_tracker
from headgates.lightning_modules.distilling import Distilling
from headgates.lightning_modules.optimizers import freeze_decoder
from headgates.lightning_modules.precision import Precision, resolve_precision
from headgates.lightning_modules.stage_record import StageResult, load_best
from headgates.models.cpu_kernels import TRAINING_PRODUCTS, bound_caches, change_dropout
from headgates.models.progress import minutes, say
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name, provenance
from headgates.records.row import BASE, CONTINUED, ResultRow
from headgates.records.run_lock import RunLocks, abandon_run, claim_run
from headgates.records.source import best_device
from headgates.tasks.base import Predictor

if TYPE_CHECKING:
    from headgates.lightning_modules.stage_callback import Watcher

SALT = 262_072_178  # the stages base, base-continued and gates have 0, 1 and 2, as in recorded results


def stage_seed(seed: int, stage: str) -> int:
    """The seed of a stage: of its optimiser, batches and noise."""
    return seed * 10 + zlib.crc32(f"{SALT} {stage}".encode()) % 1000


class Lab:
    """What all runs of one command share: settings, text, machine and tracker."""

    def __init__(self, settings: Settings, text: ExperimentText | None = None, asked: Recipe | None = None):
        """text: that of the settings, where it has been read already. asked: the recipe that the command is
        for, None for a base; a tracker tells its run from others that are made on the way."""
        distill = settings.distill
        if distill.teacher and not (distill.weight or distill.sequences):
            raise ValueError(
                f"--distill.teacher {distill.teacher}: nothing is learned from it; give --distill.weight or "
                "--distill.sequences too"
            )
        bound_caches(TRAINING_PRODUCTS)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.settings, self.asked = settings, asked
        self.others: Sequence[Recipe] = ()  # that the command is for too
        self.repeated = set[str]()  # by --fresh, which once is enough for
        self.text = ExperimentText(settings) if text is None else text.with_settings(settings)
        self.task = self.text.task
        self.tracker = make_tracker(settings.logger, self.provenance(settings.seed))

    @cached_property
    def precision(self) -> Precision:
        """Of training; measured when it is first asked for."""
        return resolve_precision(self.settings, device_name(), say)

    def repeats(self, what: str) -> bool:
        """Whether --fresh was given, and this command has not repeated it yet. what: names it."""
        due = self.settings.fresh and what not in self.repeated
        self.repeated.add(what)
        return due

    def provenance(self, seed: int) -> dict[str, Any]:
        """What made a number; of a command that trains nothing, in fp32."""
        return provenance(device_name(), self.__dict__.get("precision", "32"), seed)

    @contextmanager
    def run(
        self,
        name: str,
        kind: str,
        key: Mapping[str, Any],
        *,
        on: RunFolder | None = None,
        recipe: Recipe | None = None,
    ) -> Iterator["Run"]:
        """The run that this key is of, found or begun. name: of its folder, unless the command asks for
        this run and names it. kind: BASE, CONTINUED or PRUNED. on: its base.

        A run that fails before anything was trained leaves no folder that would block the corrected
        command."""
        settings, asked = self.settings, recipe == self.asked
        seed = settings.seed if recipe is None else recipe.seed
        named = settings.name if asked and settings.name else name
        # a score of the user's own is a file that changes: each version has a run
        is_edited = recipe is not None and ":" in recipe.choose
        own = asked or (recipe is not None and (self.asked is None or recipe in self.others))
        fresh = own and self.repeats(config_hash(key))
        with RunLocks() as locks:  # its own: another run may be made within this one
            folder, done = first(
                lambda: claim_run(
                    replace(settings, seed=seed),
                    named,
                    dict(key),
                    facts=self.provenance(seed),
                    locks=locks,
                    files=self.task.tokenizer_files,
                    base=on,
                    recipe=recipe,
                    fresh=fresh,
                    strict=asked and not settings.unique and not is_edited,
                )
            )
            again = "; --fresh repeats it" if asked else ""
            if done:
                first(lambda: measure_again(folder, self.task, self.text.test))
            say(
                f"{kind if kind in (BASE, CONTINUED) else 'run'}: {folder.path}"
                + f" (finished{again})" * done
            )
            if done and asked and settings.name not in (None, folder.path.name):
                say(f"--name {settings.name} is not needed: the same model is finished as {folder.path.name}")
            run = Run(self, folder, on or folder, kind, recipe, done)
            try:
                yield run
            except ValueError:
                if not done and is_first():
                    abandon_run(folder, self.task.tokenizer_files)
                raise
        if run.made and run.tracked:
            self.tracker.finish(self.text.test)

    def is_made_elsewhere(self, key: Mapping[str, Any]) -> bool:
        """Whether another process of this machine makes the run of this key now. Never with W&B, which
        follows one run at a time, so that none can be made within another."""
        if self.settings.logger != "csv":
            return False
        with RunLocks() as locks:
            return first(lambda: not locks.hold(Path(self.settings.runs), config_hash(key), wait=False))

    def own_row(self, run: RunFolder, settings: dict[str, Any] | None = None) -> tuple[RunFolder, ResultRow]:
        """The row of a finished run's own model on the test lines, and with the search, of this command, and
        the folder of its outputs. Where its result is of others, they are made now, once, and kept beside.
        settings: of the search, where the caller knows them."""
        own, text = first(run.own_system), self.text
        if settings is None:
            settings = self.task.prediction_settings(text.load(run))
        key = evaluation_key(settings, text.test)
        if (found := evaluated(run, key, own)) is not None:
            first(lambda: measure_again(found[0], self.task, text.test))
            return evaluated(run, key, own) or found
        kept = first(lambda: self.writable(kept_evaluation(run, key)))
        say(
            f"{run.path}: it has no result of the {len(text.test[0]):,} test lines with this search; they "
            f"are translated now, into {kept.path}"
        )
        evaluation = Evaluation(kept, self.task, text.test, settings)
        row = evaluation.add(own, run.weights_of(own), text.load(run), None, stage=stage_of(run))
        kept.write_json("result.json", {"rows": [row.to_json()], "system": own, **measured_here()})
        return kept, row

    def complete(self, folder: RunFolder, kind: str, base: RunFolder) -> None:
        """Let the tracker log what is not logged yet of the run that the command is for."""
        self.tracker.complete(folder, kind, base, self.text.test)

    def writable(self, folder: RunFolder) -> RunFolder:
        """The folder, made; another one where that cannot be, as a base may be another user's."""
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError:
            return RunFolder(Path(self.scratch.name) / folder.path.name)
        return folder

    @cached_property
    def scratch(self) -> TemporaryDirectory[str]:
        """For what cannot be kept beside a base; gone with the lab."""
        return TemporaryDirectory(prefix="headgates-")

    def close(self) -> None:
        self.tracker.close()


class Run:
    """A run in its folder. base: what it starts from, itself for a base; done: found finished; made:
    finished just now."""

    def __init__(
        self, lab: Lab, folder: RunFolder, base: RunFolder, kind: str, recipe: Recipe | None, done: bool
    ):
        self.lab, self.folder, self.base, self.kind, self.done = lab, folder, base, kind, done
        self.recipe = recipe
        self.settings, self.task, self.text = lab.settings, lab.task, lab.text
        self.seed = lab.settings.seed if recipe is None else recipe.seed
        self.made = self.tracked = False

    # ---------------------------------------------------------------- models

    def load(self) -> Predictor:
        """A fresh copy of the base."""
        return self.text.load(self.base)

    @cached_property
    def teacher(self) -> RunFolder:
        """The run that is learned from. Raises ValueError where the one that is named is none."""
        return teacher_of(self.settings, self.base)

    def check_teacher(self) -> None:
        """Raises ValueError where the teacher cuts the test lines into other pieces than the base does."""
        pieces = [
            [
                vocab.encode(list(lines))
                for vocab, lines in zip(self.task.vocabs(each.path), self.text.test, strict=True)
            ]
            for each in (self.teacher, self.base)
        ]
        if pieces[0] != pieces[1]:
            raise ValueError(
                f"--distill.teacher {self.teacher.path}: its vocabulary is another than the base's, so its "
                "numbers cannot be learned; leave --distill.weight at 0, and take --distill.sequences"
            )

    def track(self) -> None:
        """Let the tracker follow the run from here on."""
        if not self.tracked:
            asked = self.kind == BASE if self.lab.asked is None else self.recipe == self.lab.asked
            self.lab.tracker.open(self.folder, self.kind, self.base, asked=asked)
            self.tracked = True

    def train(
        self,
        name: str,
        predictor: Predictor,
        stage: StageConfig,
        *,
        prefix: str = "",
        seeded_as: str = "",
        distilled: bool = False,
        watchers: "Sequence[Watcher]" = (),
        **beside: Any,
    ) -> StageResult:
        """Train a stage and return its result; a stage whose result is on disk is not run again.

        seeded_as: the stage whose seed it has, its own by default. distilled: on the teacher's translations,
        if the settings say so. beside: gating and distilling of the module."""
        record = f"{prefix}stage.json"
        if first((self.folder / record).is_file):
            result = self.folder.read_json(record, StageResult)
            load_best(predictor.model, self.folder, result.weights)
            predictor.model.to(best_device())
            return result
        # here: the trainer takes seconds to import, and a command that trains nothing needs none
        from headgates.lightning_modules.module import StageModule
        from headgates.lightning_modules.stage import run_stage

        seed = stage_seed(self.seed, seeded_as or name)
        self.settings.check_whole_matrices(stage.optimizer)
        data = self.text.data(self.folder)  # before the sample, of which it knows what is too long
        module = StageModule(self.task, predictor, stage, seed=seed, sample=self.text.sample(stage), **beside)
        self.track()
        if distilled and self.settings.distill.sequences:
            data = distilled_data(self.text, self.folder, self.teacher)
        data.accumulate = stage.accumulate
        data.seed = seed  # a new order of batches: the seed of the stage, not of the base again
        result = run_stage(
            name,
            module,
            data,
            self.folder,
            replace(self.settings, precision=self.lab.precision),
            prefix=prefix,
            log=self.lab.tracker.log,
            watchers=[*watchers, *self.lab.tracker.watchers(name)],
        )
        predictor.model.to(best_device())  # the trainer leaves it on the CPU
        self.folder.write_json(record, result.to_json())
        end = {True: " (converged)", False: " (not converged)", None: ""}[result.converged]
        say(
            f"{name}: best epoch {result.best_epoch + 1} of {result.epochs}, "
            f"validation loss {result.losses[result.best_epoch]:.4f}{end}, "
            f"{minutes(result.seconds)} of training, {result.tokens_per_second:,.0f} {self.task.unit}/s"
        )
        return result

    def train_on(
        self, name: str, predictor: Predictor, stage: StageConfig, *, whole: bool = False, **beside: Any
    ) -> StageResult:
        """Train on from the base, helped alike whatever was done to the base's heads. whole: the decoder too,
        whatever freeze_decoder says. beside: of `train`."""
        settings = self.settings
        if settings.freeze_decoder and not whole:
            freeze_decoder(predictor.model)
        if settings.finetune.dropout is not None:
            change_dropout(predictor.model, settings.finetune.dropout)
        beside["distilling"] = None
        if settings.distill.weight:
            self.check_teacher()
            beside["distilling"] = Distilling(self.text.load(self.teacher).model, settings.distill)
        return self.train(name, predictor, stage, distilled=True, **beside)

    def compute_of(self, result: StageResult | None, choice: float, refit: float = 0.0) -> dict[str, float]:
        """The seconds of what made a row, by `ResultRow.compute`; parts that it has not are left out."""
        parts = {"choice": choice, "refit": refit}
        if result is not None:
            parts |= {"text": distilled_seconds(self.text, self.teacher), "training": result.seconds}
        return {name: round(seconds, 1) for name, seconds in parts.items() if seconds}

    # ---------------------------------------------------------------- rows

    def begin_rows(self, predictor: Predictor) -> Evaluation:
        """The rows of the run, none as yet. predictor: whose settings of prediction all rows have."""
        settings = self.task.prediction_settings(predictor)
        self.evaluation = Evaluation(self.folder, self.task, self.text.test, settings)
        return self.evaluation

    def compare_with(self, continued: RunFolder | None, predictor: Predictor) -> Evaluation:
        """Begin the rows with those of the bases, the last of which is the reference."""
        self.track()
        evaluation, settings = self.begin_rows(predictor), self.task.prediction_settings(predictor)
        for system, run in ((BASE, self.base), (CONTINUED, continued)):
            if run is not None:
                evaluation.borrow(system, run, *self.lab.own_row(run, settings))
        evaluation.choose_reference()
        return evaluation

    def finish(self, system: str, **about: Any) -> None:
        """Write the result. system: the run's own; about: what result.json holds beside."""
        self.folder.write_json(
            "result.json",
            {
                "rows": [row.to_json() for row in self.evaluation.rows],
                "system": system,
                "reference": self.evaluation.reference,
                "finished": True,
                **about,
                **self.lab.provenance(self.seed),
                "data": self.text.about(self.folder),
            },
        )
        self.made = True
