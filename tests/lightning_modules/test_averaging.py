"""The running average of the weights against a slow loop."""

from dataclasses import replace

import pytest
import torch

from headgates.lightning_modules.stage_callback import StageCallback, Watcher
from tests.lightning_modules.stages import GATES, STAGE, train


class Trace(Watcher):
    """Copies of the weights after every optimiser step, while they are validated and after."""

    def __init__(self):
        self.steps, self.validated, self.after, self.watched = [], [], [], []

    @staticmethod
    def copy(module):
        return {name: p.detach().clone() for name, p in module.model.named_parameters()}

    def on_train_start(self, trainer, module):
        self.start = self.copy(module)
        (callback,) = (each for each in trainer.callbacks if isinstance(each, StageCallback))
        self.average = callback.average

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > len(self.steps):
            self.steps.append(self.copy(module))

    def on_validation_batch_end(self, trainer, module, outputs, batch, index, *_):
        if index == 0:
            self.validated.append(self.copy(module))

    def on_validated(self, trainer, module):
        self.watched.append(self.copy(module))

    def on_train_epoch_end(self, trainer, module):
        self.after.append(self.copy(module))


@pytest.fixture
def traced(translator, data, tmp_path):
    trace = Trace()
    stage = replace(STAGE, epochs=2, accumulate=3)
    train(translator, data, tmp_path, gates=replace(GATES, settle=0.0), stage=stage, watchers=[trace])
    return trace, data.sampler().steps


def loop(trace, upto):
    average = dict(trace.start)
    for step, weights in enumerate(trace.steps[:upto], start=1):
        decay = min(0.8, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
    return average


def test_the_average_is_that_of_a_slow_loop_is_validated_and_watched_and_training_goes_on_without(traced):
    trace, steps = traced
    assert len(trace.steps) == 2 * steps
    average = trace.average.average
    for epoch in (0, 1):
        expected = loop(trace, (epoch + 1) * steps)
        for name in average:
            for seen in (trace.validated, trace.watched):
                torch.testing.assert_close(seen[epoch][name], expected[name], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(trace.after[0][name], trace.steps[steps - 1][name]) for name in average)
    assert not all(torch.equal(trace.after[1][name], average[name]) for name in average)


def test_gates_are_never_averaged(traced):
    trace, steps = traced
    gates = {name for name in trace.start if name.startswith("head_gates.")}
    assert len(gates) == 3
    assert not gates & set(trace.average.average)
    for name in gates:
        assert torch.equal(trace.validated[0][name], trace.steps[steps - 1][name])
        assert not torch.equal(trace.steps[-1][name], trace.start[name])
