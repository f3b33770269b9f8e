"""The commands: each parses its settings, checks the paths that they name, and only then imports what takes
seconds."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C")

# A thread that waits for others looks again for a moment, and then sleeps. GNU's OpenMP, which torch has on
# Linux, looks for milliseconds by default, LLVM's and Intel's for 200, and beside a busy process they take
# the core that the others need. To sleep at once costs half of the speed of small products (LOG.md). The
# variables are read when torch is imported; the user's own stay.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # some 20 microseconds
os.environ.setdefault("KMP_BLOCKTIME", "1")  # milliseconds


def start(
    command: str,
    config_class: type[C],
    run: Callable[[C, dict[str, Any]], int | None],
    interrupted: str,
) -> int:
    """Read the settings of a command, run it, and return its exit code. run: takes the configuration, and
    what of it was given. interrupted: what is left after Ctrl-C."""
    from headgates.configs.program import program
    from headgates.lab.exit_code import exit_code

    prog = program(command)

    def parsed() -> int | None:
        # here: an interrupt while these are imported, which takes a second, is one line too
        from headgates.configs.cli import parse

        return run(*parse(config_class, prog=prog))

    return exit_code(prog.removeprefix("python "), parsed, interrupted=interrupted)
