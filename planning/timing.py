"""How many times as fast a model is when parts of it are gone: both shapes of one model are run in turns.

The model changes its shape in place and back, so nothing is copied. A shape is some attributes of modules;
the weights of both are in memory meanwhile. One thread is timed by the CPU seconds of this process, which
other work on the machine hardly moves, several by the clock, and GPUs by the clock once all of them have
done what was asked.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.proof import memory_of
from headgates.gates.sites import device_of

ModelRun = Callable[[Any], object]  # uses the model once
TIMED_ROUNDS = 7  # in turns; fewer, at least 2, where all of them take longer than
TIMED_SECONDS = 6.0
SHORTEST_BLOCK = 0.02  # seconds of a timed block at least: a faster run repeats in it


class Timer:
    """Seconds of a run of a model, a measure of cost_table.py. Made before the model loses anything."""

    def __init__(self, model: nn.Module, run: ModelRun):
        self.run, self.device = run, device_of(model)
        devices = {each.device for each in model.parameters()}
        self.others = {each for each in devices if each.type not in ("cpu", "meta")}  # GPUs
        self.to_whole, self.repeats = memory_of(model), 1
        with evaluation_mode(model):
            self.seconds(model)  # warm-up
            self.whole = self.seconds(model)
            self.repeats = max(1, round(SHORTEST_BLOCK / max(self.whole, 1e-9)))
            self.rounds = max(
                2, min(TIMED_ROUNDS, round(TIMED_SECONDS / max(2 * self.repeats * self.whole, 1e-9)))
            )
            self.whole = median(self.seconds(model) for _ in range(self.rounds))

    @property
    def place(self) -> str:
        """Where it runs, in words."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        if self.others:
            return str(self.device)
        threads = torch.get_num_threads()
        return f"the CPU, {threads} thread{'s' * (threads > 1)}"

    def seconds(self, model: nn.Module) -> float:
        """Of one run, the mean of `repeats`."""
        by_cpu = torch.get_num_threads() == 1 and not self.others
        clock = time.process_time if by_cpu else time.perf_counter
        with torch.no_grad():
            self.wait()
            start = clock()
            for _ in range(self.repeats):
                self.run(model)
            self.wait()
            return (clock() - start) / self.repeats

    def wait(self) -> None:
        """Until every GPU has done what it was asked."""
        for device in self.others:
            torch.accelerator.synchronize(device)

    def speedups(self, model: nn.Module) -> list[float]:
        """How many times as fast as the whole the model is as it is now, in each round."""
        to_now, found = memory_of(model), list[float]()
        with evaluation_mode(model):
            try:
                self.seconds(model)  # warm-up
                for _ in range(self.rounds):
                    now = self.seconds(model)
                    self.to_whole()
                    model.eval()
                    found.append(self.seconds(model) / now)
                    to_now()
                    model.eval()
            finally:
                to_now()
        return found

    def __call__(self, model: nn.Module) -> float:
        """Seconds of a run of the model as it is now, beside those of the whole."""
        return self.whole / median(self.speedups(model))


def multiply_adds(run: ModelRun) -> Callable[[nn.Module], float]:
    """What counts the multiply-adds of one run, of attention scores by any kernel. Raises ValueError where
    none are counted."""

    def count(model: nn.Module) -> float:
        with (
            evaluation_mode(model),
            torch.no_grad(),
            without_fused_layers(),
            FlopCounterMode(display=False, custom_mapping=CPU_KERNEL) as counter,
        ):
            run(model)
        if not counter.get_total_flops():
            raise ValueError(
                "no multiply-adds are counted in a run of the model; give run=, a function (model) that uses "
                "it, or params= or speedup= in place of macs="
            )
        return counter.get_total_flops() / 2

    return count


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """nn.TransformerEncoder and nn.MultiheadAttention without their fused kernels, which nothing counts."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def attention_flops(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Of shapes (B, H, L, K), (B, G, S, K) and (B, G, S, V): two for each multiply-add of the scores and of
    the sums."""
    *rows, width = query
    return 2 * prod(rows) * key[-2] * (width + value[-1])


# torch counts the kernels of GPUs alone
CPU_KERNEL = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
