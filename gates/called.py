"""For a while every attention calls its output projection, so that hooks see what W_O reads.

`nn.MultiheadAttention` and fairseq's attention read `out_proj.weight` in fused functions. Their forward for
fewer heads than fill the width (the rule's `refit`) calls `out_proj`; with all heads it gives the same.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from .put_back import memory_of
from .refit import CALLS_OUT
from .rules import known_rule
from .torch_attention import padded


@contextmanager
def called(model: nn.Module) -> Iterator[None]:
    """Meanwhile the attentions of the model call W_O, but for those whose rule has no refit for them. W_O is
    the same parameter; the projections before it are others, with the same numbers.

    Hooks and gates that are put on within the context are to be taken off in it."""
    with ExitStack() as after:
        for module in [*model.modules()]:
            rule = known_rule(module)
            if rule is None or rule.mode != "weight" or rule.refit is None:
                continue
            try:
                changes = rule.refit(module)
            except ValueError:  # it cannot; who looks for the inputs of its W_O says that they are not seen
                continue
            after.callback(memory_of(module))
            for name, value in changes.items():
                setattr(module, name, value)
            setattr(module, CALLS_OUT, True)
            after.enter_context(padded(model, [module]))
        yield
