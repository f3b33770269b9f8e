"""Arrays of an .npz file, whose sizes are held against its bytes before anything is unpacked."""

import math
import zipfile
from pathlib import Path

import numpy as np

from headgates.configs.own_file import check_unpacked
from headgates.data.text import reworded


def read_npz(path: str | Path, *, cure: str) -> dict[str, np.ndarray]:
    """The arrays by their names. Raises DataError, with the cure, where the file is no whole .npz of plain
    arrays, or says to be larger than its bytes."""
    with reworded(f"{path} is not a whole .npz of plain arrays", cure), zipfile.ZipFile(path) as file:
        members = file.infolist()
        check_unpacked(path, sum(each.file_size for each in members), Path(path).stat().st_size)
        arrays = {}
        for each in members:
            with file.open(each) as stream:
                version = np.lib.format.read_magic(stream)
                read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
                shape, _, kind = read_header(stream)
                left = each.file_size - stream.tell()
                fits = math.prod(shape) * kind.itemsize == left and kind.itemsize
                if not fits or not 0 <= min(shape, default=0) <= max(shape, default=0) <= each.file_size:
                    raise ValueError(f"{each.filename} says shape {shape[:8]}, and has {left:,} bytes")
            with file.open(each) as stream:
                arrays[each.filename.removesuffix(".npy")] = np.lib.format.read_array(
                    stream, allow_pickle=False
                )
        return arrays
