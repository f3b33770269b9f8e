"""Write a file whole or not at all. Importing this needs the standard library alone."""

import errno
import hashlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

from headgates.data.ranks import is_first

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic_file(path: str | Path, *, previous: str | Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new binary file beside `path`, and rename it to `path` once the block has ended and its bytes
    are on the disk.

    After any exception the temporary file is removed and `path` is as it was. The temporary name holds
    the machine and the number of the process, because parallel runs write files of one base. A symbolic
    link that has this name is removed, not followed. A writer that needs a path can use `file.name`.
    previous: the name under which the file that `path` was is kept; a kill between the two renames leaves
    that one alone. Of several ranks the first alone writes; what the others write is dropped. Raises
    OSError, naming `path`, if the file cannot be made or the disk is full."""
    if not is_first():
        with tempfile.NamedTemporaryFile() as nowhere:
            yield cast(BinaryIO, nowhere)
        return
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{machine_mark()}-{os.getpid()}.part")
    remove_leftovers(path.parent, path.name)
    try:
        temporary.unlink(missing_ok=True)
        file = temporary.open("xb")  # x: fails at a name that somebody else made in the meantime
    except OSError as error:
        raise OSError(
            f"cannot write {path}: {error.strerror}; choose a folder that can be written to"
        ) from error
    try:
        with file:
            yield file
        # opened again: a writer that took the name may have put another file there
        with temporary.open("rb+") as whole:
            os.fsync(whole.fileno())
        if previous is not None:
            with suppress(FileNotFoundError):  # the first of its name
                os.replace(path, previous)
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        # torch hides the OSError of a file's `write` behind a RuntimeError
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            raise OSError(
                f"cannot write {path}: {cause.strerror}; free some space and repeat the command"
            ) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files, of one file or of all in a folder, whose process was killed before it
    could."""
    own = ".+" if name is None else re.escape(name)
    for path in left_behind(folder, rf"{own}\.{machine_mark()}-([0-9]{{1,9}})\.part"):
        with suppress(OSError):  # gone in the meantime, or not to be removed
            path.unlink()


@cache
def machine_mark() -> str:
    """Digits of the machine, or the container, within which the number of a process means one: others may
    write to the same disk."""
    space = "/proc/self/ns/pid"
    inside = os.readlink(space) if os.path.islink(space) else ""
    return hashlib.sha256(f"{socket.gethostname()} {inside}".encode()).hexdigest()[:6]


def left_behind(folder: Path, pattern: str) -> Iterator[Path]:
    """What has such a name in a folder, of a process that no longer runs, the number of which is the
    pattern's group. What is another user's is left out, and so are links."""
    if os.name != "posix" or not folder.is_dir():  # elsewhere nothing says harmlessly whether a process runs
        return
    for path in folder.iterdir():
        match = re.fullmatch(pattern, path.name, re.DOTALL)
        if match and not path.is_symlink() and not is_running(int(match[1])):
            with suppress(OSError):  # gone in the meantime
                if path.lstat().st_uid == os.getuid():
                    yield path


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # another user's may not be asked
    return True
