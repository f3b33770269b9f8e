"""Optimal ablation: a closed head outputs the constant that costs least.   Li & Janson 2024
(arXiv:2409.09951), section 2.

    a* = argmin over a of E_x[L(x; z_h = a_h for all closed heads h)],   b += W_closed a*

z_h is head h's slice of the input of W_O, and a_h the same at all positions. Zero and mean ablation are two
choices of a, and so cost at least as much on the text on which a* is fitted. Constants go into W_O's bias,
which removal and export keep.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Loss, batch_loss, frozen, shared, summed
from headgates.gates import HeadMap, fold_mean
from headgates.gates.gram import Ranks
from headgates.gates.on_device import on_device
from headgates.gates.outputs import closing_outputs
from headgates.gates.site_walk import Forward, QueryPositions

SOLVER_STEPS = 20  # of L-BFGS: each is a pass back through the text or a few


def fold_optimal(
    model: nn.Module,
    closed: HeadMap,
    batches: Iterable[Any],
    forward: Forward,
    *,
    loss: Loss = batch_loss,
    positions: QueryPositions | None = None,
    ranks: Ranks | None = None,
    steps: int = SOLVER_STEPS,
) -> None:
    """Zero the columns of the closed heads, and put the constants of least loss into the biases, in place.

    batches: read several times. loss (model, batch): a sum over the batch's sentences. The search starts at
    the mean and keeps the best it has met, the mean and zero among them. Other arguments and errors are those
    of `fold_mean`."""
    outputs = closing_outputs(model, closed)
    if not outputs:
        return
    columns = [(each.weight[:, ~each.kept].double(), each.out) for each in outputs.values()]  # (D, P)
    zero = [out.bias.detach().clone() for _, out in columns if out.bias is not None]
    fold_mean(model, closed, batches, forward, positions=positions, ranks=ranks)  # refuses one without a bias
    biases = [out.bias for _, out in columns]
    mean = [bias.detach().clone() for bias in biases]
    device = biases[0].device
    inputs = [w.shape[1] for w, _ in columns]
    a = torch.zeros(sum(inputs), dtype=torch.float64, device=device)  # beyond the mean
    best: tuple[float, list[Tensor]] = (float("inf"), mean)

    def cost(given: list[Tensor]) -> tuple[float, list[Tensor]]:
        """The text's loss with these biases and its gradients to them; the best ones are kept."""
        nonlocal best
        with torch.no_grad():
            for bias, values in zip(biases, given, strict=True):
                bias.copy_(values)
        total = torch.zeros((), dtype=torch.float64)
        slopes = [torch.zeros_like(bias, dtype=torch.float64) for bias in biases]
        for batch in shared(batches, ranks):
            with torch.enable_grad():
                value = loss(model, on_device(batch, device))
            for slope, each in zip(slopes, torch.autograd.grad(value, biases), strict=True):
                slope += each.double()
            total += value.detach().double().cpu()
        cost = float(summed(total, ranks))
        if cost < best[0]:
            best = cost, [bias.detach().clone() for bias in biases]
        return cost, [summed(slope, ranks) for slope in slopes]

    def closure() -> float:
        parts = a.detach().split(inputs)
        moved = [b.double() + w @ part for b, (w, _), part in zip(mean, columns, parts, strict=True)]
        value, slopes = cost([each.to(b) for each, b in zip(moved, mean, strict=True)])
        scale = 1 / first  # so that a step does not depend on the size of the text
        a.grad = scale * torch.cat([w.T @ slope for (w, _), slope in zip(columns, slopes, strict=True)])
        return scale * value

    with frozen(model):
        for bias in biases:
            bias.requires_grad_(True)
        try:
            cost(zero)
            first = max(cost(mean)[0], 1e-12)
            a.requires_grad_(True)
            search = torch.optim.LBFGS([a], max_iter=steps, line_search_fn="strong_wolfe")
            search.step(closure)
        finally:
            with torch.no_grad():
                for bias, values in zip(biases, best[1], strict=True):
                    bias.requires_grad_(False).copy_(values)  # `frozen` gives it back what it had
