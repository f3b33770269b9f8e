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
    "planning": {"gates", "analysis"},
    "data": {"configs"},
    "models": GROUND,
}
ARROWS = ["models", "bridges", "analysis", "planning", "tasks", "lightning_modules"]
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


NAMED = re.compile(r"\"(headgates(?:\.\w+)+):\w+\"")  # a function that a table names
MOST_FLOORS = dict.fromkeys(ALLOWED, 6) | {"gates": 11}  # of files of a room that import each other
MOST_HOMES = 30  # names at the top of several files


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
    """The modules of the functions that a file's tables name, as "headgates.room.module:name"."""
    return set(NAMED.findall(path.read_text(encoding="utf-8")))


def modules_of(room: str) -> dict[str, Path]:
    """Absolute name -> file."""
    found = {}
    for path in python_files(ROOT / room):
        name = ".".join(Path(shown(path)).with_suffix("").parts).removesuffix(".__init__")
        found[name if name.startswith("headgates") else f"headgates.{name}"] = path
    return found


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
    modules = {name: path for room in ALLOWED for name, path in modules_of(room).items()}
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


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_has_few_floors(room):
    """The longest chain of its files of which each imports the next; its face hands names on alone."""
    modules = {name: path for name, path in modules_of(room).items() if path.name != "__init__.py"}
    below = {name: imported(path) & set(modules) - {name} for name, path in modules.items()}
    chains: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in chains:
            chains[name] = []  # of a circle, which another test finds
            chains[name] = [name, *max(map(chain, sorted(below[name])), key=len, default=[])]
        return chains[name]

    longest = max(map(chain, modules), key=len)
    assert len(longest) <= MOST_FLOORS[room], " -> ".join(name.rpartition(".")[2] for name in longest)


def test_no_file_below_the_commands_names_a_class_of_theirs():
    trees = [
        ast.parse(path.read_text(encoding="utf-8")) for path in python_files(ROOT / "headgates/commands")
    ]
    theirs = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert theirs
    below = [path for room in ALLOWED if room != "headgates" for path in python_files(ROOT / room)]
    words = re.compile(rf"\b(?:{'|'.join(sorted(theirs))})\b")
    wrong = {
        shown(path): found[0] for path in below if (found := words.search(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


def test_few_names_have_several_homes():
    """A name at the top of two files of the package is two things, or one thing said twice."""
    homes: dict[str, list[str]] = {}
    for room in ALLOWED:
        for path in python_files(ROOT / room):
            for name in defined(ast.parse(path.read_text(encoding="utf-8"))):
                homes.setdefault(name, []).append(shown(path))
    several = {name: places for name, places in homes.items() if len(places) > 1 and name not in ENTRANCES}
    assert len(several) <= MOST_HOMES, "\n".join(
        f"{name}: {', '.join(each)}" for name, each in several.items()
    )


# of commands and of the library, a trainer's callback each, and variables of types
ENTRANCES = {"main", "prune", "HeadGates", "T", "C"}


def defined(tree: ast.Module) -> set[str]:
    """The functions, classes and constants of a file, those that stand for one file alone (`_x`) left out."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("room", ["gates", "analysis", "planning"])
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
    assert len(rooms | {"benchmarks", "notebooks"}) <= 17
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
