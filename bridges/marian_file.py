"""Marian's model files, .npz and .bin: arrays by name, and the settings of the model as YAML text. Nothing in
them can run code.

A .bin is, little-endian: uint64 version 1, uint64 n; n headers of four uint64 (length of the name with its
final 0, type, number of dimensions, bytes of data); the n names; all dimensions, int32; uint64 bytes of
padding and so many; then the data in order. A matrix of type intgemm8 is int8 numbers and after them the
float32 that they were multiplied by; it is stored transposed unless it embeds.
"""

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Arrays = dict[str, np.ndarray]
SETTINGS = "special:model.yml"
FLOAT32, INT8, INTGEMM8 = 0x404, 0x101, 0x4101
MOST_DIMENSIONS = 8


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a model file, float32, and its settings. Raises ValueError at a file that is not whole or
    not Marian's."""
    raw = _npz(path) if path.suffix == ".npz" else _bin(path)
    if SETTINGS not in raw:
        raise ValueError(
            f"{path} has no {SETTINGS}, by which Marian says what the model is: expected a model file of Marian's"
        )
    settings = read_yaml(path, raw.pop(SETTINGS).tobytes().rstrip(b"\0"))
    for name, array in raw.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(
                f"{path}: {name} is of type {array.dtype}; expected floating-point numbers, or intgemm8 in a .bin"
            )
    return {name: array.astype(np.float32) for name, array in raw.items()}, settings


def read_yaml(path: Path, text: bytes) -> dict[str, Any]:
    """The mapping that a YAML text is. path: the file it is from, for errors."""
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: its settings are no YAML ({' '.join(str(error).split())[:200]}); copy the file again"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: its settings are a {type(found).__name__}; expected YAML `name: value`")
    return found


def write_npz(path: Path, arrays: Arrays, settings: dict[str, Any]) -> None:
    """Write a model file that Marian reads."""
    text = np.frombuffer(yaml.safe_dump(settings, default_flow_style=False).encode() + b"\0", dtype=np.int8)
    with path.open("wb") as file:
        np.savez(file, **arrays, **{SETTINGS: text})  # type: ignore[arg-type]  # numpy's stubs take the names for its own flags


def _npz(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{strange[0]} is no array")
            return arrays
    except Exception as error:  # strange bytes send zipfile and numpy anywhere
        raise ValueError(f"{path} is not a whole .npz of plain arrays ({error}); copy it again") from error


def _bin(path: Path) -> Arrays:
    data, at = path.read_bytes(), 0

    def take(count: int) -> bytes:
        nonlocal at
        if count > len(data) - at:
            raise ValueError(
                f"{path} ends too early: {count} bytes from {at} on are missing, it has {len(data)}; copy it again"
            )
        at += count
        return data[at - count : at]

    def numbers(letter: str, count: int) -> tuple[Any, ...]:
        return struct.unpack(f"<{count}{letter}", take(count * struct.calcsize(f"<{letter}")))

    version, count = numbers("Q", 2)
    if version != 1:
        raise ValueError(
            f"{path} is no .bin of Marian's, or of another version: it begins with {version}, expected 1"
        )
    headers = [numbers("Q", 4) for _ in range(_at_most(path, count, len(data) // 32))]
    names = [take(length).rstrip(b"\0").decode("utf-8", "replace") for length, *_ in headers]
    shapes = [numbers("i", _at_most(path, dimensions, MOST_DIMENSIONS)) for _, _, dimensions, _ in headers]
    take(*numbers("Q", 1))
    return {
        name: _array(f"{path}: {name}", kind, shape, take(size))
        for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True)
    }


def _at_most(path: Path, count: int, most: int) -> int:
    if count > most:
        raise ValueError(
            f"{path} is broken: it counts {count} where there can be {most} at most; copy it again"
        )
    return count


def _array(name: str, kind: int, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    """One array of a .bin. name: with its file, for errors."""
    sizes: dict[int, tuple[int, Callable[[int], np.ndarray]]] = {
        FLOAT32: (4, lambda n: np.frombuffer(data, "<f4", n)),
        INT8: (1, lambda n: np.frombuffer(data, np.int8, n)),
        INTGEMM8: (1, lambda n: np.frombuffer(data, np.int8, n) / np.frombuffer(data, "<f4", 1, offset=n)),
    }
    if kind not in sizes:
        raise ValueError(
            f"{name} is of type {kind:#x}; expected float32 ({FLOAT32:#x}) or intgemm8 ({INTGEMM8:#x}), as marian-conv writes"
        )
    width, read = sizes[kind]
    count = math.prod(shape)
    if min(shape, default=1) < 1 or count * width + (4 if kind == INTGEMM8 else 0) > len(data):
        raise ValueError(
            f"{name} has the shape {shape}, which does not fit into its {len(data)} bytes; copy the file again"
        )
    array = read(count)
    if kind == INTGEMM8 and not name.endswith("Wemb"):
        return array.reshape(shape[::-1]).T
    return array.reshape(shape)
