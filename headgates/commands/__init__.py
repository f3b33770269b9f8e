"""The commands: each parses its settings, checks the paths that they name, and only then imports what takes
seconds."""

import os
from collections.abc import Callable
from typing import Any

# Threads that wait for others sleep. By default OpenMP's wait in a loop (GNU's, which torch has on Linux: up
# to milliseconds; LLVM's and Intel's: 200 ms), and beside a busy process they take the core that the others
# need. The variables are read when torch is imported; the user's own stay.
if "GOMP_SPINCOUNT" not in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")


def start(
    script: str, config_class: str, run: Callable[[Any], int | None], *, about: str | None, interrupted: str
) -> int:
    """Read the settings of a command, run it, and return its exit code. config_class: "module:name"; about:
    a docstring whose first line --help shows; interrupted: what is left after Ctrl-C."""
    from headgates.workbench.exit_code import exit_code

    def parsed() -> int | None:
        # here: an interrupt while these are imported, which takes a second, is one line too
        from headgates.configs.cli import parse
        from headgates.configs.registry import imported

        return run(parse(imported(config_class), prog=script, description=(about or "").split("\n")[0]))

    return exit_code(script, parsed, interrupted=interrupted)
