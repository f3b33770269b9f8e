"""The optimisers of a stage and their rate: AdamW, or Muon for the hidden matrices with AdamW for all else.

Muon (Jordan et al. 2024) makes a matrix's momentum orthogonal before it steps along it. On the toy pair it
learns in five epochs what AdamW learns in seven. Embeddings, the output projection, biases, norms and gates
stay with AdamW, as its authors advise.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from headgates.configs.stages import StageConfig

# steps towards an orthogonal matrix; with torch's five a toy step took longer and the model learned no better
NEWTON_SCHULZ = 3


def inverse_sqrt(step: int, warmup: int) -> float:
    """The factor on the peak rate at an optimiser step counted from 0: linear up to 1 over `warmup` steps,
    then sqrt(warmup / step) (Vaswani et al. 2017, section 5.3)."""
    warmup = max(warmup, 1)
    return min((step + 1) / warmup, sqrt(warmup / (step + 1)))


def make_optimizer(
    model: nn.Module, groups: Sequence[dict[str, Any]], stage: StageConfig, *, bf16: bool = True
) -> Optimizer:
    """One optimiser over the groups ({"params", "lr", "weight_decay"}), in the stage's manner. bf16: whether
    products are fast in it here; on a CPU without them Muon's took three quarters of a step."""
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
        optimizers.append(
            Muon(hidden, ns_steps=NEWTON_SCHULZ, dtype=torch.bfloat16 if bf16 else torch.float32)
        )
    return CombinedOptimizer(optimizers)


class Muon(torch.optim.Muon):
    """torch's, with the matrices of one shape in one product: in bf16 the same weights bit for bit, in two
    thirds of the time on a CPU and by a twentieth of the kernels on a GPU, whose launches are most of such a
    step. dtype: what they are made orthogonal in."""

    def __init__(self, groups: Sequence[dict[str, Any]], *, ns_steps: int, dtype: torch.dtype):
        super().__init__(groups, ns_steps=ns_steps)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    shapes.setdefault(weight.shape, []).append(weight)
            for weights in shapes.values():
                self.step_alike(weights, group)

    def step_alike(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """One step of matrices (M, N) of one shape."""
        gradients: list[Any] = [weight.grad for weight in weights]
        momenta = []
        for weight in weights:
            state = self.state[weight]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(weight)
            momenta.append(state["momentum_buffer"])
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        steps = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"])).to(self.dtype)
        rows, columns = weights[0].shape
        rate = group["lr"] * sqrt(max(1.0, rows / columns))
        orthogonal = orthogonalised(steps, group["ns_coefficients"], group["ns_steps"], group["eps"])
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(orthogonal.float().unbind()), alpha=-rate)


def orthogonalised(
    matrices: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Near each of the matrices (B, M, N) one with orthogonal rows or columns, by Newton-Schulz iterations of
    fifth degree (Jordan et al. 2024)."""
    x = matrices
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    a, b, c = coefficients
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


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
