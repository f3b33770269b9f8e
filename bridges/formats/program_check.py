"""What an exported torch program may hold before torch opens it: a foreign one must not run code.

`torch.export.load` unpickles sample inputs and pickled weights in full where the safe way fails, runs
`guards_code` with `exec` and sizes with `eval`, and calls whatever function of torch a node names. So the
archive is read first, as data: plain tensors, operators of aten, and arithmetic over sizes are let through,
everything else is refused by name.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

FILES = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/(version|serialization_id)|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json))"
)
OPERATORS = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|torch\.sym_(max|min)|_operator\.(add|sub|mul|floordiv|mod|neg|eq|ne|lt|le|gt|ge|getitem)"
)
SIZE_NAMES = {
    "Add",
    "Mul",
    "Pow",
    "Mod",
    "Min",
    "Max",
    "Integer",
    "Symbol",
    "FloorDiv",
    "Eq",
    "Ne",
    "Lt",
    "Le",
    "Gt",
    "Ge",
    "Rational",
}
GUARD_NAMES = {"L", "min", "max"}
ARITHMETIC = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Load, ast.Name, ast.Call, ast.keyword, ast.Subscript,
    ast.Attribute, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def check_program(content: bytes) -> None:
    """Raises ValueError, saying which entry, unless the bytes of a .pt2 file hold tensors and arithmetic
    alone."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is no archive: {error}") from error
    with archive:
        for entry in archive.infolist():
            if not FILES.fullmatch(entry.filename):
                raise ValueError(f"the entry {entry.filename!r} is none that a program of tensors has")
            name = entry.filename.partition("/")[2]
            if name.endswith(".pt"):
                check_pickle(archive.read(entry), name)
            elif name.endswith("_config.json"):
                check_tensors(json.loads(archive.read(entry)), name)
            elif name.endswith(".json"):
                check_graph(json.loads(archive.read(entry)))


def check_pickle(content: bytes, name: str) -> None:
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # strange bytes send the unpickler anywhere
        raise ValueError(f"{name} holds more than plain tensors") from error


def check_tensors(config: Any, name: str) -> None:
    for tensor, entry in config["config"].items():
        if entry.get("use_pickle") or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise ValueError(f"{name}: {tensor!r} is pickled or no tensor")


def check_graph(program: Any) -> None:
    for guard in program.get("guards_code") or []:
        check_arithmetic(guard, GUARD_NAMES, "a guard")
    for key, value in entries(program):
        if key == "expr_str":
            check_arithmetic(value, SIZE_NAMES, "a size")
        elif key == "target" and isinstance(value, str) and not OPERATORS.fullmatch(value):
            raise ValueError(f"a node calls {value!r}, which is no operator of aten")
        elif key == "nodes":
            names = [node.get("name") for node in value]
            if wrong := [name for name in names if name is not None and not str(name).isidentifier()]:
                raise ValueError(f"a node is named {wrong[0]!r}, which is no name")


def entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from entries(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from entries(inner)


def check_arithmetic(text: Any, names: set[str], what: str) -> None:
    """Raises ValueError unless the text is arithmetic over numbers, the names, and sizes of inputs
    (`L['ids'].size()[0]`)."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{what} is no arithmetic: {str(text)[:60]!r}") from error
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        refused = (
            not isinstance(node, ARITHMETIC)
            or (isinstance(node, ast.Name) and node.id not in names)
            or (isinstance(node, ast.Attribute) and node.attr != "size")
            or (called is not None and not isinstance(called, ast.Name | ast.Attribute))
            or (isinstance(node, ast.keyword) and node.arg not in ("positive", "integer", "nonnegative"))
        )
        if refused:
            raise ValueError(f"{what} is more than arithmetic: {text[:60]!r}")
