"""Muon beside AdamW: which weights each has, and that the two step, save and resume as one."""

from dataclasses import replace

import pytest
import torch

from headgates.configs.schema import StageConfig
from headgates.gates import attach
from headgates.lightning_modules.optimizers import NEWTON_SCHULZ, CombinedOptimizer, make_optimizer
from headgates.models.checkpoint import load_file
from tests.lightning_modules.stages import cut_off, equal, train, untrained

STAGE = StageConfig(epochs=1, optimizer="muon", lr=0.003, muon_lr=0.02, weight_decay=0.03)


@pytest.fixture
def groups(make_model):
    model = make_model(dropout=0.0)
    bank = attach(model, gate="l0")
    return model, bank.param_groups(lr=STAGE.lr, gate_lr=0.3, weight_decay=STAGE.weight_decay)


def test_muon_has_the_projections_and_feed_forward_matrices_and_adamw_everything_else_once(groups):
    model, param_groups = groups
    optimizer = make_optimizer(model, param_groups, STAGE)
    names = {parameter: name for name, parameter in model.named_parameters()}
    muon = {
        names[p] for group in optimizer.param_groups if group["lr"] == STAGE.muon_lr for p in group["params"]
    }
    others = [
        names[p] for group in optimizer.param_groups if group["lr"] != STAGE.muon_lr for p in group["params"]
    ]
    assert muon
    assert all(name.endswith(("proj.weight", "inner.weight", "outer.weight")) for name in muon)
    assert not any(name.endswith(("proj.weight", "inner.weight", "outer.weight")) for name in others)
    assert sorted([*muon, *others]) == sorted(names.values())
    assert {group["name"]: group["weight_decay"] for group in optimizer.param_groups} == {
        "model": 0.03,
        "gates": 0.0,
    }


def test_together_steps_as_the_two_alone_do_also_after_a_scheduler_changed_the_rates(make_model):
    def trained(apart: bool) -> list[torch.Tensor]:
        model = make_model(dropout=0.0)
        optimizer = make_optimizer(
            model,
            [{"params": list(model.parameters()), "lr": 0.003, "weight_decay": 0.03, "name": "model"}],
            STAGE,
        )
        assert isinstance(optimizer, CombinedOptimizer)
        parts = optimizer.optimizers if apart else [optimizer]
        if apart:
            options = [{}, {"ns_steps": NEWTON_SCHULZ}]
            parts = [
                type(part)(part.param_groups, **more)
                for part, more in zip(optimizer.optimizers, options, strict=False)
            ]
        schedulers = [torch.optim.lr_scheduler.LambdaLR(part, lambda step: 1 / (step + 1)) for part in parts]
        for step in range(3):
            torch.manual_seed(step)
            for part in parts:
                part.zero_grad()
            model(torch.randint(3, 19, (5, 7)), torch.randint(3, 19, (5, 3))).square().mean().backward()
            for part, scheduler in zip(parts, schedulers, strict=True):
                part.step()
                scheduler.step()
        return [p.detach() for p in model.parameters()]

    for ours, theirs in zip(trained(False), trained(True), strict=True):
        assert torch.equal(ours, theirs)


def test_a_resumed_stage_of_muon_is_bitwise_the_uninterrupted_one(translator, data, tmp_path, monkeypatch):
    stage = replace(STAGE, epochs=2, bleu_sentences=0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(untrained(translator), data, whole, stage=stage)
    cut_off(monkeypatch, 1, 3, untrained(translator), data, cut, stage=stage)
    train(untrained(translator), data, cut, stage=stage, resume=True)
    ours, theirs = (load_file(path / "best.pt")["model"] for path in (cut, whole))
    assert equal(ours, theirs)
