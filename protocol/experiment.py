"""The experiment of `fit.py`: a base model, gates on its heads, greedy pruning at the same number of heads, and a fair comparison.

Every stage ends with its files in the run folder and a rewritten result.json, so a crash leaves the last whole stage, and `--resume`
goes on from there.
"""

import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch

from configs.schema import FitConfig, StageConfig
from data.corpus import make_vocabs
from gates import KINDS, HeadMap, LambdaBudget, attach, detach, heads_left, remove
from lightning_modules.dynamics import NAME as DYNAMICS
from lightning_modules.dynamics import Dynamics, read_rows
from lightning_modules.gated import GatedModule
from lightning_modules.stage import Machine, StageResult, freeze_decoder, load_best, resolve_precision, run_stage
from lightning_modules.tracker import make_tracker
from lightning_modules.translation import TranslationModule
from models.checkpoint import save_model
from models.progress import minutes, say
from models.transformer import Transformer
from models.translator import Translator
from protocol.evaluation import Evaluation
from protocol.material import Material
from protocol.selectors import FINETUNED, SELECTORS, wanted
from pruning.greedy import lowest_closed
from report.fill import fill
from runfolder.fingerprint import base_identity, stage_identity
from runfolder.folder import RunFolder
from runfolder.provenance import device_name, provenance
from runfolder.run_lock import Locks, claim, run_hash
from runfolder.source import best_device


