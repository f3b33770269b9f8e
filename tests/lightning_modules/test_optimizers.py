"""Muon beside AdamW: which weights each has, and that the two step, save and resume as one."""

from dataclasses import replace

import torch

from headgates.configs.stages import StageConfig
from headgates.gates import attach
from headgates.lightning_modules.optimizers import NEWTON_SCHULZ, make_optimizer
from headgates.models.checkpoint import load_file
from tests.lightning_modules.stages import cut_off, equal, train, untrained

STAGE = StageConfig(epochs=1, optimizer="muon", lr=0.003, muon_lr=0.02, weight_decay=0.03)


def test_muon_has_the_projections_and_feed_forward_matrices_and_adamw_everything_else_once(make_model):
    model = make_model(dropout=0.0)
    param_groups = attach(model, gate="l0").param_groups(lr=STAGE.lr, gate_lr=0.3, weight_decay=0.03)
    optimizer = make_optimizer(model, param_groups, STAGE)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = [(names[p], group["lr"]) for group in optimizer.param_groups for p in group["params"]]
    muon = {name for name, lr in found if lr == STAGE.muon_lr}
    assert muon == {n for n in names.values() if n.endswith(("proj.weight", "inner.weight", "outer.weight"))}
    assert sorted(name for name, _ in found) == sorted(names.values())
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"model": 0.03, "gates": 0.0}


def test_together_steps_as_the_two_alone_do_also_after_a_scheduler_changed_the_rates(make_model):
    def trained(apart: bool) -> list[torch.Tensor]:
        model = make_model(dropout=0.0)
        groups = [{"params": list(model.parameters()), "lr": 0.003, "weight_decay": 0.03}]
        optimizer = make_optimizer(model, groups, STAGE)
        parts = [optimizer]
        if apart:
            adamw, muon = (part.param_groups for part in optimizer.optimizers)
            parts = [torch.optim.AdamW(adamw), torch.optim.Muon(muon, ns_steps=NEWTON_SCHULZ)]
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

    assert equal(trained(False), trained(True))


def test_a_resumed_stage_of_muon_is_bitwise_the_uninterrupted_one(translator, data, tmp_path, monkeypatch):
    stage = replace(STAGE, epochs=2, bleu_sentences=0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(untrained(translator), data, whole, stage=stage)
    cut_off(monkeypatch, 1, 3, untrained(translator), data, cut, stage=stage)
    train(untrained(translator), data, cut, stage=stage, resume=True)
    ours, theirs = (load_file(path / "best.pt")["model"] for path in (cut, whole))
    assert equal(ours, theirs)
