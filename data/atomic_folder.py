"""Write a folder whole or not at all. Importing this needs the standard library alone."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headgates.data.atomic_file import left_behind, machine_mark


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `folder`, which takes its name, and the place of what has it now, once
    the block has ended.

    After any exception the hidden folder is removed, with the folders above it that were made for it, and
    `folder` is as it was. The hidden name holds the machine and the number of the process; those that a
    killed process left are removed first. Raises OSError where none can be made."""
    # beside it: a rename stays within the file system
    draft = folder.with_name(f".{folder.name}.{machine_mark()}-{os.getpid()}")
    for left in left_behind(folder.parent, rf"\.{re.escape(folder.name)}\.{machine_mark()}-([0-9]{{1,9}})"):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
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
