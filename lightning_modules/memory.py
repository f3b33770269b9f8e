"""Memory stays bounded while a model trains on a CPU.

Hardly two batches have the same shape, so what one step frees does not fit the tensors of the next, and
glibc's heap grows by gaps that it keeps. `malloc_trim` returns the pages of all gaps; the next step gets
those that it needs from the system again. In bf16, oneDNN also keeps what it prepared for each shape of a
product, which no trim returns: some 5 MB with each new shape of a batch, of which there are few
(`Batch.square`).
"""

import ctypes
import sys

# batches between two releases; giving back and getting anew costs half of a small step, 2% of so many
# (LOG.md)
RELEASE_EVERY = 30


def release_memory() -> bool:
    """Return freed memory to the system. False where none was left to return, or the C library cannot: it is
    not glibc's."""
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))
