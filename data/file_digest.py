"""What tells a file from another, and a whole one from a damaged one. Importing this needs the standard
library alone."""

import hashlib
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headgates.configs.own_file import own_file
from headgates.data.atomic_file import atomic_file
from headgates.data.cache import cache_folder


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


LARGE = 2**24  # bytes from which on digests are kept
SETTLED = 2.0  # seconds for which a file has not changed before its digest is kept


def kept_digest(path: str | Path) -> str:
    """`file_digest`, which of a large file is computed once: it is kept in the user's cache folder while the
    file's size, times of change and place on the disk stay the same."""
    path, keep = Path(path).resolve(), cache_folder() / "digests"
    state = path.stat()
    if state.st_size < LARGE:
        return file_digest(path)
    facts = [str(path), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev]
    place = keep / hashlib.sha256(repr(facts).encode()).hexdigest()
    with suppress(OSError):
        if re.fullmatch("[0-9a-f]{64}", found := place.read_text(encoding="ascii", errors="replace")):
            return found
    digest = file_digest(path)
    changed = max(state.st_mtime, state.st_ctime)
    if path.stat().st_ctime_ns == state.st_ctime_ns and time.time() - changed > SETTLED:
        with suppress(OSError):  # a cache that cannot be written is none
            keep.mkdir(parents=True, exist_ok=True)
            with atomic_file(place) as file:
                file.write(digest.encode())
    return digest


def check_digests(folder: Path, digests: object, *, cure: str, home: Path | None = None) -> None:
    """Raises ValueError, naming the first, where files of a folder have changed since their digests (name ->
    SHA-256) were recorded, or lie outside of it (`own_file`). A file that is gone is left to whoever opens
    it."""
    for name, digest in digests.items() if isinstance(digests, Mapping) else []:
        path = own_file(folder, name, home=home)
        if path.is_file() and (found := file_digest(path)) != digest:
            raise ValueError(
                f"{path} has changed since it was written: its SHA-256 is {found[:12]}..., was "
                f"{str(digest)[:12]}...; {cure}"
            )
