"""The law of the house: imports only go down, without circles; files say what they hold; nothing names a
machine."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUND = {"gates", "data", "configs"}
ALLOWED = {  # a room -> the rooms that it may import
    "gates": set(),
    "configs": set(),
    "analysis": {"gates"},
    "data": {"configs"},
    "models": GROUND,
}
ARROWS = ["models", "bridges", "analysis", "tasks", "lightning_modules"]
ARROWS += ["records", "lab", "pruning", "explain", "report", "headgates"]
for place, room in enumerate(ARROWS):
    ALLOWED.setdefault(room, GROUND | set(ARROWS[:place]))
ALLOWED["bridges"] = GROUND | {"models"}
ABOVE = {"benchmarks", "notebooks", "examples", "tests"}  # may import any room; no room imports them
SKIPPED = {"build", "dist", "runs", "wandb", "lightning_logs", "__pycache__"}
TEXTS = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".txt",
    ".cff",
    ".json",
    ".jsonl",
    ".csv",
    ".ipynb",
    ".svg",
    ".html",
    "",
}
NAMED = re.compile(r"\"(headgates(?:\.\w+)+):\w+\"")
MACHINE_PATHS = re.compile(r"(?<![\w./])/(?:home|Users|root|work|mnt|media|scratch)/\w|[A-Z]:\\Users\\")


def files(folder: Path = ROOT) -> Iterator[Path]:
    """The files of the repository; environments, caches and runs left out."""
    for parent, folders, names in os.walk(folder):
        hidden = {f for f in folders if f.startswith(".") and f not in (".ci", ".github")}
        folders[:] = [f for f in folders if f not in SKIPPED | hidden and not f.endswith(".egg-info")]
        yield from (Path(parent) / name for name in names if name != ".git")  # a file in a linked checkout


def python_files(folder: Path = ROOT) -> list[Path]:
    return sorted(path for path in files(folder) if path.suffix == ".py")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(path: Path) -> set[str]:
    """The modules that a file imports anywhere, inside functions and under TYPE_CHECKING too, by their
    absolute names."""
    package = ["headgates", *Path(shown(path)).parent.parts] if shown(path).split("/")[0] in ALLOWED else []
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def named(path: Path) -> set[str]:
    """The modules of functions that a file names in strings such as "headgates.room.module:name"."""
    return set(NAMED.findall(path.read_text(encoding="utf-8")))


def rooms_of(modules: set[str]) -> set[str]:
    """The rooms among modules: of headgates.gates.bank it is gates, of headgates.commands the package
    itself."""
    parts = [module.split(".") for module in modules]
    inside = {words[1] for words in parts if words[0] == "headgates" and len(words) > 1}
    return {"headgates" if name == "commands" else name for name in inside} | {
        words[0] for words in parts if words[0] in ABOVE
    }


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_down(room):
    forbidden = (set(ALLOWED) | ABOVE) - ALLOWED[room] - {room}
    wrong = {
        shown(path): sorted(up)
        for path in python_files(ROOT / room)
        if (up := rooms_of(imported(path) | named(path)) & forbidden)
    }
    assert wrong == {}, "move the shared part to a lower room"


def test_every_room_has_its_link_in_the_package():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - ABOVE - {"headgates"}
    links = {path.name: os.readlink(path) for path in (ROOT / "headgates").iterdir() if path.is_symlink()}
    assert links == {room: f"../{room}" for room in rooms}


def test_no_file_imports_a_circle():
    modules = {}
    for room in ALLOWED:
        for path in python_files(ROOT / room):
            name = ".".join(Path(shown(path)).with_suffix("").parts).removesuffix(".__init__")
            modules[name if name.startswith("headgates") else f"headgates.{name}"] = path
    face = {
        name for name, path in modules.items() if path.name == "__init__.py"
    }  # a package's face hands names on
    arrows = {
        name: (imported(path) & set(modules)) - {name} - face
        for name, path in modules.items()
        if name not in face
    }
    while (
        True
    ):  # take away what imports nothing that is left, and what nothing that is left imports: circles stay
        used = {down for each in arrows.values() for down in each}
        left = {
            name: down & set(arrows) for name, down in arrows.items() if down & set(arrows) and name in used
        }
        if left == arrows:
            break
        arrows = left
    assert arrows == {}, "files that import each other"


@pytest.mark.parametrize("room", ["gates", "analysis"])
def test_the_library_imports_torch_alone_before_it_is_called(room):
    known = set(sys.stdlib_module_names) | {"torch", "headgates"}
    wrong = {}
    for path in python_files(ROOT / room):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {
            alias.name.split(".")[0] for node in top if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {
            (node.module or "").split(".")[0]
            for node in top
            if isinstance(node, ast.ImportFrom) and not node.level
        }
        wrong |= {shown(path): sorted(names - known)} if names - known else {}
    assert wrong == {}, "`pip install .` gives these rooms with torch alone"


def test_configs_import_neither_torch_nor_lightning():
    heavy = {"torch", "pytorch_lightning", "torchmetrics", "numpy", "sacrebleu", "sentencepiece"}
    used = {
        shown(path): {name.split(".")[0] for name in imported(path)} & heavy
        for path in python_files(ROOT / "configs")
    }
    assert not any(used.values()), "`--help` must answer at once"


def test_there_are_few_rooms_and_each_file_opens_with_its_idea():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(ALLOWED) <= rooms
    assert len(rooms | {"benchmarks", "notebooks"}) <= 16
    written = [path for room in ALLOWED for path in python_files(ROOT / room)] + sorted(ROOT.glob("*.py"))
    silent = [
        shown(path) for path in written if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_no_file_names_a_machine():
    wrong = []
    for path in files():
        if path.suffix in TEXTS and path.stat().st_size < 5_000_000:
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{shown(path)}: {match[0]}" for match in MACHINE_PATHS.finditer(text)]
    assert wrong == []
