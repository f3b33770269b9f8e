"""The context around a run: its folder is claimed or found finished, stages are trained in it, rows are
added, and its result is written.

    with lab.run("toy-en-de-l0-0.01-s1", gate="l0", on=base) as run:
        if not run.done:
            run.train("gates", module)
            run.evaluation.add("l0", weights, predictor, open_heads)
            run.finish("l0")

Every stage ends with its files in the folder, so a crash loses no finished stage, and `--resume` continues.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from headgates.configs.heads_per_kind import check_budget, parse_budget
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig, StageConfig
from headgates.configs.speed_methods import AS_LONG, SPEED_METHODS, speed_rows
from headgates.configs.systems import PLANNED as PLANNED_ROWS
from headgates.configs.systems import score_rows
from headgates.data.ranks import first, is_first
from headgates.lab.base_settings import open_base, with_base_settings
from headgates.lab.distilled_text import distilled_data
from headgates.lab.evaluation import Evaluation
from headgates.lab.experiment_text import ExperimentText
from headgates.lab.tracker import make_tracker
from headgates.lightning_modules.distilling import Distilling
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.precision import resolve_precision
from headgates.lightning_modules.stage import (
    Machine,
    StageResult,
    freeze_decoder,
    load_best,
    run_stage,
)
from headgates.lightning_modules.stage_callback import Watcher
from headgates.models.cpu_kernels import bound_caches, change_dropout
from headgates.models.progress import minutes, say
from headgates.pruning.scores import ScoreRequest
from headgates.records.fingerprint import (
    BASE,
    CONTINUED,
    PLANNED,
    SCORED,
    base_fingerprint,
    stage_fingerprint,
)
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name, provenance
from headgates.records.run_lock import RunLocks, abandon_run, claim_run
from headgates.records.source import Source, best_device
from headgates.tasks.base import Predictor, Task

JOBS = {  # what the tracker calls a run
    BASE: "base",
    CONTINUED: "base-continued",
    SCORED: "scores",
    PLANNED: "plan",
}
SHARES = (
    0.75,
    0.625,
    0.5,
    0.375,
    0.25,
    0.1875,
    0.125,
    0.0625,
)  # of the gated heads, where --curve names no counts
SALT = 262_072_178  # the stages base, base-continued and gates have 0, 1 and 2, as in recorded results


def stage_seed(seed: int, stage: str) -> int:
    """The seed of a stage: of its optimiser, batches and noise."""
    return seed * 10 + zlib.crc32(f"{SALT} {stage}".encode()) % 1000


class Lab:
    """What all runs of one configuration share: text, machine, tracker and locks. finished: called on every
    run that is found or made; the commands write pages there."""

    def __init__(
        self, config: FitConfig, text: ExperimentText | None = None, finished: "Finished" = lambda run: None
    ):
        """text: that of the configuration, where it has been read already. Raises ValueError where --base is
        no finished base, or a setting contradicts it."""
        self.named_base = None if config.base is None else open_base(config)
        if self.named_base is not None:
            config = with_base_settings(config, self.named_base)
        self.config, self.finished = config, finished
        bound_caches()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.precision = resolve_precision(config, device_name(), say)
        self.machine = Machine(
            config.devices,
            self.precision,
            config.logger,
            nodes=config.num_nodes,
            strategy=config.strategy,
            checkpoint_minutes=config.checkpoint_minutes,
            checkpoint_steps=config.checkpoint_steps,
        )
        # of the code that runs, whatever is checked out later
        self.provenance = provenance(device_name(), self.precision, config.seed)
        self.tracker = make_tracker(config, self.provenance)
        self.text = ExperimentText(config) if text is None else text.with_settings(config)
        self.task = self.text.task
        check_target_heads(config, self.task)
        self.locks = RunLocks()

    @contextmanager
    def run(self, name: str, *, gate: str, on: RunFolder | None = None, **cache_key: Any) -> Iterator["Run"]:
        """The run of this configuration that `gate` makes: BASE, CONTINUED, SCORED or a method's name. name:
        of its folder, unless the command asks for this run and names it. on: its base. cache_key: what it
        depends on beside the fingerprint.

        A run that fails before anything was trained leaves no folder that would block the corrected
        command."""
        config, corpus, job = self.config, self.text.corpus, JOBS.get(gate, "gates")
        if on is None:
            key = base_fingerprint(config, corpus, self.precision)
        else:
            key = stage_fingerprint(
                config, corpus, self.precision, base_hash=str(on.run_hash()), gate=gate, test=self.text.test
            )
        asked, whole = job == config.job, gate in (BASE, CONTINUED)
        if whole:  # which has no settings of how heads are closed
            config = replace(
                config,
                gate="none",
                heads=None,
                neurons=None,
                heads_per_kind=[],
                curve=[],
                max_drop=None,
                speedup=None,
                runtime="auto",
                systems=[row for row in config.systems if row not in PLANNED_ROWS],
            )
        folder, done = first(
            lambda: claim_run(
                config,
                config.name if asked and config.name else name,
                key | cache_key,
                facts=self.provenance,
                locks=self.locks,
                files=self.task.tokenizer_files,
                base=on,
                fresh=config.fresh and asked,
                strict=not whole and not config.unique,
            )
        )
        again = "" if whole else "; --fresh repeats it"
        say(f"{job if whole else 'run'}: {folder.path}" + f" (finished, same configuration{again})" * done)
        if done and asked and config.name not in (None, folder.path.name):
            say(f"--name {config.name} is not needed: the same run is finished as {folder.path.name}")
        run = Run(self, folder, on or folder, job, done)
        try:
            yield run
        except ValueError:
            if not done and is_first():
                abandon_run(folder, self.task.tokenizer_files)
            raise
        if done or run.made:
            self.locks.release()  # others may now build on it
            if job in ("base", "gates", "plan"):  # the others have no page
                self.finished(run)
        if run.made and run.tracked:
            self.tracker.finish(self.text.test)

    def close(self) -> None:
        self.tracker.close()
        self.locks.release()

    @property
    def stages(self) -> dict[str, int]:
        """The stages in their order, finished ones too, and the epochs of each; a base that --base names is
        none."""
        totals = self.task.heads_by_kind(self.config)
        total = None if totals is None else sum(totals[kind] for kind in self.config.kinds)
        stages = stage_epochs(self.config, total)
        return {name: epochs for name, epochs in stages.items() if name != "base" or not self.named_base}

    def score_request(self, source: Source) -> ScoreRequest:
        """For the scores of what carries gates."""
        config = self.config
        return ScoreRequest(
            source,
            valid=source.lines("valid"),
            kinds=config.kinds if config.gated_neurons else None,
            seed=config.seed,
            sentences=config.sentences,
        )


class Run:
    """A run in its folder. base: what it starts from, itself for a base; done: found finished; made: finished
    just now."""

    def __init__(self, lab: Lab, folder: RunFolder, base: RunFolder, job: str, done: bool):
        self.lab, self.folder, self.base, self.job, self.done = lab, folder, base, job, done
        self.config, self.task, self.text = lab.config, lab.task, lab.text
        self.made = self.tracked = False

    # ---------------------------------------------------------------- models

    def load(self) -> Predictor:
        """A fresh copy of the base."""
        return self.text.load(self.base)

    def track(self) -> None:
        """Let the tracker follow the run from here on."""
        if not self.tracked:
            self.lab.tracker.open(self.folder, self.job, self.base)
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
        watchers: Sequence[Watcher] = (),
        **beside: Any,
    ) -> StageResult:
        """Train a stage and return its result; a stage whose result is on disk is not run again.

        seeded_as: the stage whose seed it has, its own by default. distilled: on the base's translations, if
        the configuration says so. beside: gating and distilling of the module."""
        seed = stage_seed(self.config.seed, seeded_as or name)
        module = StageModule(self.task, predictor, stage, seed=seed, sample=self.text.sample(stage), **beside)
        record = f"{prefix}stage.json"
        if first((self.folder / record).is_file):
            result = StageResult(**self.folder.read_json(record))
            load_best(module, self.folder, result.weights)
            module.model.to(best_device())
            return result
        self.track()
        data = self.text.data(self.folder)
        if distilled and self.config.distill.sequences:
            data = distilled_data(self.text, self.folder, self.base)
        data.accumulate = stage.accumulate
        data.seed = seed  # a new order of batches: the seed of the stage, not of the base again
        stages = self.lab.stages
        place = list(stages).index(name) + 1 if name in stages else 0
        result = run_stage(
            name,
            module,
            data,
            self.folder,
            self.lab.machine,
            stage,
            prefix=prefix,
            resume=self.config.resume,
            place=f"stage {place} of {len(stages)}" if place else "",
            later=sum([*stages.values()][place:]) if place else 0,
            loggers=self.lab.tracker.loggers(name),
            watchers=[*watchers, *self.lab.tracker.watchers(name)],
        )
        module.model.to(best_device())  # the trainer leaves it on the CPU
        self.folder.write_json(record, result.to_json())
        end = {True: " (converged)", False: " (not converged)", None: ""}[result.converged]
        say(
            f"{name}: best epoch {result.best_epoch + 1} of {result.epochs}, "
            f"validation loss {result.losses[result.best_epoch]:.4f}{end}, "
            f"{minutes(result.seconds)} of training, {result.tokens_per_second:,.0f} {self.task.unit}/s"
        )
        return result

    def train_on(
        self,
        name: str,
        predictor: Predictor,
        stage: StageConfig | None = None,
        *,
        whole: bool = False,
        **beside: Any,
    ) -> StageResult:
        """Train on from the base, helped alike whatever was done to the base's heads. stage: fine-tuning,
        unless given. whole: the decoder too, whatever --freeze-decoder says. beside: of `train`."""
        config = self.config
        if config.freeze_decoder and not whole:
            freeze_decoder(predictor.model)
        if config.finetune.dropout is not None:
            change_dropout(predictor.model, config.finetune.dropout)
        beside["distilling"] = (
            Distilling(self.load().model, config.distill) if config.distill.weight else None
        )
        return self.train(name, predictor, stage or config.finetuning, distilled=True, **beside)

    # ---------------------------------------------------------------- rows

    def begin_rows(self, predictor: Predictor) -> Evaluation:
        """The rows of the run, none as yet. predictor: whose settings of prediction all rows have."""
        settings = self.task.prediction_settings(predictor)
        self.evaluation = Evaluation(self.folder, self.task, self.text.test, settings)
        return self.evaluation

    def compare_with(self, continued: RunFolder | None, predictor: Predictor) -> Evaluation:
        """Begin the rows with those of the bases, the better of which is the reference."""
        self.track()
        evaluation = self.begin_rows(predictor)
        evaluation.borrow("base", self.base, self.text.settings)
        if continued is not None:
            evaluation.borrow("base-continued", continued, self.text.settings)
        evaluation.choose_reference()
        return evaluation

    def finish(self, system: str) -> None:
        """Write the result. system: the run's own."""
        self.folder.write_json(
            "result.json",
            {
                "rows": [row.to_json() for row in self.evaluation.rows],
                "system": system,
                "reference": self.evaluation.reference,
                "finished": True,
                **self.lab.provenance,
                "data": self.text.about(self.folder),
            },
        )
        self.made = True


