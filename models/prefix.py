"""The loss of one text under many changes of one layer: what lies before that layer is computed once.

    kept = KeptStates(model, batches, lambda batch: task.loss(model, batch))
    with kept.before("decoder", 3):
        ...                          # encode and decode begin at decoder layer 3, for these batches

A change in a layer of the encoder leaves the encoder layers before it as they are, one in the decoder the
whole encoder and the decoder layers before it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headgates.models.transformer import Transformer


class KeptStates:
    """The inputs of all layers, and the memory, of some batches.

    batches: with `source` and `target_in` on the model's device. run: makes one pass over a batch, by
    `Transformer.encode` and `decode`."""

    def __init__(self, model: Transformer, batches: Iterable[Any], run: Callable[[Any], object]):
        self.model, self.inputs, self.encoded = model, dict[tuple[int, str, int], Tensor](), dict[int, Any]()
        self.sources: list[Tensor] = []  # held, so that no other tensor takes their place in memory
        encode = model.encode
        with ExitStack() as stack, torch.no_grad():
            for name in ("encoder", "decoder"):
                for number, layer in enumerate(getattr(model, name).layers):
                    hook = layer.register_forward_pre_hook(partial(self.keep, name, number))
                    stack.callback(hook.remove)
            for batch in batches:
                self.sources.append(batch.source)
                self.now = id(batch.source)
                self.encoded[self.now] = encode(batch.source)
                run(batch)

    def keep(self, stack: str, number: int, _: object, inputs: tuple[Tensor, ...]) -> None:
        self.inputs[self.now, stack, number] = inputs[0].detach()

    @contextmanager
    def before(self, stack: str, layer: int) -> Iterator[None]:
        """Meanwhile the model's passes over the kept batches begin at this layer; over others they are
        whole."""
        model, plain = self.model, (self.model.encode, self.model.decode)

        def encode(source: Tensor, weights: Any = None) -> tuple[Tensor, Tensor]:
            self.now = id(source)
            if self.now not in self.encoded:
                return plain[0](source, weights)
            memory, bias = self.encoded[self.now]
            if stack == "encoder":
                memory = model.encoder(self.inputs[self.now, stack, layer], bias, first=layer)
            return memory, bias

        def decode(memory: Tensor, bias: Tensor, target_in: Tensor, weights: Any = None) -> Tensor:
            if stack == "encoder" or self.now not in self.encoded:
                return plain[1](memory, bias, target_in, weights)
            states: Tensor = model.decoder(self.inputs[self.now, stack, layer], memory, bias, first=layer)
            return states

        ours: Any = model
        ours.encode, ours.decode = encode, decode
        try:
            yield
        finally:
            del ours.encode, ours.decode
