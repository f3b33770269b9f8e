"""The experiment of `fit.py`: a base model, gates on its heads, pruning by scores at the same number of
heads, and a fair comparison.

Every stage ends with its files in the run folder and a rewritten result.json, so a crash loses no finished
stage, and `--resume` continues from there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch

from headgates.configs.methods import METHODS, GateMethod
from headgates.configs.schema import FitConfig, StageConfig
from headgates.configs.scores import FINETUNED, score_rows
from headgates.data.ranks import first, is_first
from headgates.gates import KINDS, HeadMap, detach, heads_left, remove
from headgates.lightning_modules.distilling import Distilling
from headgates.lightning_modules.dynamics import NAME as DYNAMICS
from headgates.lightning_modules.dynamics import Dynamics, read_rows
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.precision import resolve_precision
from headgates.lightning_modules.stage import (
    Machine,
    StageResult,
    freeze_decoder,
    load_best,
    run_stage,
)
from headgates.lightning_modules.tracker import make_tracker
from headgates.models.cpu_kernels import change_dropout
from headgates.models.cpu_kernels import bound_caches
from headgates.models.progress import minutes, say
from headgates.report.fill import PAGE, update_pages
from headgates.tasks.base import Predictor
from headgates.workbench.base_settings import open_base, with_base_settings
from headgates.workbench.evaluation import Evaluation
from headgates.workbench.experiment_text import ExperimentText
from headgates.workbench.fingerprint import CONTINUED, base_fingerprint, stage_fingerprint
from headgates.workbench.folder import RunFolder
from headgates.workbench.from_scratch import train_from_scratch
from headgates.workbench.gate_stage import learn_gates
from headgates.workbench.head_curve import head_curve
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.run_lock import RunLocks, abandon_run, claim_run
from headgates.workbench.score_rows import add_score_rows, scored_run
from headgates.workbench.scores import ScoreRequest
from headgates.workbench.source import Source, best_device
from headgates.workbench.taught_text import taught_data
from headgates.workbench.told_heads import check_told_heads


class Experiment:
    """Finds or trains the runs that one configuration asks for."""

    def __init__(self, config: FitConfig, text: ExperimentText | None = None):
        """text: that of the configuration, where it has been read already. Raises ValueError where --base is
        no finished base, or a setting contradicts it."""
        self.named_base = None if config.base is None else open_base(config)
        if self.named_base is not None:
            config = with_base_settings(config, self.named_base)
        self.config = config
        self.precision = resolve_precision(config.precision)
        every: Any = {name: getattr(config, name) for name in ("checkpoint_minutes", "checkpoint_steps")}
        self.machine = Machine(
            config.devices,
            self.precision,
            config.logger,
            nodes=config.num_nodes,
            strategy=config.strategy,
            **every,
        )
        bound_caches()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.facts = provenance(
            device_name(), self.precision, config.seed
        )  # of the code that runs, whatever is checked out later
        self.tracker = make_tracker(config, self.facts)
        self.text = ExperimentText(config) if text is None else text.with_settings(config)
        self.task = self.text.task
        check_told_heads(config, self.task)
        self.locks = RunLocks()

    # ---------------------------------------------------------------- runs

    def run(self) -> RunFolder:
        """Return the finished run of the configuration, trained now unless it is there already."""
        try:
            base = self.base()
            if self.config.base_alone:
                self.tracker.complete(base, "base", None, self.text.test)
                return base
            if self.config.gate == "none":
                run = scored_run(self, base)
            else:
                continued = self.continued(base) if "base-continued" in self.config.systems else None
                method = METHODS[self.config.gate]
                run = (
                    head_curve(self, base, continued, method)
                    if self.config.is_curve
                    else self.gated(base, continued, method)
                )
            self.tracker.complete(run, self.config.job, base, self.text.test)
            return run
        finally:
            self.tracker.close()
            self.locks.release()

    def base(self) -> RunFolder:
        """Return a finished base: the one named by --base, one in --runs with the same configuration, or one
        that is trained now."""
        config = self.config
        if self.named_base is not None:
            return self.named_base
        name = config.name if config.name and config.base_alone else f"{self.text.prefix}-none-s{config.seed}"
        fingerprint = base_fingerprint(config, self.text.corpus, self.precision)
        folder, done = self.claim_folder(
            name, fingerprint, gate="none", fresh=config.fresh and config.base_alone
        )
        if done:
            say(f"base: {folder.path} (finished, same configuration)")
            if config.base_alone:
                self.evaluate_again(folder)
                self.fill_missing_report(folder)
            return folder
        say(f"base: training {folder.path}")
        try:
            first(lambda: self.task.prepare_folder(folder.path, self.text.corpus, config))
            self.text.data(folder)
        except ValueError:
            if is_first():
                abandon_run(folder, self.task.tokenizer_files)
            raise
        self.tracker.open(folder, "base")
        pl.seed_everything(config.seed, verbose=False)
        predictor = self.task.new_predictor(folder.path, config)
        module, watchers = self.module(predictor, config.train, seed_offset=0), self.dynamics(folder)
        result = self.train("base", module, folder, config.train, watchers=watchers)
        if watchers:
            from headgates.report.pruning_figures import (
                draw_dynamics,  # matplotlib takes a second to import, and few runs need it
            )

            title = f"{folder.path.name}: heads pruned while the base trains"
            draw_dynamics(read_rows(folder), folder / DYNAMICS, metric=self.task.metrics[0], title=title)
        self.finish_ungated(folder, "base", predictor, result)
        return folder

    def evaluate_again(self, folder: RunFolder) -> None:
        """Translate the test set of this configuration, where the finished base was evaluated on another or
        with another search."""
        predictor = self.text.load(folder)
        evaluation = self.evaluation(folder, predictor)
        row = next(iter(folder.rows()), None)  # a base that others trained has none
        if row is None or row.evaluation == evaluation.fingerprint:
            return
        say(
            f"base: its result is of other test lines or another search; the {len(self.text.test[0])} lines are translated now"
        )
        evaluation.add("base", folder / "best.pt", predictor, None, stage=row.stage)
        evaluation.choose_reference()
        self.write_result(folder, evaluation, system="base")

    def continued(self, base: RunFolder) -> RunFolder:
        """Return the base trained on without gates for as many epochs as the gates get. All gate runs with
        this fine-tuning share it."""
        config = self.config
        name = f"{self.text.prefix}-continued-s{config.seed}"
        folder, done = self.claim_folder(name, self.fingerprint_on(base, CONTINUED), gate="none", base=base)
        if done:
            say(f"base-continued: {folder.path} (finished, same configuration)")
            return folder
        say(f"base-continued: training {folder.path}")
        self.tracker.open(folder, "base-continued", base)
        predictor = self.text.load(base)
        if config.freeze_decoder:
            freeze_decoder(predictor.model)
        module = self.finetuning(predictor, base, seed_offset=1)
        result = self.train("base-continued", module, folder, config.finetune, base=base)
        self.finish_ungated(folder, "base-continued", predictor, result)
        return folder

    def gated(self, base: RunFolder, continued: RunFolder | None, method: GateMethod) -> RunFolder:
        """Return the run that trains gates on the converged base, makes them exactly 0 or 1, and compares
        them with pruning by scores at the same number of heads."""
        config = self.config
        kinds = "-" + "+".join(config.heads_per_kind) if config.heads_per_kind else self.kinds_words
        name = (
            config.name
            or f"{self.text.prefix}-{method.name}-{method.steering(config):g}{kinds}-s{config.seed}"
        )
        fingerprint = self.fingerprint_on(base, method.name)
        folder, done = self.claim_folder(
            name, fingerprint, gate=method.name, base=base, fresh=config.fresh, strict=not config.unique
        )
        if done:
            say(f"run: {folder.path} (finished, same configuration; --fresh repeats it)")
            self.fill_missing_report(folder)
            return folder
        self.tracker.open(folder, "gates", base)
        predictor = self.text.load(base)
        evaluation = self.bases_evaluated(folder, predictor, base, continued)
        open_heads = learn_gates(self, method, predictor, folder, base, evaluation)
        if method.removed in config.systems:
            self.remove_closed_heads(method, folder, predictor, open_heads, evaluation)
        keep, total = open_heads.count(), open_heads.heads_total
        add_score_rows(self, folder, base, continued, keep=keep, total=total, evaluation=evaluation)
        if method.scratch in config.systems:
            train_from_scratch(self, method.scratch, folder, base, open_heads, evaluation)
        self.write_result(folder, evaluation, system=method.exact)
        self.fill_report(folder)
        self.tracker.finish(self.text.test)
        return folder

    @property
    def kinds_words(self) -> str:
        """The gated kinds in a run's name; nothing for all."""
        chosen = [kind for kind in KINDS if kind in self.config.kinds]
        return "" if len(chosen) == len(KINDS) else "-" + "+".join(chosen)

    def score_request(self, source: Source) -> ScoreRequest:
        config = self.config
        return ScoreRequest(
            source, valid=source.lines("valid"), seed=config.seed, sentences=config.greedy_sentences
        )

    def remove_closed_heads(
        self,
        method: GateMethod,
        folder: RunFolder,
        predictor: Predictor,
        open_heads: HeadMap,
        evaluation: Evaluation,
    ) -> None:
        """Remove the closed heads from the gated model, save and evaluate it, and count the lines it
        translates differently."""
        if open_heads.count() == open_heads.heads_total:
            evaluation.repeat(method.removed, method.exact, folder / "best.pt", because="no head is closed")
            return
        detach(predictor.model)
        remove(predictor.model, ~open_heads)
        weights = folder / f"{method.removed}.pt"
        self.task.save_model(weights, predictor)
        still_open = HeadMap(
            dict(heads_left(predictor.model)) | dict(open_heads)
        )  # what stays in the weights may be closed
        row = evaluation.add(method.removed, weights, predictor, still_open)
        row.lines_unlike_masked = evaluation.count_different_lines(method.removed, method.exact)
        if row.lines_unlike_masked:
            lines = f"{row.lines_unlike_masked} of {len(self.text.test[0])} lines"
            say(
                f"{method.removed}: {lines} are not those of {method.exact}: sums in another order, at near ties"
            )

    # ---------------------------------------------------------------- stages

    @property
    def stages(self) -> list[str]:
        """The names of the stages in their order, finished ones too; a base that --base names is none."""
        systems = self.config.systems
        names = [] if self.named_base is not None else ["base"]
        if self.config.base_alone:
            return names
        names += ["base-continued"] if "base-continued" in systems else []
        if self.config.is_curve:
            return [*names, *(f"{count} heads" for count in self.config.curve)]
        names += ["gates"] if self.config.gate != "none" else []
        names += [row for rows in score_rows(systems).values() for row in rows if row.endswith(FINETUNED)]
        scratch = METHODS[self.config.gate].scratch if self.config.gate != "none" else ""
        return [*names, scratch, f"{scratch}, on"] if scratch in systems else names

    def claim_folder(
        self, name: str, fingerprint: dict[str, Any], *, gate: str, scored: bool = False, **how: Any
    ) -> tuple[RunFolder, bool]:
        """Return the folder of the run with this fingerprint, and whether the run is finished already.
        scored: it is that of the scores at a number of heads; like a base it has no gates, but a base is not
        told a number."""
        of_method: dict[str, Any] = {
            "heads": None,
            "heads_per_kind": [],
            "from_scratch": False,
            "curve": [],
            "fewest": False,
        }
        own = {} if scored or gate == self.config.gate != "none" else of_method  # no settings of a base
        settings = replace(self.config, gate=gate, systems=self.config.systems, **own)
        how |= {"facts": self.facts, "locks": self.locks, "files": self.task.tokenizer_files}
        return first(lambda: claim_run(self.config, settings, name, fingerprint, **how))

    def fingerprint_on(self, base: RunFolder, gate: str) -> dict[str, Any]:
        """The fingerprint of a run on a base."""
        base_hash = str(base.run_hash())
        return stage_fingerprint(
            self.config, self.text.corpus, self.precision, base_hash=base_hash, gate=gate, test=self.text.test
        )

    def dynamics(self, folder: RunFolder) -> list[pl.Callback]:
        """Return the callback that prunes the base while it trains, or nothing without --dynamics."""
        config, text = self.config, self.text
        if not config.dynamics:
            return []
        data = self.task.data(
            folder.path, text.corpus, text.settings, train_sentences=config.dynamics_sentences
        )
        numbers = data.split("valid").numbers[
            : config.dynamics_valid_sentences or None
        ]  # the pairs that are validated
        valid = (
            [text.corpus.valid.sources[i] for i in numbers],
            [text.corpus.valid.targets[i] for i in numbers],
        )
        facts = {"train_sentences": len(data.train_pairs), "text_digest": text.corpus.digest(), **self.facts}
        return [Dynamics(folder, config.dynamics, data=data, valid=valid, facts=facts)]

    def module(
        self, predictor: Predictor, stage: StageConfig, *, seed_offset: int, **beside: Any
    ) -> StageModule:
        """Return the module that trains a stage. seed_offset: differs from stage to stage of a run, so that
        their seeds do too."""
        seed = self.config.seed * 10 + seed_offset
        return StageModule(self.task, predictor, stage, seed=seed, sample=self.text.sample(stage), **beside)

    def finetuning(
        self, predictor: Predictor, base: RunFolder, *, seed_offset: int, gating: Gating | None = None
    ) -> StageModule:
        """Return the module that trains on from the base, helped alike whatever was done to the base's
        heads."""
        config = self.config
        if config.finetune.dropout is not None:
            change_dropout(predictor.model, config.finetune.dropout)
        distilling = Distilling(self.text.load(base).model, config.distill) if config.distill.weight else None
        return self.module(
            predictor, config.finetune, seed_offset=seed_offset, gating=gating, distilling=distilling
        )

    def train(
        self,
        name: str,
        module: StageModule,
        folder: RunFolder,
        stage: StageConfig,
        *,
        base: RunFolder | None = None,
        prefix: str = "",
        watchers: Sequence[pl.Callback] = (),
    ) -> StageResult:
        """Train a stage and return its result; a stage whose result is on disk is not run again. base: where
        the stage starts from one, whose translations it then learns from if the configuration says so."""
        record = folder / f"{prefix}stage.json"
        if first(record.is_file):
            result = StageResult.from_json(folder.read_json(record.name))
            load_best(module, folder, result.weights)
            module.model.to(best_device())
            return result
        data = self.text.data(folder)
        if base is not None and self.config.distill.sequences:
            data = taught_data(self.text, folder, base)
        data.accumulate = stage.accumulate
        # a new optimiser and a new order of batches: the seed of the stage, not of the base again
        data.seed = module.seed
        followed: Any = {
            "loggers": self.tracker.loggers(name),
            "watchers": [*watchers, *self.tracker.watchers(name)],
        }
        if name in self.stages:  # those of --fewest are known once the model's heads are counted
            followed["place"] = f"stage {self.stages.index(name) + 1} of {len(self.stages)}"
        result = run_stage(
            name,
            module,
            data,
            folder,
            self.machine,
            stage,
            prefix=prefix,
            resume=self.config.resume,
            **followed,
        )
        module.model.to(best_device())  # the trainer leaves it on the CPU
        folder.write_json(record.name, result.to_json())
        end = {True: " (converged)", False: " (not converged)", None: ""}[result.converged]
        say(
            f"{name}: best epoch {result.best_epoch + 1} of {result.epochs}, "
            f"validation loss {result.losses[result.best_epoch]:.4f}{end}, "
            f"{minutes(result.seconds)} of training, {result.tokens_per_second:,.0f} {self.task.unit}/s"
        )
        return result

    # ---------------------------------------------------------------- results

    def evaluation(self, folder: RunFolder, predictor: Predictor) -> Evaluation:
        return Evaluation(folder, self.task, self.text.test, self.task.prediction_settings(predictor))

    def bases_evaluated(
        self, folder: RunFolder, predictor: Predictor, base: RunFolder, continued: RunFolder | None
    ) -> Evaluation:
        """The comparison of a run on a base, which begins with the rows of the bases."""
        evaluation = self.evaluation(folder, predictor)
        for system, run in {"base": base, "base-continued": continued}.items():
            if run is not None:
                evaluation.borrow(system, run, self.text.settings)
        evaluation.choose_reference()
        return evaluation

    def finish_ungated(
        self, folder: RunFolder, system: str, predictor: Predictor, result: StageResult
    ) -> None:
        """Evaluate a model without gates and close its run."""
        evaluation = self.evaluation(folder, predictor)
        evaluation.add(system, folder / "best.pt", predictor, None, stage=result.to_json())
        evaluation.choose_reference()
        self.write_result(folder, evaluation, system=system)
        self.locks.release()  # others may now build on it
        if system == "base":
            self.fill_report(folder)
        self.tracker.finish(self.text.test)

    def fill_report(self, folder: RunFolder) -> None:
        """The report page of a run that has just finished, and of its base."""
        first(lambda: update_pages(folder, say, data_dir=self.config.data_dir, corpus=self.text.corpus))

    def fill_missing_report(self, folder: RunFolder) -> None:
        """The page of a run that was stopped after its result and before its page."""
        if first(lambda: not (folder / PAGE).is_file()):
            self.fill_report(folder)

    def write_result(self, folder: RunFolder, evaluation: Evaluation, *, system: str) -> None:
        rows = [row.to_json() for row in evaluation.rows]
        result = {"rows": rows, "system": system, "reference": evaluation.reference, "finished": True}
        folder.write_json("result.json", {**result, **self.facts, "data": self.text.about(folder)})