Finished = Callable[[Run], None]


def stage_epochs(config: FitConfig, total: int | None) -> dict[str, int]:
    """stage -> its epochs, of a configuration, in their order. total: the heads of the gated kinds, None
    where only the model itself says."""
    method, more = METHODS.get(config.gate), config.finetune.epochs
    stages = {"base": config.train.epochs}
    if config.base_alone:
        return stages
    stages |= {"base-continued": more} if "base-continued" in config.systems else {}
    if config.gate == PLANNED:
        for name, rows in speed_rows(config.systems).items():
            if name == "plan-learned":
                stages[f"{name}: choice"] = config.gates.choose_epochs
            if SPEED_METHODS[name].prunes:
                stages |= {row: more for row in rows if row != name}
            else:
                stages[name] = config.train.epochs if name == "uniform" else AS_LONG * more
        return stages
    learned = ["gates"] if method else []
    if config.is_curve:
        counts = config.curve if total is None else curve_counts(config, total)
        learned = [f"{count} heads" for count in counts]
    for name in learned:
        chosen = config.gates.reconstruct is not None
        stages |= ({f"{name}: choice": config.gates.choose_epochs} if chosen else {}) | {name: more}
    if config.is_curve:
        return stages
    trained = [row.name for rows in score_rows(config.systems).values() for row in rows if row.trained]
    stages |= dict.fromkeys(trained, more)
    scratch = method is not None and method.scratch in config.systems
    again = {method.scratch: config.train.epochs, f"{method.scratch}, on": more} if method and scratch else {}
    return stages | again


