"""Whole tensors and their shards, of a model whose weights several processes share."""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from headgates.data.ranks import is_first


def like(tensor: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor, placed and shared out as a weight of its shape is."""
    if not isinstance(weight, DTensor):
        return tensor.to(weight.device)
    return distribute_tensor(
        tensor.detach(), weight.device_mesh, weight.placements, src_data_rank=None
    )  # each process has it all


def whole_tensor(tensor: DTensor) -> Tensor | None:
    """The whole tensor for the first process, which writes it."""
    whole = tensor.full_tensor()
    return whole.cpu() if is_first() else None
