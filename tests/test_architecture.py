"""The law of the house: imports only go down, files stay short and say what they hold, nothing names a
machine."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOWEST = {
    "gates",
    "data",
    "configs",
}  # of these, data alone imports another one: configs, for its hints in errors
ARROWS = [
    "models",
    "tasks",
    "runfolder",
    "analysis",
    "pruning",
    "lightning_modules",
    "protocol",
    "sweeps",
]  # each may import those before
ALLOWED = {
    "gates": set(),
    "data": {"configs"},
    "configs": set(),
    **{room: LOWEST | set(ARROWS[:place]) for place, room in enumerate(ARROWS)},
}
# report and speed stand beside training: they look at runs, and what makes runs calls them at its end
ALLOWED |= {room: ALLOWED["pruning"] | {"pruning"} for room in ("report", "speed")}
ALLOWED["speed"] |= {"report"}  # its page is drawn as the others are
ALLOWED["protocol"] |= {"report"}
ALLOWED["sweeps"] |= {"report"}
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
        folders[:] = [
            f
            for f in folders
            if f in (".ci", ".github") or not (f in SKIPPED or f.startswith(".") or f.endswith(".egg-info"))
        ]
        yield from (Path(parent) / name for name in names if name != ".git")  # a file in a linked checkout


def python_files(folder: Path = ROOT) -> list[Path]:
    return sorted(path for path in files(folder) if path.suffix == ".py")


def imported(path: Path) -> set[str]:
    """Top-level names of the absolute imports anywhere in a file, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_files_to_look_at():
    assert {"gates", "data", "configs", "tests"} <= {shown(path).split("/")[0] for path in python_files()}


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_down(room):
    scripts = {path.stem for path in ROOT.glob("*.py")}
    forbidden = (set(ALLOWED) | ABOVE | scripts) - ALLOWED[room] - {room}
    wrong = {
        shown(path): sorted(up) for path in python_files(ROOT / room) if (up := imported(path) & forbidden)
    }
    assert wrong == {}, "move the shared part to a lower room"


def test_gates_import_torch_and_themselves_alone():
    known = set(sys.stdlib_module_names) | {"torch"}
    wrong = {
        shown(path): sorted(other)
        for path in python_files(ROOT / "gates")
        if (other := imported(path) - known)
    }
    assert wrong == {}, (
        "gates/ ships as the wheel `headgates`, which has torch only; its imports of itself are relative"
    )


def test_configs_import_neither_torch_nor_lightning():
    heavy = {"torch", "pytorch_lightning", "torchmetrics", "numpy", "sacrebleu", "sentencepiece"}
    wrong = {
        shown(path): sorted(other)
        for path in python_files(ROOT / "configs")
        if (other := imported(path) & heavy)
    }
    assert wrong == {}, "`--help` must answer at once"


def test_nothing_imports_the_wheel():
    wrong = [shown(path) for path in python_files() if "headgates" in imported(path)]
    assert wrong == [], "from gates import ...: one spelling in the whole repository"


def test_every_room_is_a_package_with_a_docstring():
    for room in sorted(
        {shown(path).split("/")[0] for path in python_files() if "/" in shown(path)} & set(ALLOWED)
    ):
        assert (ROOT / room / "__init__.py").is_file(), f"{room}/__init__.py is missing"
    rooms = [path for room in ALLOWED for path in python_files(ROOT / room)]
    silent = [
        shown(path)
        for path in [*rooms, *ROOT.glob("*.py")]
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == [], "a file opens with its idea and its source"


def test_no_file_is_called_utils():
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    wrong = [shown(path) for path in files() if vague & set(Path(shown(path)).with_suffix("").parts)]
    assert wrong == [], "name it after the noun it returns"


def test_python_files_are_one_idea_long():
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    assert {path: lines for path, lines in lengths.items() if lines >= 350} == {}, (
        "350 lines or more are two ideas"
    )


def test_no_file_names_a_machine():
    wrong = []
    for path in files():
        if path.suffix in TEXTS and path.stat().st_size < 5_000_000:
            text = path.read_text(encoding="utf-8", errors="replace")
            wrong += [f"{shown(path)}: {match[0]}" for match in MACHINE_PATHS.finditer(text)]
    assert wrong == []
