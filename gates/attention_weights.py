"""What the attentions of any model give of their weights, in each of their runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from .headmap import HeadSite


@contextmanager
def weights_of_runs(modules: Mapping[HeadSite, nn.Module]) -> Iterator[dict[HeadSite, list[Tensor]]]:
    """Filled meanwhile with the attention weights (B, H, L, S) that these modules give, of each of their
    runs: a layer may run several times in a pass (ALBERT). Nothing of a module that gives none."""
    found: dict[HeadSite, list[Tensor]] = {site: [] for site in modules}

    def ask(module: nn.Module, inputs: Any, options: dict[str, Any]) -> Any:
        if isinstance(module, nn.MultiheadAttention):
            return inputs, options | {"need_weights": True, "average_attn_weights": False}
        return None

    def keep(site: HeadSite, _: nn.Module, __: Any, output: Any) -> None:
        # the last, as T5 gives a position bias of the same shape before them; None where they were not kept
        weights = output[-1] if isinstance(output, tuple) else None
        if isinstance(weights, Tensor) and weights.dim() == 4 and weights.shape[1] == site.heads:
            found[site].append(weights)

    handles = [module.register_forward_pre_hook(ask, with_kwargs=True) for module in modules.values()]
    handles += [module.register_forward_hook(partial(keep, site)) for site, module in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
