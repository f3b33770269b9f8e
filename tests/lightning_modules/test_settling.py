"""The end of a gate stage's noise: at an epoch of its own, and the same after an interruption."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

from headgates.configs.stages import GateConfig
from headgates.gates import LambdaBudget, TargetBudget, attach
from headgates.lightning_modules.averaging import WeightAverage
from headgates.lightning_modules.gating import Gating
from headgates.models.checkpoint import load_file
from tests.lightning_modules.stages import STAGE, cut_off, equal, rows, train

DECIDED = GateConfig(settle=0.34, lr=0.3, lambda_warmup=2)
PLAIN = replace(STAGE, lr=0.003, warmup_steps=3)


def of_kind(kind, heads=6, **gates):
    """What `train` needs for gates with a number of heads."""
    torch.manual_seed(0)
    options = {"gate": kind, "target_heads": heads, **({"anneal_steps": 3} if kind == "subset" else {})}
    budget = TargetBudget(heads, 2) if kind == "l0" else LambdaBudget(0.0, 2)
    gates = replace(DECIDED, **gates)
    return {"gates": gates, "budget": budget, "stage": PLAIN, "options": options}


@pytest.mark.parametrize(("kind", "heads"), [("l0", 6), ("subset", 0)])
def test_a_stage_ends_with_the_number_of_heads_and_settles_in_time(translator, data, tmp_path, kind, heads):
    result, module = train(translator, data, tmp_path / "run", **of_kind(kind, heads))
    assert module.gate_bank.open().count() == heads
    assert result.stopped is None
    assert result.settled == 2 * data.sampler().steps
    assert module.gate_bank.loss(99).item() == 0
    history = [float(row["gates/open_heads"]) for row in rows(tmp_path / "run") if row["gates/open_heads"]]
    assert set(history[result.settled // 20 + 1 :]) == {heads}


@pytest.mark.parametrize(("kind", "settle"), [("subset", 0.67), ("l0", 0.34)])  # before the cut, and after
def test_a_resumed_stage_settles_as_an_uninterrupted_one(
    translator, data, tmp_path, monkeypatch, kind, settle
):
    def ran(path, run=train, **more):
        return run(copy.deepcopy(translator), data, tmp_path / path, **of_kind(kind, settle=settle), **more)

    whole, _ = ran("whole")
    ran("cut", partial(cut_off, monkeypatch, 1, 3))
    resumed, _ = ran("cut", resume=True)
    assert (resumed.losses, resumed.settled) == (whole.losses, whole.settled)
    left, right = (load_file(tmp_path / run / "last.pt") for run in ("whole", "cut"))
    assert equal(left["state_dict"], right["state_dict"])
    left, right = (each["callbacks"]["StageCallback"] for each in (left, right))
    assert all(equal(left[part], right[part]) for part in ("gating", "gates", "history", "average"))
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")


def test_the_average_begins_anew_where_the_noise_ends(translator, data, tmp_path, monkeypatch):
    begun, begin = [], WeightAverage.begin_anew

    def watched(self, module, step):
        before = self.begin
        begin(self, module, step)
        if self.begin != before:
            begun.append(step)
            assert equal(self.average, self.weights(module))

    monkeypatch.setattr(WeightAverage, "begin_anew", watched)
    result, _ = train(translator, data, tmp_path / "run", **of_kind("l0"))
    assert begun == [result.settled]


def test_a_stage_that_never_settles_keeps_no_weights_from_before_its_number_was_reached(model):
    aiming = Gating(replace(DECIDED, settle=0.0), attach(model, heads=6), epochs=3)
    aiming.budget.errors[""] = 1.5
    assert [aiming.eligible(epoch) for epoch in range(3)] == [False, False, True]
    aiming.budget.errors[""] = -0.9
    assert aiming.eligible(1)
