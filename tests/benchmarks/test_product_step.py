"""The product's training step runs alone, past the step at which a row is logged."""

import torch

from benchmarks.product_step import product_step
from headgates.configs.stages import StageConfig
from headgates.data.batch import collate
from headgates.lightning_modules.module import LOG_EVERY

STAGE = StageConfig(lr=0.01, warmup_steps=3, bleu_sentences=0)


def test_the_loss_falls_over_steps_alone(make_model):
    batch = collate([([7, 5, 11], [5, 7]), ([8, 6], [18, 4, 9])], [0, 1], 7)
    step = product_step(make_model(), STAGE, "32")
    losses = [float(step(batch)) for _ in range(LOG_EVERY + 3)]
    assert losses[-1] < 0.8 * losses[0]
    assert torch.isfinite(torch.tensor(losses)).all()
