"""The optimisers of a stage: AdamW, or Muon for the hidden matrices with AdamW for all else.

Muon (Jordan et al. 2024) makes a matrix's momentum orthogonal before it steps along it. On the toy pair it learns in five epochs what
AdamW learns in seven. Embeddings, the output projection, biases, norms and gates stay with AdamW, as its authors advise.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from configs.schema import StageConfig

NEWTON_SCHULZ = 3  # steps towards an orthogonal matrix; with torch's five a toy step took longer and the model learned no better


def make_optimizer(model: nn.Module, groups: Sequence[dict[str, Any]], stage: StageConfig) -> Optimizer:
    """One optimiser over the groups ({"params", "lr", "weight_decay", "name"}), in the stage's manner."""
    betas, eps = (0.9, 0.98), 1e-9
    if stage.optimizer == "adamw":
        return AdamW(groups, betas=betas, eps=eps, fused=True)
    matrices = {each.weight for each in model.modules() if isinstance(each, nn.Linear) and each is not getattr(model, "output", None)}
    rest, hidden = [], []
    for group in groups:
        rest.append({**group, "params": [p for p in group["params"] if p not in matrices]})
        hidden.append({**group, "params": [p for p in group["params"] if p in matrices], "lr": stage.muon_lr})
    parts: list[Optimizer] = [AdamW([group for group in rest if group["params"]], betas=betas, eps=eps, fused=True)]
    if hidden := [group for group in hidden if group["params"]]:
        parts.append(torch.optim.Muon(hidden, ns_steps=NEWTON_SCHULZ))
    return Together(parts)


class Together(Optimizer):
    """Several optimisers that step as one: schedulers and Lightning see all their groups."""

    def __init__(self, parts: Sequence[Optimizer]):
        self.parts = list(parts)
        super().__init__([group for part in parts for group in part.param_groups], {})  # the same dicts: a changed rate reaches the part

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        # loading gives the parts new groups
        self.param_groups = [group for part in self.parts for group in part.param_groups]
