"""The end of a gate stage's noise: as soon as no decision changes, at a step of its own, and the same after
an interruption."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch

from headgates.configs.schema import GateConfig
from headgates.gates import LambdaBudget, TargetBudget
from headgates.lightning_modules.averaging import WeightAverage
from headgates.lightning_modules.gating import Gating
from headgates.models.checkpoint import load_file
from tests.lightning_modules.stages import STAGE, cut_off, equal, rows, train

DECIDED = GateConfig(settle=0.34, settle_when="decided", patience=4, lr=0.3, lambda_warmup=2)
PLAIN = replace(STAGE, lr=0.003, warmup_steps=3)


class Planted:
    """A bank whose decisions are planted: one list of 0 and 1 for every step."""

    def __init__(self, decisions):
        self.decisions, self.step, self.binarised = decisions, -1, False

    def follow(self, gating):
        """The number of steps taken when the gates became exact; None where they never did."""
        for step in range(1, len(self.decisions) + 1):
            self.step = step - 1
            gating.follow(self, step)
            if gating.is_binarised:
                return gating.binarised_step
        return None

    def open(self):
        return self

    closed = open

    def flat(self):
        return torch.tensor(self.decisions[self.step]).bool()

    def count(self):
        return self.decisions[self.step].count(0)

    def items(self):
        return []

    def binarise(self):
        self.binarised = True


def gating(targeted=False, **settings):
    return Gating(replace(DECIDED, **settings), LambdaBudget(0.1, 2), epochs=3, targeted=targeted)


A, B, ALL = [1, 0, 1], [0, 1, 1], [1, 1, 1]


@pytest.mark.parametrize(
    ("decisions", "settings", "expected"),
    [
        ([ALL, ALL, A, B, *[A] * 9], {}, 9),  # A from step 5 on, and four more without a change
        ([*[A] * 9], {}, 5),  # not counted before the price is whole, after two steps
        ([A, B] * 9, {}, None),
        ([ALL] * 30, {}, None),  # nothing is decided while no head is shut
        ([ALL] * 30, {"targeted": True}, 5),  # unless all were asked for
        ([*[A] * 30], {"settle_when": "share"}, None),
        ([*[A] * 30], {"settle": 0.0}, None),  # the paper's way
    ],
)
def test_gates_become_exact_when_no_planted_decision_has_changed_for_a_while(decisions, settings, expected):
    bank = Planted(decisions)
    assert bank.follow(gating(**settings)) == expected
    assert bank.binarised == (expected is not None)


def test_what_is_done_to_the_weights_is_done_once_with_the_exact_gates():
    calls, follower, bank = [], gating(), Planted([A] * 20)
    follower.at_settling = lambda bank: calls.append(bank.binarised)
    bank.follow(follower)
    follower.begin_epoch(bank, epoch=1, step=20)
    assert calls == [True]


def of_kind(kind, heads=6, **gates):
    """What `train` needs for gates with a number of heads."""
    torch.manual_seed(0)
    options = {"gate": kind, "target_heads": heads, **({"anneal_steps": 3} if kind == "subset" else {})}
    budget = TargetBudget(heads, 2) if kind == "l0" else LambdaBudget(0.0, 2)
    gates = replace(DECIDED, **gates)
    return {"gates": gates, "budget": budget, "targeted": True, "stage": PLAIN, "options": options}


@pytest.mark.parametrize(("kind", "heads"), [("l0", 6), ("subset", 0)])
def test_a_stage_ends_with_the_number_of_heads_and_settles_in_time(translator, data, tmp_path, kind, heads):
    result, module = train(translator, data, tmp_path / "run", **of_kind(kind, heads))
    assert module.gate_bank.open().count() == heads
    assert result.stopped is None
    assert 4 < result.settled <= 2 * data.sampler().steps  # at the latest at the share
    assert module.gating.penalty(module.gate_bank, step=99) is None
    history = [float(row["gates/open_heads"]) for row in rows(tmp_path / "run") if row["gates/open_heads"]]
    assert set(history[result.settled // 20 + 1 :]) == {heads}


@pytest.mark.parametrize(("kind", "patience"), [("subset", 4), ("l0", 40)])  # before the cut, and after
def test_a_resumed_stage_settles_as_an_uninterrupted_one(
    translator, data, tmp_path, monkeypatch, kind, patience
):
    def ran(path, run=train, **more):
        return run(
            copy.deepcopy(translator), data, tmp_path / path, **of_kind(kind, patience=patience), **more
        )

    whole, _ = ran("whole")
    ran("cut", partial(cut_off, monkeypatch, 1, 3))
    resumed, _ = ran("cut", resume=True)
    assert (resumed.losses, resumed.settled) == (whole.losses, whole.settled)
    left, right = (load_file(tmp_path / run / "last.pt") for run in ("whole", "cut"))
    assert equal(left["state_dict"], right["state_dict"])
    left, right = (each["callbacks"]["StageCallback"] for each in (left, right))
    assert all(equal(left[part], right[part]) for part in ("gating", "history", "average"))
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


def test_a_stage_that_never_settles_keeps_no_weights_from_before_its_number_was_reached():
    aiming = Gating(replace(DECIDED, settle=0.0), TargetBudget(6), epochs=3, targeted=True)
    aiming.budget.errors[""] = 1.5
    assert [aiming.eligible(epoch) for epoch in range(3)] == [False, False, True]
    aiming.budget.errors[""] = -0.9
    assert aiming.eligible(1)
