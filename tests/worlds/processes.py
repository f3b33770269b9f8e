"""What becomes of processes whose parent is killed."""

import time
from pathlib import Path


def running(process: int) -> bool:
    """Whether a process is there and has not ended; an orphan that nobody waits for is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(process: int, *, within: float = 60) -> bool:
    """Whether a process ends within so many seconds."""
    until = time.monotonic() + within
    while running(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not running(process)
