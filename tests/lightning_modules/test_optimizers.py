"""Muon beside AdamW: which weights each has, and that the two step, save and resume as one."""

from dataclasses import replace

import pytest
import torch

from headgates.configs.settings import Settings
from headgates.configs.stages import StageConfig
from headgates.gates import attach
from headgates.lightning_modules.optimizers import NEWTON_SCHULZ, Muon, make_optimizer
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


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_in_fp32_the_singular_values_of_a_step_are_those_of_the_iteration(shape):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(3)]
    before = [weight.detach().double() for weight in weights]
    for weight in weights:
        weight.grad = torch.randn(shape)
    group = {"params": weights, "lr": 0.1, "weight_decay": 0.0}
    optimizer = Muon([group], ns_steps=NEWTON_SCHULZ, dtype=torch.float32)
    optimizer.step()
    a, b, c = optimizer.param_groups[0]["ns_coefficients"]
    rate = 0.1 * max(1, shape[0] / shape[1]) ** 0.5
    for weight, old in zip(weights, before, strict=True):
        left, values, right = torch.linalg.svd(weight.grad.double(), full_matrices=False)
        values = values / values.norm()
        for _ in range(NEWTON_SCHULZ):
            values = a * values + b * values**3 + c * values**5
        step = left @ values.diag() @ right
        torch.testing.assert_close(weight.detach().double(), old - rate * step, rtol=0, atol=1e-6)


def dtype_of_muon(translator, data, folder, precision, monkeypatch):
    """In what a stage on this CPU makes its matrices orthogonal."""
    found = []
    monkeypatch.setattr(Muon, "step", lambda self, closure=None: found.append(self.dtype))
    train(untrained(translator), data, folder, stage=STAGE, machine=Settings(precision=precision))
    (dtype,) = set(found)
    return dtype


def test_a_cpu_multiplies_in_bf16_only_where_training_does(translator, data, tmp_path, monkeypatch):
    for precision, dtype in (("32", torch.float32), ("bf16", torch.bfloat16)):
        assert dtype_of_muon(translator, data, tmp_path / precision, precision, monkeypatch) == dtype


def test_a_resumed_stage_of_muon_is_bitwise_the_uninterrupted_one(translator, data, tmp_path, monkeypatch):
    stage = replace(STAGE, epochs=2, bleu_sentences=0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(untrained(translator), data, whole, stage=stage)
    cut_off(monkeypatch, 1, 3, untrained(translator), data, cut, stage=stage)
    train(untrained(translator), data, cut, stage=stage, resume=True)
    ours, theirs = (load_file(path / "best.pt")["model"] for path in (cut, whole))
    assert equal(ours, theirs)