class Experiment:
    """Finds or makes the runs that one configuration asks for."""

    def __init__(self, config: FitConfig):
        self.config = config
        self.precision = resolve_precision(config.precision)
        self.machine = Machine(config.devices, self.precision, config.logger)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.facts = provenance(device_name(), self.precision, config.seed)  # of the code that runs, whatever is checked out later
        self.tracker = make_tracker(config, self.facts)
        self.material = Material(config)
        self.locks = Locks()

    def base_identity(self) -> dict[str, Any]:
        return base_identity(self.config, self.material.corpus, self.precision)

    def stage_identity(self, base_hash: str, gate: str) -> dict[str, Any]:
        return stage_identity(self.config, self.material.corpus, self.precision, base_hash=base_hash, gate=gate, test=self.material.test)

    # ---------------------------------------------------------------- runs

    def run(self) -> RunFolder:
        """The finished run of the configuration."""
        try:
            base = self.base()
            if self.config.gate == "none":
                self.tracker.complete(base, "base", None, self.material.test)
                return base
            continued = self.continued(base) if "base-continued" in self.config.systems else None
            run = self.gated(base, continued)
            self.tracker.complete(run, "gates", base, self.material.test)
            return run
        finally:
            self.tracker.close()
            self.locks.release()

    def base(self) -> RunFolder:
        """A finished base: the one named by --base, one in --runs with the same configuration, or a new one."""
        config = self.config
        if config.base is not None:
            folder = RunFolder.open(config.base)
            if not folder.finished():
                raise ValueError(f"the base {config.base} is not finished; the command in its command.txt with --resume continues it")
            if folder.config().get("gate", "none") != "none":
                raise ValueError(f"{config.base} is a run with gates; --base needs a base run, such as {folder.config().get('base')}")
            if config.dynamics and sorted(folder.config().get("dynamics") or []) != sorted(config.dynamics):
                raise ValueError(f"--dynamics prunes a base while it trains, and {config.base} was trained without; leave one of them out")
            return folder
        name = config.name if config.name and config.gate == "none" else f"{self.material.prefix}-none-s{config.seed}"
        folder, done = self.claim(name, self.base_identity(), gate="none", fresh=config.fresh and config.gate == "none")
        if done:
            say(f"base: {folder.path} (finished, same configuration)")
            return folder
        say(f"base: training {folder.path}")
        try:
            corpus, text = self.material.corpus, config.text
            source_vocab, target_vocab = make_vocabs(corpus, folder.path, size=text.vocab_size, joint=text.joint)
            self.material.data(folder)
        except ValueError:
            shutil.rmtree(folder.path)  # nothing was trained: a folder left behind would only stand in the way of the mended command
            raise
        self.tracker.open(folder, "base")
        pl.seed_everything(config.seed, verbose=False)
        model = Transformer(config.model, len(source_vocab), len(target_vocab))
        translator = Translator(model, source_vocab, target_vocab, config.search)
        module, watchers = self.plain(translator, config.train, offset=0), self.dynamics(folder)
        result = self.train("base", module, folder, config.train, watchers=watchers)
        if watchers:
            from report.pruning_figures import draw_dynamics  # matplotlib takes a second to import, and few runs need it

            draw_dynamics(read_rows(folder), folder / DYNAMICS, title=f"{folder.path.name}: heads pruned while the base trains")
        folder.add_system("base", folder / "best.pt", None)
        self.finish_plain(folder, "base", translator, result)
        return folder

    def continued(self, base: RunFolder) -> RunFolder:
        """The base trained for the epochs that the gates get, without gates; shared by all gate runs with the same fine-tuning."""
        config = self.config
        identity = self.stage_identity(self.hash_of(base), "continued")
        folder, done = self.claim(f"{self.material.prefix}-continued-s{config.seed}", identity, gate="none", base=base)
        if done:
            say(f"base-continued: {folder.path} (finished, same configuration)")
            return folder
        say(f"base-continued: training {folder.path}")
        self.tracker.open(folder, "base-continued", base)
        translator = self.material.load(base)
        if config.freeze_decoder:
            freeze_decoder(translator.model)
        result = self.train("base-continued", self.plain(translator, config.finetune, offset=1), folder, config.finetune)
        folder.add_system("base-continued", folder / "best.pt", None)
        self.finish_plain(folder, "base-continued", translator, result)
        return folder

    def gated(self, base: RunFolder, continued: RunFolder | None) -> RunFolder:
        """Gates from the converged base, made exactly 0 or 1, beside greedy pruning at the same number of heads."""
        config = self.config
        kinds = "" if set(config.kinds) == set(KINDS) else "-" + "+".join(kind for kind in KINDS if kind in config.kinds)
        name = config.name or f"{self.material.prefix}-{config.gate}-{config.lam:g}{kinds}-s{config.seed}"
        identity = self.stage_identity(self.hash_of(base), "l0")
        folder, done = self.claim(name, identity, gate="l0", base=base, fresh=config.fresh, strict=not config.unique)
        if done:
            say(f"run: {folder.path} (finished, same configuration; --fresh repeats it)")
            return folder
        self.tracker.open(folder, "gates", base)
        evaluation = Evaluation(folder, self.material.test, config.search)
        evaluation.borrow("base", base)
        if continued is not None:
            evaluation.borrow("base-continued", continued)
        evaluation.choose_reference()

        translator = self.material.load(base)
        bank = attach(
            translator.model,
            gate="l0",
            kinds=config.kinds,
            log_alpha=config.gates.log_alpha,
            beta=config.gates.beta,
            gamma=config.gates.gamma,
            zeta=config.gates.zeta,
        )
        if config.freeze_decoder:
            freeze_decoder(translator.model)
        budget = LambdaBudget(config.lam, config.gates.lambda_warmup)
        sample = self.material.sample(config.finetune)
        module = GatedModule(translator, config.finetune, config.gates, budget, seed=self.stage_seed(2), sample=sample)
        result = self.train("gates", module, folder, config.finetune)
        bank.save(folder / "gates.json")
        open_heads, soft = bank.open(), bank.values()
        expected = bank.open_prob().sum()
        if "l0-soft" in config.systems:
            folder.add_system("l0-soft", folder / "best.pt", soft.to_json())
            nonzero = soft.map(lambda row: row > 0)
            evaluation.add("l0-soft", translator, nonzero, expected_open_heads=expected, stage=result.to_json())
        detach(translator.model)
        exact = open_heads.map(lambda row: row.double())
        attach(translator.model, gate="mask", kinds=config.kinds, xi=open_heads)
        if "l0-soft" in config.systems and soft.map(lambda row: row.double()) == exact:
            evaluation.repeat("l0", "l0-soft", folder / "best.pt", exact, because="all gates are exactly 0 or 1")
        else:
            folder.add_system("l0", folder / "best.pt", exact.to_json())
            evaluation.add("l0", translator, open_heads, expected_open_heads=expected, stage=result.to_json())
        evaluation.warn_about_binarising()
        if "l0-removed" in config.systems:
            self.removed(folder, translator, open_heads, evaluation)

        for name, rows in wanted(config.systems).items():
            if continued is not None and open_heads.count() == open_heads.heads_total:
                for row in rows:
                    other, run = ("base", base) if row == name else ("base-continued", continued)
                    evaluation.repeat(row, other, run / "best.pt", because="no head is closed")
            else:
                self.selected(name, rows, folder, base, keep=open_heads.count(), evaluation=evaluation)
        self.write_result(folder, evaluation.rows, system="l0", reference=evaluation.reference, finished=True)
        self.page(folder)
        self.tracker.finish(self.material.test)
        return folder

    def removed(self, folder: RunFolder, translator: Translator, open_heads: HeadMap, evaluation: Evaluation) -> None:
        """The gated model without its closed heads, saved, and translating what the masked one translates."""
        if open_heads.count() == open_heads.heads_total:
            evaluation.repeat("l0-removed", "l0", folder / "best.pt", because="no head is closed")
            return
        detach(translator.model)
        remove(translator.model, ~open_heads)
        save_model(folder / "l0-removed.pt", translator.model)
        folder.add_system("l0-removed", folder / "l0-removed.pt", None)
        row = evaluation.add("l0-removed", translator, heads_left(translator.model))
        row["lines_unlike_l0"] = evaluation.differing("l0-removed", "l0")
        if row["lines_unlike_l0"]:
            lines = f"{row['lines_unlike_l0']} of {len(self.material.test[0])} lines"
            say(f"l0-removed: {lines} are not l0's: sums in another order, at near ties")

    def selected(self, name: str, rows: list[str], folder: RunFolder, base: RunFolder, *, keep: int, evaluation: Evaluation) -> None:
        """Close all but `keep` of the gated kinds' heads on the base, lowest scores first; then fine-tune as long as the gates were."""
        config, selector = self.config, SELECTORS[name]
        scores = selector.scores(self.material, base).select(config.kinds)
        closed = lowest_closed(scores, keep=keep, l2_per_layer=selector.l2)
        folder.write_json(f"scores/{selector.file}.json", scores.to_json())
        xi = (~closed).map(lambda row: row.double())
        translator = self.material.load(base)
        attach(translator.model, gate="mask", kinds=config.kinds, xi=xi)
        if name in rows:
            folder.add_system(name, base / "best.pt", xi.to_json())
            evaluation.add(name, translator, ~closed)
        if (row := name + FINETUNED) in rows:
            if config.freeze_decoder:
                freeze_decoder(translator.model)
            module = self.plain(translator, config.finetune, offset=selector.seed)
            result = self.train(row, module, folder, config.finetune, prefix=f"{row}-")
            (folder / f"{row}-last.pt").unlink(missing_ok=True)
            folder.add_system(row, folder / result.weights, xi.to_json())
            evaluation.add(row, translator, ~closed, stage=result.to_json())

    # ---------------------------------------------------------------- parts

    def claim(self, name: str, identity: dict[str, Any], **how: Any) -> tuple[RunFolder, bool]:
        return claim(self.config, name, identity, facts=self.facts, locks=self.locks, **how)

    def hash_of(self, base: RunFolder) -> str:
        return str(run_hash(base))

    def dynamics(self, folder: RunFolder) -> list[pl.Callback]:
        """What prunes the base while it trains, where it is asked for."""
        config = self.config
        if not config.dynamics:
            return []
        data = self.material.first(config.dynamics_sentences, folder)
        batches = partial(self.material.importance_batches, config.dynamics_sentences, folder)
        numbers = data.split("valid").numbers[: config.dynamics_valid_sentences or None]  # the pairs that are validated
        valid = ([self.material.corpus.valid.sources[i] for i in numbers], [self.material.corpus.valid.targets[i] for i in numbers])
        facts = {"train_sentences": len(data.train_pairs), "text_digest": self.material.corpus.digest(), **self.facts}
        return [Dynamics(folder, config.dynamics, batches=batches, valid=valid, facts=facts)]

    def stage_seed(self, offset: int) -> int:
        return self.config.seed * 10 + offset

    def plain(self, translator: Translator, stage: StageConfig, *, offset: int) -> TranslationModule:
        return TranslationModule(translator, stage, seed=self.stage_seed(offset), sample=self.material.sample(stage))

    def train(
        self,
        name: str,
        module: TranslationModule,
        folder: RunFolder,
        stage: StageConfig,
        *,
        prefix: str = "",
        watchers: Sequence[pl.Callback] = (),
    ) -> StageResult:
        """The stage's result; a stage whose end is on disk is not run again."""
        record = folder / f"{prefix}stage.json"
        if record.is_file():
            result = StageResult(**folder.read_json(record.name))
            load_best(module, folder, result.weights)
            module.model.to(best_device())
            return result
        data = self.material.data(folder)
        data.accumulate = stage.accumulate
        # a new optimiser and a new order of batches: the seed of the stage, not of the base again
        data.seed = module.seed
        arguments: dict[str, Any] = {"prefix": prefix, "resume": self.config.resume, "loggers": self.tracker.loggers(name)}
        watchers = [*watchers, *self.tracker.watchers(name)]
        result = run_stage(name, module, data, folder, self.machine, stage, watchers=watchers, **arguments)
        module.model.to(best_device())  # the trainer leaves it on the CPU
        folder.write_json(record.name, result.to_json())
        end = "converged" if result.converged else "not converged"
        say(
            f"{name}: best epoch {result.best_epoch + 1} of {result.epochs}, "
            f"validation loss {result.losses[result.best_epoch]:.4f} ({end}), "
            f"{minutes(result.seconds)} of training, {result.tokens_per_second:,.0f} target tokens/s"
        )
        return result

    def finish_plain(self, folder: RunFolder, system: str, translator: Translator, result: StageResult) -> None:
        """Evaluate a model without gates and close its run."""
        evaluation = Evaluation(folder, self.material.test, self.config.search)
        evaluation.add(system, translator, None, stage=result.to_json())
        evaluation.choose_reference()
        self.write_result(folder, evaluation.rows, system=system, reference=evaluation.reference, finished=True)
        self.locks.release()  # others may now build on it
        if system == "base":
            self.page(folder)
        self.tracker.finish(self.material.test)

    def page(self, folder: RunFolder) -> None:
        """The report page of a run that has just finished, and of its base."""
        fill(folder, say, data_dir=self.config.data_dir, corpus=self.material.corpus)

    def write_result(self, folder: RunFolder, rows: list[dict[str, Any]], **extra: Any) -> None:
        folder.write_json("result.json", {"rows": rows, **extra, **self.facts, "data": self.material.about(folder)})
