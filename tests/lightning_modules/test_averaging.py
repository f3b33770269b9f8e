"""The running average of the weights against a slow loop."""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
import torch

from headgates.lightning_modules.stage_callback import StageCallback, Watcher
from tests.lightning_modules.stages import GATES, STAGE, equal, train


class Trace(Watcher):
    """Copies of the weights after every optimiser step, while they are validated and after."""

    def __init__(self):
        self.seen = defaultdict(list)

    def see(self, when, module):
        self.seen[when].append({name: p.detach().clone() for name, p in module.model.named_parameters()})

    def on_train_start(self, trainer, module):
        self.see("start", module)
        (self.average,) = (each.average for each in trainer.callbacks if isinstance(each, StageCallback))

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step > len(self.seen["steps"]):
            self.see("steps", module)

    def on_validation_batch_start(self, trainer, module, batch, index, *_):
        if index == 0:
            self.see("validated", module)

    def on_validated(self, trainer, module):
        self.see("watched", module)

    def on_train_epoch_end(self, trainer, module):
        self.see("after", module)


@pytest.fixture
def traced(translator, data, tmp_path):
    trace = Trace()
    stage = replace(STAGE, epochs=2, accumulate=3)
    train(translator, data, tmp_path, gates=replace(GATES, settle=0.0), stage=stage, watchers=[trace])
    return trace.seen, trace.average.average, data.sampler().steps


def loop(seen, upto):
    (average,) = seen["start"]
    for step, weights in enumerate(seen["steps"][:upto], start=1):
        decay = min(0.8, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in weights}
    return average


def test_the_average_is_that_of_a_slow_loop_is_validated_and_watched_and_training_goes_on_without(traced):
    seen, average, steps = traced
    assert len(seen["steps"]) == 2 * steps
    for epoch in (0, 1):
        expected = loop(seen, (epoch + 1) * steps)
        for name, when in product(average, ("validated", "watched")):
            torch.testing.assert_close(seen[when][epoch][name], expected[name], rtol=1e-5, atol=1e-6)
    assert equal(seen["after"][0], seen["steps"][steps - 1])
    assert not any(torch.equal(seen["after"][1][name], average[name]) for name in average)


def test_gates_are_never_averaged(traced):
    seen, average, steps = traced
    gates = seen["start"][0].keys() - average.keys()
    assert [name.split(".")[0] for name in gates] == ["head_gates"] * 3
    for name in gates:
        assert torch.equal(seen["validated"][0][name], seen["steps"][steps - 1][name])
        assert not torch.equal(seen["steps"][-1][name], seen["start"][0][name])
