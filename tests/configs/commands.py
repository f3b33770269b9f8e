"""What the commands take."""

from importlib import import_module
from types import ModuleType

import pytest

from headgates.__main__ import COMMANDS


def options_of(command: str) -> list[type]:
    """The option classes that a command parses, as its main() hands them to `start`."""
    module: ModuleType = import_module(f"headgates.commands.{command}")
    found: list[type] = []

    def caught(_: str, options: type, *rest: object, **how: object) -> int:
        found.append(options)
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "start", caught)
        module.main()
    return found


EVERY = [pytest.param(command, id=command) for command in COMMANDS]
