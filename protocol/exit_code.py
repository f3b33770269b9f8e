"""How the scripts end: with an exit code, and with one line on stderr where they cannot go on."""

import sys
from collections.abc import Callable


def exit_code(script: str, run: Callable[[], int | None], *, interrupted: str) -> int:
    """Run a script and return its exit code: what `run` returns (0 for None), 1 after a ValueError or OSError, 130 after Ctrl-C.

    The message of the error, or `interrupted`, which says what is left after Ctrl-C, becomes one line on stderr."""
    try:
        return run() or 0
    except (ValueError, OSError) as error:
        print(f"{script}: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{script}: interrupted; {interrupted}", file=sys.stderr)
        return 130
