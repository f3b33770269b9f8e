"""Learning from the unpruned model too: (1 - w) the task's loss + w T^2 KL(dense || this) at temperature T.
Hinton et al. 2015
(arXiv:1503.02531), token by token; what a model without some of its heads is helped by."""

from typing import Any

from torch import Tensor

from headgates.configs.stages import DistillConfig
from headgates.tasks.base import Task


class Distilling:
    """A teacher, a model of the same task that is not trained, and how much of the loss is its."""

    def __init__(self, teacher: Any, config: DistillConfig):
        self.teacher = teacher.eval().requires_grad_(False)
        self.config = config

    def loss(self, task: Task, model: Any, batch: Any, *, smoothing: float) -> Tensor:
        """Nats, summed over the batch's units: a scalar with a gradient for the model alone."""
        self.teacher.to(batch.source.device)
        return task.distilled_loss(model, self.teacher, batch, smoothing=smoothing, distill=self.config)
