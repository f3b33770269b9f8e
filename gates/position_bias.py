"""T5's relative position bias: the first layer of a stack makes it for all layers, one column of an embedding
for each head.

Where layers keep different heads, each makes it anew from the same embedding and takes the columns of its own
heads. Letters: H heads of a layer, C columns left in the embedding, L query positions, S key positions.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

_OWN = "makes_its_own_bias"  # attribute of an attention that no longer takes the bias of the layer before


class OwnColumns:
    """Stands in for a layer's `compute_bias`: the bias that the stack's first layer makes, of some
    columns."""

    def __init__(self, first: nn.Module, columns: list[int]):
        self.first, self.columns = first, columns

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        """(1, H, L, S), or (1, 1, H, L, S) where positions lie in blocks."""
        bias: Tensor = cast(Any, type(self.first)).compute_bias(self.first, *args, **options)  # C for H
        return bias[..., self.columns, :, :]


def share_out_bias(bias: str, before: Mapping[nn.Module, Tensor], after: Mapping[nn.Module, Tensor]) -> None:
    """Let each layer of a stack take the bias of its own heads, after heads were removed, or before layers
    are.

    bias: the attribute that holds the embedding. before, after: the stack's attentions of one kind in the
    order of layers -> (H at first) bool, the heads that each had and has; those of dropped layers are missing
    in `after`. The first of those makes the bias. The embedding keeps the columns of all heads that some
    layer has."""
    maker, first = next(iter(before)), next(iter(after))
    had, has = heads_of_any(before), heads_of_any(after)
    uneven = any(not torch.equal(row, after[first]) for row in after.values())
    if (table := getattr(maker, bias, None)) is not None:  # cross-attention has none: its bias is zeros
        if has != had:
            old = table.weight
            index = torch.tensor([had.index(head) for head in has], device=old.device)
            table.weight = nn.Parameter(old.detach().index_select(1, index), requires_grad=old.requires_grad)
            table.embedding_dim = len(has)
        if first is not maker:
            vars(first).pop(bias, None)  # it read the maker's
            setattr(first, bias, table)
            cast(Any, first).has_relative_attention_bias = True
    for module in after:
        if not uneven and not hasattr(module, _OWN):
            continue
        if table is not None:
            own = [place for place, head in enumerate(has) if after[module][head]]
            cast(Any, module).compute_bias, cast(Any, module).has_relative_attention_bias = (
                OwnColumns(first, own),
                True,
            )
            # to read, as transformers does of an attention that makes its bias: the first layer owns it
            if module is not first:
                object.__setattr__(module, bias, table)
        if not hasattr(module, _OWN):
            setattr(module, _OWN, True)
            module.register_forward_pre_hook(without_bias, with_kwargs=True)


def heads_of_any(left: Mapping[nn.Module, Tensor]) -> list[int]:
    """The first numbers of the heads that at least one of the modules has, in order."""
    heads: list[int] = torch.stack([*left.values()]).any(0).nonzero().flatten().tolist()
    return heads


def without_bias(
    _: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, {**options, "position_bias": None}
