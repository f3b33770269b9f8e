"""Memory that is freed stays with the process."""

import platform
import subprocess
import sys

import pytest

# 20 MiB are taken, written and freed ten times: page faults of a time, without the first
PROGRAM = """
import ctypes, resource, sys
from headgates.models.freed_memory import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if sys.argv[1] == "keep":
    keep_freed_memory()
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(20 << 20)
    libc.memset(block, 1, 20 << 20)
    libc.free(block)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has another allocator")
def test_freed_memory_is_not_taken_from_the_system_again() -> None:
    def faults(way: str, **own: str) -> int:
        command = [sys.executable, "-c", PROGRAM, way]
        return int(subprocess.run(command, env=own, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") < 100 < 1000 < faults("leave")
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="65536") > 1000  # the user's own threshold stays
