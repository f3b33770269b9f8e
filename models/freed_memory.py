"""Memory that is freed stays with the process.

glibc gives freed memory back to the system above a threshold, and takes it again page by page a moment later.
A search that frees its buffers at every step spends 5% of its time so, and how much depends on where in
memory a model lies: the same model opened again was 0 to 14% slower than the first one (LOG.md).
"""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # mallopt(3)
OWN = "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"  # the user's


def keep_freed_memory() -> None:
    """Set glibc's thresholds as high as they go, for all that comes after. Another C library, or a user's own
    thresholds in the environment, are left as they are."""
    if sys.platform != "linux" or any(name in os.environ for name in OWN):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
        mallopt(MMAP_THRESHOLD, 2**25)  # a larger one is refused
