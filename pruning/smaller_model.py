"""The smaller model that people train in place of pruning: fewer decoder layers, or a smaller width in all
layers. A deep encoder before a shallow decoder is known to be the better shape of those that are as fast
(Kasai et al. 2021)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from headgates.configs.settings import ModelConfig

WIDTH_SHARES = (1.0, 0.75, 0.5, 0.375, 0.25)  # of the width


def narrower(model: ModelConfig) -> Iterator[ModelConfig]:
    """The model with each share of its widths, the widest first; its heads stay as wide."""
    head = model.d_model // model.heads
    seen: set[int] = set()
    for share in WIDTH_SHARES:
        heads = max(1, round(share * model.heads))
        if heads not in seen:
            seen.add(heads)
            yield replace(model, d_model=head * heads, ffn=round(share * model.ffn), heads=heads)


def largest_model(
    model: ModelConfig, cost: Callable[[ModelConfig], float], budget: float
) -> tuple[ModelConfig, float]:
    """The one of most weights whose cost is within the budget, and its cost. Raises ValueError where none
    is."""
    best: tuple[int, float, ModelConfig] | None = None
    for narrow in narrower(model):
        low, high = 0, narrow.decoder_layers  # the most layers that fit are at least low, at most high
        costs: dict[int, float] = {}
        while low < high:
            layers = (low + high + 1) // 2
            costs[layers] = cost(replace(narrow, decoder_layers=layers))
            low, high = (layers, high) if costs[layers] <= budget else (low, layers - 1)
        if low:
            shape = replace(narrow, decoder_layers=low)
            if best is None or matrix_numbers(shape) > best[0]:
                best = matrix_numbers(shape), costs[low], shape
    if best is None:
        raise ValueError(
            f"no smaller model is as fast: with a quarter of the width and one decoder layer it still costs "
            f"more than {budget:.3g} milliseconds a sentence; ask for less"
        )
    return best[2], best[1]


def matrix_numbers(model: ModelConfig) -> int:
    """Numbers in the matrices of all layers."""
    square, feed = model.d_model**2, 2 * model.d_model * model.ffn
    return model.encoder_layers * (4 * square + feed) + model.decoder_layers * (8 * square + feed)
