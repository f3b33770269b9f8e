"""The optimisers of a stage and their rate: AdamW, or Muon for the hidden matrices with AdamW for all else.

Muon (Jordan et al. 2024) makes a matrix's momentum orthogonal before it steps along it. On the toy pair it
learns in five epochs what AdamW learns in seven. Embeddings, the output projection, biases, norms and gates
stay with AdamW, as its authors advise.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from headgates.configs.stages import StageConfig

# steps towards an orthogonal matrix; with torch's five a toy step took longer and the model learned no better
NEWTON_SCHULZ = 3


def inverse_sqrt(step: int, warmup: int) -> float:
    """The factor on the peak rate at an optimiser step counted from 0: linear up to 1 over `warmup` steps,
    then sqrt(warmup / step) (Vaswani et al. 2017, section 5.3)."""
    warmup = max(warmup, 1)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


def make_optimizer(model: nn.Module, groups: Sequence[dict[str, Any]], stage: StageConfig) -> Optimizer:
    """One optimiser over the groups ({"params", "lr", "weight_decay"}), in the stage's manner."""
    betas, eps = (0.9, 0.98), 1e-9
    if stage.optimizer == "adamw":
        return AdamW(groups, betas=betas, eps=eps, fused=True)
    matrices = {
        m.weight
        for m in model.modules()
        if isinstance(m, nn.Linear) and m is not getattr(model, "output", None)
    }

    def part(inside: bool) -> list[dict[str, Any]]:
        """The groups' matrices, or their other weights."""
        split = [{**g, "params": [p for p in g["params"] if (p in matrices) == inside]} for g in groups]
        return [group for group in split if group["params"]]

    optimizers: list[Optimizer] = [AdamW(part(False), betas=betas, eps=eps, fused=True)]
    if hidden := [{**group, "lr": stage.muon_lr} for group in part(True)]:
        optimizers.append(torch.optim.Muon(hidden, ns_steps=NEWTON_SCHULZ))
    return CombinedOptimizer(optimizers)


class CombinedOptimizer(Optimizer):
    """Several optimisers that step as one: schedulers and Lightning see all their groups."""

    def __init__(self, optimizers: Sequence[Optimizer]):
        self.optimizers = list(optimizers)
        # the same dictionaries: a rate that a scheduler changes reaches the optimiser itself
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["parts"], strict=True):
            optimizer.load_state_dict(state)
        # loading gives the optimisers new groups
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]


def freeze_decoder(model: nn.Module) -> None:
    """Voita et al.'s encoder-only experiment: what is trained is the encoder, the source embeddings and the
    gates. Embeddings that the decoder shares (tied ones) stay as they are, for with them the decoder would
    change."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.startswith(("encoder.", "source_embedding.", "source_positions.", "head_gates.")):
            parameter.requires_grad_(False)
