"""A model, or a part of it, is put back as it was."""

from collections.abc import Callable

from torch import nn


def memory_of(model: nn.Module) -> Callable[[], None]:
    """Puts every module's class, attributes, parameters and hooks back as they are now."""
    memory = [
        (
            module,
            type(module),
            dict(vars(module)),
            [(each, dict(each)) for each in vars(module).values() if isinstance(each, dict)],
        )
        for module in model.modules()
    ]

    def put_back() -> None:
        for module, cls, attributes, held in memory:
            module.__class__ = cls
            vars(module).clear()
            vars(module).update(attributes)
            for each, content in held:
                each.clear()
                each.update(content)

    return put_back
