"""Stages of the tiny translator, whole and cut off, and what they leave."""

import csv
import io
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

from headgates.configs.settings import Settings
from headgates.configs.stages import GateConfig, StageConfig
from headgates.gates import LambdaBudget, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import run_stage
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.records.folder import RunFolder
from headgates.tasks.translation import Translation

MACHINE = Settings(precision="32")
STAGE = StageConfig(epochs=3, optimizer="adamw", lr=0.01, warmup_steps=5, average=0.8, bleu_sentences=0)
GATES = GateConfig(lr=0.3, lambda_warmup=2)


class PowerCut(Exception):
    pass


def train(
    translator,
    data,
    path,
    *,
    gates=None,
    budget=None,
    options=None,
    watch_patience=None,
    stage=STAGE,
    machine=MACHINE,
    name="gates",
    task=None,
    resume=False,
    of_module=None,
    **of_run,
):
    """(result, module) of a stage. options: of the gate; of_module, of_run: StageModule's and run_stage's
    own."""
    path.mkdir(exist_ok=True)
    data.accumulate = stage.accumulate
    gating = None
    if gates is not None:
        bank = attach(translator.model, **{"gate": "l0"} | (options or {}))
        bank.budget = budget or LambdaBudget(0.1, gates.lambda_warmup)
        gating = Gating(gates, bank, epochs=stage.epochs)
    task = task or Translation()
    module = StageModule(task, translator, stage, seed=1, gating=gating, **of_module or {})
    if module.gates is not None:
        module.gates.watch.patience = watch_patience or module.gates.watch.patience
    settings = replace(machine, resume=resume)
    return run_stage(name, module, data, RunFolder(path), settings, **of_run), module


def cut_power(monkeypatch, *, epoch, batch, cut=None):
    """Training ends with PowerCut at this batch of this epoch (both from 0), or `cut` is called there."""
    step = StageModule.training_step

    def training_step(self, given, index):
        if (self.current_epoch, index) == (epoch, batch):
            if cut is None:
                raise PowerCut
            cut()
        return step(self, given, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)


def cut_off(monkeypatch, epoch, batch, *arguments, **options):
    """A stage that ends with PowerCut."""
    with monkeypatch.context() as patched:
        cut_power(patched, epoch=epoch, batch=batch)
        with pytest.raises(PowerCut):
            train(*arguments, **options)


def untrained(translator):
    """Always the same weights, and dropout."""
    pl.seed_everything(0, verbose=False)
    config = replace(translator.model.config, dropout=0.2, attention_dropout=0.2)
    model = Transformer(config, len(translator.source_vocab), len(translator.target_vocab))
    return Translator(model, translator.source_vocab, translator.target_vocab, translator.search)


def rows(path):
    """metrics.csv."""
    return list(csv.DictReader(io.StringIO((path / "metrics.csv").read_text())))


def equal(left, right):
    """Whether two nested states are the same, tensors bit by bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return left == right
