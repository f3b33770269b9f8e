"""The running average of the weights against a slow loop."""

from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

from headgates.configs.schema import GateConfig, StageConfig
from headgates.gates import LambdaBudget, attach
from headgates.lightning_modules.averaging import AverageWeights
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.tasks.translation import Translation

STAGE = StageConfig(epochs=2, lr=0.01, warmup_steps=3, bleu_sentences=0)


class Trace(pl.Callback):
    """Copies of the weights after every optimiser step, in validation and after it."""

    def __init__(self):
        self.steps, self.validated, self.after = [], [], []

    @staticmethod
    def copy(module):
        return {name: p.detach().clone() for name, p in module.model.named_parameters()}

    def on_train_start(self, trainer, module):
        self.start = self.copy(module)

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > len(self.steps):
            self.steps.append(self.copy(module))

    def on_validation_batch_end(self, trainer, module, outputs, batch, index, *_):
        if index == 0:
            self.validated.append(self.copy(module))

    def on_train_epoch_end(self, trainer, module):
        self.after.append(self.copy(module))


@pytest.fixture(params=[1, 3], ids=["one batch a step", "three batches a step"])
def traced(request, translator, data, quiet_trainer):
    bank = attach(translator.model, gate="l0")
    gating = Gating(GateConfig(settle=0.0), LambdaBudget(0.1), epochs=STAGE.epochs)
    module = StageModule(
        Translation(), translator, replace(STAGE, accumulate=request.param), seed=1, gating=gating
    )
    data.accumulate = request.param
    trace, average = Trace(), AverageWeights(0.8)
    trainer = quiet_trainer(trace, average, max_epochs=2, accumulate_grad_batches=request.param)
    trainer.fit(module.train(), datamodule=data)
    return trace, average, bank, data.sampler().steps


def loop(trace, upto):
    average = dict(trace.start)
    for step, weights in enumerate(trace.steps[:upto], start=1):
        decay = min(0.8, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
    return average


def test_the_average_equals_a_slow_loop_over_the_optimiser_steps(traced):
    trace, average, _, steps = traced
    assert len(trace.steps) == 2 * steps
    expected = loop(trace, 2 * steps)
    for name, value in average.average.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def test_the_average_is_what_is_validated(traced):
    trace, average, _, steps = traced
    for epoch in (0, 1):
        expected = loop(trace, (epoch + 1) * steps)
        for name in average.average:
            torch.testing.assert_close(trace.validated[epoch][name], expected[name], rtol=1e-5, atol=1e-6)


def test_training_goes_on_from_the_weights_and_not_from_the_average(traced):
    trace, average, _, steps = traced
    for name in average.average:
        assert torch.equal(trace.after[0][name], trace.steps[steps - 1][name])
    assert not all(torch.equal(trace.after[1][name], average.average[name]) for name in average.average)


def test_gates_are_never_averaged(traced):
    trace, average, bank, steps = traced
    gates = [name for name in trace.start if name.startswith("head_gates.")]
    assert len(gates) == len(bank.sites) == 3
    assert not set(gates) & set(average.average)
    for name in gates:
        assert torch.equal(trace.validated[0][name], trace.steps[steps - 1][name])
        assert not torch.equal(trace.steps[-1][name], trace.start[name])


def test_the_state_survives_a_checkpoint(traced):
    _, average, _, _ = traced
    again = AverageWeights(0.8)
    again.load_state_dict(average.state_dict())
    assert again.step == average.step
    assert all(torch.equal(again.average[name], value) for name, value in average.average.items())


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=r"expected an averaging decay in \[0, 1\), got"):
        AverageWeights(decay)
