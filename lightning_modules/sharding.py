"""`--strategy fsdp`: each process keeps and updates its share of the weights, with their gradients, Adam's
state and the running average (ZeRO, stage 3, Rajbhandari et al. 2020, arXiv:1910.02054, as torch's FSDP2).

What trains is a sharded twin of the module's model. The model itself stays as it is, whole, on the CPU:
validations, outputs, decisions and files read it, and the twin's weights are gathered into it before they do.
Gates are the same in both, and whole.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from headgates.data.ranks import all_sum, world
from headgates.gates import GateBank
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.sharded_tensors import like, whole_tensor


class ShardedTwin(nn.Module):
    """A copy of a model, on the mesh's device, whose weights are shared out: each process has its rows of
    every one."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh):
        super().__init__()
        self.model = copy.deepcopy(model, {id(gate): gate for gate in gates_in(model)})
        whole = {parameter for gate in gates_in(model) for parameter in gate.parameters()}
        for layer in outermost_layers(self.model):  # the whole weights of one are there at a time
            fully_shard(layer, mesh=mesh, ignored_params=whole)
        fully_shard(self, mesh=mesh, ignored_params=whole)

    def forward(self, work: Callable[..., Tensor], *arguments: Any) -> Tensor:
        """work(model, *arguments): what is no layer, embeddings for one, is whole throughout."""
        return work(self.model, *arguments)


class Sharded(DDPStrategy):
    """Lightning's strategy of many processes, with a sharded twin in place of a model of whole copies.
    Checkpoints are those of DDP."""

    def model_to_device(self) -> None:
        self.whole.cpu()  # the twin's weights go to the device one layer after the other
        self.twin = ShardedTwin(self.whole, init_device_mesh(self.root_device.type, (world(),)))
        self.stage.twin = [self.twin]
        super().model_to_device()
        move(self.whole, torch.device("cpu"))

    def configure_ddp(self) -> None:
        """Nothing: FSDP sums gradients."""

    @property
    def stage(self) -> StageModule:
        assert isinstance(self.lightning_module, StageModule)
        return self.lightning_module

    @property
    def whole(self) -> Any:
        return self.stage.model

    def pairs(self) -> Iterator[tuple[Tensor, DTensor]]:
        """Each whole weight and its shards."""
        for weight, shards in zip(self.whole.parameters(), self.twin.model.parameters(), strict=True):
            if isinstance(shards, DTensor):
                yield weight, shards

    @torch.no_grad()
    def gather(self) -> None:
        for weight, shards in self.pairs():
            weight.copy_(shards.full_tensor())

    def post_backward(self, closure_loss: Tensor) -> None:
        # FSDP leaves out what is whole; sums of earlier micro-batches are equal on all ranks, and stay so
        for parameter in (p for gate in gates_in(self.whole) for p in gate.parameters()):
            if parameter.grad is not None:
                parameter.grad.copy_(all_sum(parameter.grad) / world())

    def on_validation_start(self) -> None:
        move(self.whole, self.root_device)
        self.gather()

    def on_validation_end(self) -> None:
        move(self.whole, torch.device("cpu"))

    def lightning_module_state_dict(self) -> dict[str, Any]:
        self.gather()
        return super().lightning_module_state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        super().save_checkpoint(tree_map_only(DTensor, whole_tensor, checkpoint), filepath, storage_options)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            for number, state in saved["state"].items():
                weight = weights[number]
                saved["state"][number] = {
                    name: like(value, weight) if value.shape == weight.shape else value
                    for name, value in state.items()
                }
        super().load_optimizer_state_dict(checkpoint)

    def teardown(self) -> None:
        self.stage.twin.clear()
        self._reset_optimizers_and_schedulers()  # or their shards would go to the CPU
        super().teardown()


def gates_in(model: nn.Module) -> list[nn.Module]:
    bank = getattr(model, "head_gates", None)
    return [gate for _, gate in bank.items()] if isinstance(bank, GateBank) else []


def outermost_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of all stacks, outermost ones."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [layer for child in model.children() for layer in outermost_layers(child)]


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model's own tensors. Its gates stay where they train."""
    gates = {tensor for gate in gates_in(model) for tensor in (*gate.parameters(), *gate.buffers())}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor not in gates:
            tensor.data = tensor.data.to(device)
