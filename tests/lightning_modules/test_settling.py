"""The end of a gate stage's noise: as soon as no decision changes, at a step of its own, and the same after
an interruption."""

import copy
import csv
from dataclasses import replace

import pytest
import torch

from headgates.configs.schema import GateConfig, StageConfig
from headgates.gates import LambdaBudget, TargetBudget, attach
from headgates.lightning_modules import averaging
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from headgates.models.checkpoint import load_file
from headgates.tasks.translation import Translation
from headgates.workbench.folder import RunFolder

MACHINE = Machine(devices=1, precision="32", logger="csv")
STAGE = StageConfig(epochs=3, lr=0.003, warmup_steps=3, bleu_sentences=0)
DECIDED = GateConfig(settle=0.34, settle_when="decided", patience=4, lr=0.3, lambda_warmup=2)


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

    def flat(self):
        return torch.tensor(self.decisions[self.step]).bool()

    def closed(self):
        return self

    def count(self):
        return self.decisions[self.step].count(0)

    def items(self):
        return []

    def binarise(self):
        self.binarised = True


def gating(**settings):
    told = settings.pop("told", False)
    return Gating(replace(DECIDED, **settings), LambdaBudget(0.1, 2), epochs=3, told=told)


A, B, ALL = [1, 0, 1], [0, 1, 1], [1, 1, 1]


@pytest.mark.parametrize(
    ("decisions", "settings", "expected"),
    [
        ([ALL, ALL, A, B, *[A] * 9], {}, 9),  # A from step 5 on, and four more without a change
        ([*[A] * 9], {}, 5),  # not counted before the price is whole, after two steps
        ([A, B] * 9, {}, None),
        ([*[A] * 4, B, *[A] * 7], {"patience": 4}, 10),
        ([ALL] * 30, {}, None),  # nothing is decided while no head is shut
        ([ALL] * 30, {"told": True}, 5),  # unless all were asked for
        ([*[A] * 30], {"settle_when": "share"}, None),
        ([*[A] * 30], {"settle": 0.0}, None),  # the paper's way
    ],
)
def test_gates_become_exact_when_no_planted_decision_has_changed_for_a_while(decisions, settings, expected):
    bank = Planted(decisions)
    assert bank.follow(gating(**settings)) == expected
    assert bank.binarised == (expected is not None)


def test_what_is_done_to_the_weights_is_done_once_with_the_exact_gates():
    calls = []
    follower = gating()
    follower.at_settling = lambda bank: calls.append(bank.binarised)
    bank = Planted([A] * 20)
    bank.follow(follower)
    follower.begin_epoch(bank, epoch=1, step=20)
    assert calls == [True]


def test_steps_are_counted_once_however_many_batches_they_have():
    bank, follower = Planted([A] * 20), gating()
    for step in range(1, 4):
        bank.step = step - 1
        for _ in range(7):
            follower.follow(bank, step)
    assert not follower.is_binarised


class PowerCut(Exception):
    pass


def stage(translator, data, path, *, kind="l0", resume=False, gates=DECIDED, heads=6, stage=STAGE):
    path.mkdir(exist_ok=True)
    torch.manual_seed(0)
    bank = attach(
        translator.model, gate=kind, open_heads=heads, **({"anneal_steps": 3} if kind == "subset" else {})
    )
    budget = (
        TargetBudget(heads, gates.lambda_warmup) if kind == "l0" else LambdaBudget(0.0, gates.lambda_warmup)
    )
    module = StageModule(
        Translation(), translator, stage, seed=1, gating=Gating(gates, budget, epochs=stage.epochs, told=True)
    )
    return run_stage("gates", module, data, RunFolder(path), MACHINE, stage, resume=resume), bank, module


def rows(path):
    with (path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["l0", "subset"])
def test_a_stage_that_settles_within_an_epoch_ends_with_the_number_of_heads(translator, data, tmp_path, kind):
    result, bank, module = stage(translator, data, tmp_path / "run", kind=kind)
    steps = data.sampler().steps
    assert bank.open().count() == 6
    assert result.settled is not None
    assert 4 < result.settled <= 2 * steps  # at the latest at the share
    assert (
        load_file(tmp_path / "run" / "last.pt")["callbacks"]["SettleGates"]["binarised_step"]
        == result.settled
    )
    assert module.gating.penalty(bank, step=99) is None
    history = [float(row["gates/open_heads"]) for row in rows(tmp_path / "run") if row["gates/open_heads"]]
    assert set(history[result.settled // 20 + 1 :]) == {6}


@pytest.mark.parametrize("kind", ["l0", "subset"])
@pytest.mark.parametrize("patience", [4, 40])
def test_a_resumed_stage_settles_as_an_uninterrupted_one_and_ends_with_the_same_weights(
    translator, data, tmp_path, monkeypatch, kind, patience
):
    gates = replace(DECIDED, patience=patience)  # before the cut, and after it
    whole, *_ = stage(copy.deepcopy(translator), data, tmp_path / "whole", kind=kind, gates=gates)
    step = StageModule.training_step

    def cut(self, batch, index):
        if (self.current_epoch, index) == (1, 3):
            raise PowerCut
        return step(self, batch, index)

    with monkeypatch.context() as patched:
        patched.setattr(StageModule, "training_step", cut)
        with pytest.raises(PowerCut):
            stage(copy.deepcopy(translator), data, tmp_path / "cut", kind=kind, gates=gates)
    resumed, *_ = stage(
        copy.deepcopy(translator), data, tmp_path / "cut", kind=kind, gates=gates, resume=True
    )
    assert (resumed.losses, resumed.settled, resumed.best_epoch) == (
        whole.losses,
        whole.settled,
        whole.best_epoch,
    )
    left, right = (load_file(tmp_path / run / "last.pt") for run in ("whole", "cut"))
    assert all(
        torch.equal(left["state_dict"][name], right["state_dict"][name]) for name in left["state_dict"]
    )
    assert left["callbacks"]["SettleGates"] == right["callbacks"]["SettleGates"]
    assert rows(tmp_path / "whole") == rows(tmp_path / "cut")


def test_the_average_begins_anew_where_the_noise_ends(translator, data, tmp_path, monkeypatch):
    begun = []
    start = averaging.AverageWeights.on_train_batch_start

    def watched(self, trainer, module, *rest):
        before = self.begin
        start(self, trainer, module, *rest)
        if self.begin != before:
            begun.append(trainer.global_step)
            assert all(
                torch.equal(self.average[name], weight) for name, weight in self.weights(module).items()
            )

    monkeypatch.setattr(averaging.AverageWeights, "on_train_batch_start", watched)
    result, *_ = stage(translator, data, tmp_path / "run")
    assert begun == [result.settled]


@pytest.mark.parametrize("heads", [0, 21])
@pytest.mark.parametrize("kind", ["l0", "subset"])
def test_none_and_all_heads_can_be_asked_for(translator, data, tmp_path, kind, heads):
    result, bank, _ = stage(
        translator, data, tmp_path / "run", kind=kind, heads=heads, stage=replace(STAGE, epochs=2)
    )
    assert bank.open().count() == heads
    assert result.stopped is None


def test_a_stage_that_aims_at_a_number_and_never_settles_keeps_no_weights_from_before_it_was_reached():
    aiming = Gating(replace(DECIDED, settle=0.0), TargetBudget(6), epochs=3, told=True)
    aiming.budget.errors[""] = 1.5
    assert [aiming.eligible(epoch) for epoch in range(3)] == [False, False, True]
    aiming.budget.errors[""] = -0.9
    assert aiming.eligible(1)
