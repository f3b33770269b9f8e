"""What a file that others wrote may name: files of its own folder. Importing this needs the standard library
alone."""

import os
import stat
from pathlib import Path

from headgates.configs.fields import shortened

LARGEST_RATIO = 100  # bytes that a file may say to have, for each that is there
SMALL = 2**26  # bytes that any file may say to have


def own_file(folder: str | Path, name: object, *, home: str | Path | None = None) -> Path:
    """`folder / name`, the path of a file of a folder that others may have filled. home: the folder that the
    file must lie in, where that is a larger one.

    Raises ValueError where the name is absolute, or leads out of the home by `..` or by a link; where no file
    or folder has it but a pipe or a device; and where the disk holds almost nothing of the bytes that the
    file says to have. In the cache of the Hugging Face Hub the home is the folder of all that was stored of
    a model, since links lead from `snapshots/` to `blobs/`."""
    if not isinstance(name, str | Path) or "\0" in str(name):
        raise ValueError(f"{folder} names {shortened(name)}, which is no name of a file; copy it again")
    path, real = Path(folder) / name, os.path.realpath(home or folder)
    if os.path.basename(os.path.dirname(real)) == "snapshots":
        real = os.path.dirname(os.path.dirname(real))
    if os.path.isabs(name) or not Path(os.path.realpath(path)).is_relative_to(real):
        raise ValueError(
            f"{folder}: the name or link {shortened(str(name))} leads out of that folder, and nothing "
            f"outside is read or written for it; put a copy there, or take the link away"
        )
    try:
        status = path.stat()
    except OSError:  # not there, which whoever opens it says
        return path
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ValueError(f"{path} is a pipe or a device, expected a file; take it away")
    there = getattr(status, "st_blocks", None)  # of 512 bytes; Windows does not say
    if stat.S_ISREG(status.st_mode) and there is not None:
        check_unpacked(path, status.st_size, 512 * there)
    return path


def own_files(folder: str | Path, pattern: str = "*") -> list[Path]:
    """What matches in a folder that others may have filled, by name; errors are those of `own_file`."""
    return [own_file(folder, path.name) for path in sorted(Path(folder).glob(pattern))]


def check_unpacked(path: object, says: int, there: int) -> None:
    """Raises ValueError where content says to have many times the bytes that are there."""
    if says > max(SMALL, LARGEST_RATIO * there):
        raise ValueError(
            f"{path} says to have {says:,} bytes, and holds {there:,}; such a file fills the memory, so it "
            "is not read: copy it again"
        )
