"""Write a folder whole or not at all. Importing this needs the standard library alone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headgates.data.atomic_file import is_running


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `folder`, which takes its name, and the place of what has it now, once
    the block has ended.

    After any exception the hidden folder is removed, with the folders above it that were made for it, and
    `folder` is as it was. The hidden name holds the number of the process; those that a killed process left
    are removed first. Raises OSError where none can be made."""
    draft = folder.with_name(
        f".{folder.name}.{os.getpid()}"
    )  # beside it: a rename stays within the file system
    remove_left_drafts(folder)
    made = [parent for parent in draft.parents if not parent.exists()]
    draft.mkdir(parents=True)
    try:
        yield draft
        old = folder.with_name(f"{draft.name}.old")
        if folder.exists():  # the old folder is removed only when the new one has its name
            folder.rename(old)
        draft.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in made:  # the deepest first
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def remove_left_drafts(folder: Path) -> None:
    """Remove the drafts of `folder` whose process was killed before it could; links, and what is another
    user's, stay."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.([0-9]{{1,9}})")
    for path in folder.parent.iterdir() if os.name == "posix" and folder.parent.is_dir() else ():
        with suppress(OSError):  # gone in the meantime
            match = pattern.fullmatch(path.name)
            own = (
                match is not None
                and path.is_dir()
                and not path.is_symlink()
                and path.lstat().st_uid == os.getuid()
            )
            if match and own and not is_running(int(match[1])):
                shutil.rmtree(path, ignore_errors=True)
