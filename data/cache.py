"""The user's cache folder, and locks in it. Importing this needs the standard library alone."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where downloads and stores of tokenised text lie: $HEADGATES_CACHE, or headgates in $XDG_CACHE_HOME or
    ~/.cache."""
    return Path(os.environ.get("HEADGATES_CACHE") or own_cache())


def own_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headgates"


def lock_folder() -> Path:
    """A folder in the user's own cache: in a shared one the names of locks could be guessed, and links put
    there."""
    folder = own_cache() / "locks"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def open_lock(name: str) -> int:
    """The descriptor of a lock file."""
    return os.open(
        lock_folder() / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )


@contextmanager
def locked(name: str, waits: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Wait until no other process of this machine holds the lock of this name, and keep it for the block.
    waits: called where another holds it, before the wait."""
    try:
        import fcntl
    except ImportError:  # Windows has none: there, two processes may do the same work
        yield
        return
    descriptor = open_lock(name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
