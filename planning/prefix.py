"""The loss of one text under many changes of one layer: what lies before that layer is computed once.

    kept = KeptOutputs(model, batches, loss)
    with kept.before("decoder", 3):
        text_loss(model, batches, loss)   # only decoder layer 3 and what follows it are computed

A change in a layer of the encoder leaves the encoder layers before it as they are, one in the decoder the
whole encoder and the decoder layers before it. These give what the last of them gave to the same batch, so
nothing is kept where something else reads what the layers give, such as a head on the outputs of all stages.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any

from torch import nn

from headgates.analysis.batches import Loss
from headgates.analysis.levels import text_loss
from headgates.gates.depth import STACKS, stacks_of
from headgates.gates.site_walk import replace_forward


class KeptOutputs:
    """What the layers before one of the layers of a model give, for some batches. Nothing is kept of a model
    whose layers lie in no list, run more than once in a pass, or are read by more than the next one."""

    def __init__(self, model: nn.Module, batches: Sequence[Any], loss: Loss):
        self.model, self.batches, self.loss = model, batches, loss
        stacks = stacks_of(model)
        if not stacks.keys() <= set(STACKS):  # which tower reads the outputs of which is not known
            stacks = {}
        self.stacks = {name: list(stack.layers) for name, stack in stacks.items()}
        self.reached, self.kept = dict[str, int](), dict[str, list[Any]]()

    @contextmanager
    def before(self, stack: str, layer: int) -> Iterator[None]:
        """Meanwhile passes over the batches, all of them in their order, begin at this layer."""
        self.reach(stack, layer)
        with self.given():
            yield

    @contextmanager
    def given(self) -> Iterator[None]:
        """The layers give what was kept."""
        with ExitStack() as after:
            for name, last in self.reached.items():
                for module in self.stacks[name][: last + 1]:
                    turn = cycle(self.kept[name])  # one batch after the other
                    replace_forward(module, lambda *_, turn=turn, **__: next(turn), after)
            yield

    def reach(self, stack: str, layer: int) -> None:
        """Keep what is needed before this layer, by one pass unless it is kept already."""
        names = list(self.stacks)
        before = names[: names.index(stack)] if stack in names else []
        wanted = {name: len(self.stacks[name]) - 1 for name in before}
        if stack in names and layer:
            wanted[stack] = layer - 1
        if wanted == self.reached:
            return
        self.reached, self.kept = wanted, {name: [] for name in wanted}
        with ExitStack() as after:
            for name, last in wanted.items():
                module, kept = self.stacks[name][last], self.kept[name]
                after.enter_context(
                    module.register_forward_hook(lambda *given, kept=kept: kept.append(given[-1]))
                )
            if not wanted:
                return
            whole = text_loss(self.model, self.batches, self.loss)
        once = all(len(each) == len(self.batches) for each in self.kept.values())
        if not (once and self.gives(whole)):
            self.stacks, self.reached, self.kept = {}, {}, {}

    def gives(self, whole: float) -> bool:
        """Whether the loss by what was kept is that of a whole pass."""
        try:
            with self.given():
                return math.isclose(text_loss(self.model, self.batches, self.loss), whole, rel_tol=1e-3)
        except Exception:  # of whatever kind: a layer's output has a shape that something else does not take
            return False
