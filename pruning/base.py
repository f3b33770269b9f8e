"""Bases: trained from text, or opened as a run names them, with the settings that what is made of them
takes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgates.configs.cli import flat, from_dict
from headgates.configs.settings import OF_THE_BASE, OF_THE_COMMAND, Settings
from headgates.configs.source import SourceOptions
from headgates.data.ranks import first
from headgates.lab.lab import Lab, Run
from headgates.lightning_modules.generators import seed_generators
from headgates.records.fingerprint import base_fingerprint
from headgates.records.folder import RunFolder
from headgates.records.foreign_source import is_foreign
from headgates.records.row import BASE
from headgates.records.source import find_run
from headgates.tasks.base import Predictor

if TYPE_CHECKING:
    from headgates.pruning.dynamics import Dynamics


def base_run(lab: Lab) -> RunFolder:
    """The base of the lab's settings: a finished run of the same text and settings, or one that is trained
    now."""
    settings, text = lab.settings, lab.text
    key = base_fingerprint(settings, text.corpus, lab.precision)
    with lab.run(f"{text.prefix}-none-s{settings.seed}", BASE, key) as run:
        if run.done:
            return run.folder
        first(lambda: lab.task.prepare_folder(run.folder.path, text.corpus, settings))
        text.data(run.folder)
        seed_generators(settings.seed)
        predictor = lab.task.new_predictor(run.folder.path, settings)
        result = run.train("base", predictor, settings.train, watchers=dynamics(run))
        add_base(run, predictor, result.to_json())
    return run.folder


def add_base(run: Run, predictor: Predictor, stage: Mapping[str, Any] | None) -> None:
    """Evaluate the base, the only row of its run."""
    evaluation = run.begin_rows(predictor)
    evaluation.add(BASE, run.folder / "best.pt", predictor, None, stage=stage)
    evaluation.choose_reference()
    run.finish(BASE)


def dynamics(run: Run) -> "list[Dynamics]":
    """The callback that prunes the base while it trains, or nothing without the setting."""
    settings, text = run.settings, run.text
    if not settings.dynamics:
        return []
    from headgates.pruning.dynamics import Dynamics  # with the trainer

    data = run.task.data(run.folder.path, text.corpus, text.settings, train_sentences=settings.sentences)
    pairs = text.corpus.valid.only(data.split("valid").numbers.tolist()).first(settings.test_sentences)
    valid = list(pairs.sources), list(pairs.targets)
    facts = {"train_sentences": len(data.train_pairs), "text_digest": text.corpus.digest()}
    facts |= run.lab.provenance(run.seed)
    return [Dynamics(run.folder, sorted(settings.dynamics), data, valid, facts)]


# ---------------------------------------------------------------- bases that are there


def open_base(source: str, options: SourceOptions) -> RunFolder:
    """The finished run that a SOURCE names, or that a model of another library becomes. Raises ValueError
    where there is none, or it has no text to be measured on."""
    if is_foreign(source) and options.data is None:
        raise ValueError(f"{source} has no text of its own: give --data, --src and --tgt")
    folder = first(lambda: find_run(source, options))  # which writes what a foreign model becomes
    folder.check_finished()
    return folder


UNLESS_SET = {"finetune.dropout": "model.dropout"}  # what is taken where the first is None


def settings_of(base: RunFolder, given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The settings of what is made of a base: its own, and what a command line gives (by dotted name). Also
    what was changed, in words. Raises ValueError at a setting that is the base's alone."""
    own = flat(base.config())
    changed = []
    for name, value in given.items():
        if name.split(".")[0] in OF_THE_BASE or name in ("text.vocab_size", "text.joint"):
            if own.get(name) != value:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{flag} {value} contradicts {base.path}, which has {own.get(name)}; leave {flag} out, "
                    "or train another base"
                )
        elif name not in OF_THE_COMMAND and own.get(name) != value:
            before = own.get(name)
            if before is None:
                other = UNLESS_SET.get(name)
                before = f"{other}, {own.get(other)}" if other else "not set"
            changed.append(f"{name} {value} (the base: {before})")
    plain = {name: getattr(Settings(), name) for name in OF_THE_COMMAND if name != "data_dir"}
    settings = from_dict(Settings, {**own, **plain, **given})
    its_ranks = own.get("devices", 1) * own.get("num_nodes", 1)
    if its_ranks != settings.ranks:  # as many batches a step, by however many processes
        at_once = settings.train.accumulate * its_ranks
        accumulate = max(1, at_once // settings.ranks)
        settings = replace(settings, train=replace(settings.train, accumulate=accumulate))
        if accumulate * settings.ranks != at_once:
            changed.append(f"{accumulate * settings.ranks} batches a step (the base: {at_once})")
    return settings, changed
