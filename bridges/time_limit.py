"""A limit on the seconds of what cannot be interrupted: a runtime in C++ that runs a file of others."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headgates.configs.printable import printable


@contextmanager
def time_limit(seconds: float, line: str) -> Iterator[None]:
    """Print the line and end this process with code 1, unless the block has ended after so many seconds."""

    def end() -> None:
        print(printable(line), file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
