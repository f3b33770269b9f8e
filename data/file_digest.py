"""What tells a file from another, and a whole one from a damaged one. Importing this needs the standard
library alone."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


def file_digest(path: str | Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digests(folder: Path, digests: object, *, cure: str) -> None:
    """Raises ValueError, naming the first, where files of a folder have changed since their digests (name ->
    SHA-256) were recorded. A file that is gone is left to whoever opens it."""
    for name, digest in digests.items() if isinstance(digests, Mapping) else []:
        path = folder / name
        if path.is_file() and (found := file_digest(path)) != digest:
            raise ValueError(
                f"{path} has changed since it was written: its SHA-256 is {found[:12]}..., was "
                f"{str(digest)[:12]}...; {cure}"
            )
