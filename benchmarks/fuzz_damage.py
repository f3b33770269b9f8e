"""Damaged and hostile files for benchmarks/fuzz.py: bytes that changed, JSON of other types, pickles that
would run a command, archives with entries outside their folder, and links. What is drawn depends on the
generator alone."""

import argparse
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[random.Random, Path], None]  # changes one file in place

JSON_VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        3,
        1e308,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "../../outside/x",
        "/",
        "\x00",
        "</script>",
    ),
    *([], {}, [[]], [None], {"": None}, {"../../outside/x": 1}, ["a"] * 3, {"heads": []}),
]
TEXTS = [
    *(
        "",
        "\n",
        "\n\n\n",
        "\0",
        "\u2028",
        "\u202e\u200f",
        "\r\n",
        "\ufeff",
        "a\tb",
        "ﬁ" * 99,
        "e\u0301" * 50,
        "\U0001f600",
        "</script>",
    ),
    *("The dog sleeps.", "<unk> </s> <pad>", "\u2581", ">>fra<< x", "a " * 300, "x" * 5000),
]


class Command:
    """Runs a command when it is unpickled, which makes the file `marker`."""

    def __init__(self, marker: Path, way: int):
        self.marker, self.way = marker, way

    def __reduce__(self) -> tuple[Any, ...]:
        if self.way == 0:
            return os.system, (f"touch '{self.marker}'",)
        if self.way == 1:
            return exec, (f"open({str(self.marker)!r}, 'w').close()",)
        return open, (str(self.marker), "w")


def hostile_pickle(rng: random.Random, marker: Path) -> bytes:
    """The bytes of a pickle, now and then inside what a checkpoint holds, and as torch.save packs it."""
    import torch

    command: Any = Command(marker, rng.randrange(3))
    content = rng.choice(
        [command, {"model": command, "architecture": {}}, {"model": {"a": torch.zeros(2)}, "args": command}]
    )
    if rng.random() < 0.4:
        return pickle.dumps(content, protocol=rng.randrange(2, 6))
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=rng.random() < 0.7)
    return file.getvalue()


def object_array(rng: random.Random, marker: Path) -> bytes:
    """An .npz with an array of objects, which only a pickle can hold."""
    import numpy as np

    file, array = io.BytesIO(), np.empty(1, dtype=object)
    array[0] = Command(marker, rng.randrange(3))
    np.savez(file, **{"special:model.yml": array, "steps": array, "encoder.0.enc-self": array})  # type: ignore[arg-type]
    return file.getvalue()


def archive_of(rng: random.Random, old: bytes) -> bytes:
    """A zip file whose entries lie outside of it, beside those that it had, now and then one that grows a
    thousandfold."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        if zipfile.is_zipfile(io.BytesIO(old)):
            with zipfile.ZipFile(io.BytesIO(old)) as before:
                for entry in before.infolist():
                    new.writestr(entry.filename, before.read(entry))
        for name in ("../outside/x", "../../outside/y.npy", "/outside/z"):
            new.writestr(name, b"out")
        if rng.random() < 0.3:
            new.writestr("large.npy", b"\0" * 2**24)
    return out.getvalue()


def cut(rng: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def flip_bits(rng: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8, 64]) if content else 0):
        content[rng.randrange(min(len(content), rng.choice([64, 1024, 10**9])))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def random_bytes(rng: random.Random, path: Path) -> None:
    path.write_bytes(rng.randbytes(rng.choice([0, 1, 7, 64, 4096])))


def splice(rng: random.Random, path: Path) -> None:
    """A piece of the file again in another place."""
    content = path.read_bytes()
    a, b, c = (rng.randrange(len(content) + 1) for _ in range(3))
    path.write_bytes(content[:c] + content[min(a, b) : max(a, b)] + content[c:])


def delete(rng: random.Random, path: Path) -> None:
    path.unlink()


def folder_instead(rng: random.Random, path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_outside(rng: random.Random, path: Path) -> None:
    """A symbolic link in the file's place, to a file outside, to nothing, or to itself."""
    outside = next(parent for parent in path.parents if parent.name == "inside").parent / "outside"
    path.unlink()
    path.symlink_to(rng.choice([outside / "kept", outside / "none", path, outside]))


def leaves(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in leaves(item, (*at, key)))]


def changed_value(rng: random.Random, content: Any, values: list[Any]) -> Any:
    """The content with one value in it, or all of it, replaced, taken away or renamed."""
    places = [place for place in leaves(content) if place]
    if not places or rng.random() < 0.1:
        return rng.choice(values)
    shallow = [place for place in places if len(place) < 3]
    place = rng.choice(rng.choice([places, shallow]))
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    turn = rng.random()
    if turn < 0.75:
        holder[place[-1]] = rng.choice(values)
    elif isinstance(holder, dict) and turn < 0.85:
        holder[rng.choice(["../../outside/x", "", "x", "\u202e"])] = holder.pop(place[-1])
    else:
        del holder[place[-1]]
    return content


def change_json(rng: random.Random, path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(changed_value(rng, content, JSON_VALUES)), encoding="utf-8")


def change_yaml(rng: random.Random, path: Path) -> None:
    import yaml

    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(
        yaml.safe_dump(changed_value(rng, content, [value for value in JSON_VALUES if value != "\ud800"])),
        encoding="utf-8",
    )


def change_table(rng: random.Random, path: Path) -> None:
    """A cell of a CSV file, a row too long, or a column renamed."""
    lines = path.read_text(encoding="utf-8").split("\n")
    number = rng.randrange(len(lines))
    cells = lines[number].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(
        ["", "nan", "1e999", "x", '"', "{", "[1,", "-", "</script>", "a,b", "\0"]
    )
    lines[number] = ",".join(cells)
    path.write_text("\n".join(lines), encoding="utf-8")


def change_checkpoint(rng: random.Random, path: Path) -> None:
    """A checkpoint that is whole, one value of which is of another kind."""
    import torch

    with torch.serialization.safe_globals([argparse.Namespace]):  # fairseq's settings
        content = torch.load(path, weights_only=True)
    values = [
        *JSON_VALUES,
        torch.zeros(0),
        torch.zeros(3, dtype=torch.int8),
        torch.tensor(1.0).expand(10**6, 10**6),
    ]
    torch.save(changed_value(rng, content, values), path)


ANY: list[Damage] = [cut, flip_bits, flip_bits, random_bytes, splice, delete, folder_instead, link_outside]


def damages(path: Path) -> list[Damage]:
    """How a file of this kind can be damaged."""
    by_kind: dict[str, list[Damage]] = {
        **{
            ".json": [change_json] * 14,
            ".yaml": [change_yaml] * 14,
            ".yml": [change_yaml] * 6,
            ".csv": [change_table] * 8,
        },
        ".pt": [change_checkpoint] * 8,
    }
    return ANY + by_kind.get(path.suffix, [])


def damage(rng: random.Random, path: Path, marker: Path) -> str:
    """Damage a file in place, or put a hostile one in its place; what was done."""
    if path.suffix in (".pt", ".bin", ".npz", ".pt2", ".safetensors") and rng.random() < 0.25:
        hostile = rng.choice([hostile_pickle, object_array])
        path.write_bytes(hostile(rng, marker))
        return hostile.__name__
    if path.suffix in (".pt", ".npz", ".pt2") and rng.random() < 0.1:
        path.write_bytes(archive_of(rng, path.read_bytes()))
        return "archive_of"
    way = rng.choice(damages(path))
    way(rng, path)
    return way.__name__