def check_target_heads(config: FitConfig, task: Task) -> None:
    """Raises ValueError where more heads are to stay open than the gated kinds have, unless only the model
    itself will tell."""
    totals = task.heads_by_kind(config)
    if totals is None:
        return
    gated = {kind: totals[kind] for kind in config.kinds}
    if config.heads_per_kind:
        check_budget(parse_budget(config.heads_per_kind), gated)
    if config.is_curve:
        curve_counts(config, sum(gated.values()))
    check_targets(config, gated)


def curve_counts(config: FitConfig, total: int) -> list[int]:
    """The numbers of heads of a configuration with `curve` or `max_drop`, from many to few. total: of the
    gated kinds. Raises ValueError where the model has no more than one of them."""
    chosen = config.curve or sorted({round(total * share) for share in SHARES} - {0, total}, reverse=True)
    if too_many := [count for count in chosen if count >= total]:
        kinds = ", ".join(config.kinds)
        raise ValueError(
            f"--curve: expected fewer heads than the {total} of {kinds}, got {', '.join(map(str, too_many))}"
        )
    return chosen


def check_targets(config: FitConfig, totals: Mapping[str, int]) -> None:
    """Raises ValueError where more heads or neurons are to stay open than the gated kinds have. totals: kind
    -> heads or neurons."""
    heads = [kind for kind in config.kinds if kind not in config.gated_neurons]
    for flag, count, kinds in (
        ("heads", config.heads, heads),
        ("neurons", config.neurons, config.gated_neurons),
    ):
        if count is not None:
            check_count(flag, count, sum(totals.get(kind, 0) for kind in kinds), kinds)


def check_count(flag: str, count: int, total: int, kinds: Sequence[str]) -> None:
    """Raises ValueError where more `flag`, heads or neurons, are to stay open than these kinds have."""
    if count > total:
        raise ValueError(
            f"--{flag}: cannot keep {count} of {total} {flag} of {', '.join(kinds)}; give a smaller number"
        )
