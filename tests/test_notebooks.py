"""The notebooks: each runs from its first to its last cell on a run of another shape, reads nothing but the
run folders and the code, and leaves them as they were."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbformat
import pytest

from headgates.workbench.folder import RunFolder
from notebooks.execute import executed_notebook, main, notebook_files

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ["1_which_heads_died", "2_attention_and_roles", "3_l0_against_importance"]
EXAMPLE = next((ROOT / "examples/toy_run").glob("*-l0-*")).name
MOST_BYTES = 700_000
# so that some heads close and some stay, in enough steps to draw them
TINY = [
    "--config",
    str(ROOT / "configs/toy_tiny.yaml"),
    "--lambda",
    "0.05",
    "--gates.lr",
    "0.3",
    "--gates.settle",
    "0.5",
]
LONGER = [
    "--model.heads",
    "4",
    "--text.max-tokens",
    "500",
    "--finetune.epochs",
    "2",
    "--systems",
    "base,base-continued,l0,importance",
]
DATA = {".csv", ".gz", ".json", ".jsonl", ".md", ".model", ".npz", ".pt", ".txt", ".yaml", ".yml"}
# every file that the kernel opens from now on: how and which
WATCH = """
import os, sys
log = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def watch(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        os.write(log, f"{os.path.abspath(os.fsdecode(args[0]))}\\n".encode())
sys.addaudithook(watch)
"""


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)


def said(notebook: nbformat.NotebookNode) -> str:
    """All text of the outputs, warnings too."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(
        output.get("text") or output.get("data", {}).get("text/markdown") or "" for output in outputs
    )


def pictures(notebook: nbformat.NotebookNode) -> int:
    return sum(
        "image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])
    )


def within(path: Path, *places: Path | str) -> bool:
    return any(path.is_relative_to(place) for place in places)


# ---------------------------------------------------------------- what is committed


def test_the_notebooks_are_found_by_their_numbers():
    assert [path.stem for path in notebook_files()] == NOTEBOOKS
    assert [path.stem for path in notebook_files(["2"])] == [NOTEBOOKS[1]]
    with pytest.raises(ValueError, match="no notebook 9; expected numbers of 1, 2, 3"):
        notebook_files(["9"])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_committed_notebook_was_run_on_the_example_from_top_to_bottom(name):
    notebook = committed(name)
    counts = [cell["execution_count"] for cell in notebook.cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert EXAMPLE in said(notebook)
    assert "Warning" not in said(notebook)
    assert pictures(notebook) >= 3


def test_the_notebooks_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "notebooks").glob("*.ipynb")) < MOST_BYTES


def test_a_run_that_is_not_there_is_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HEADGATES_RUN", "examples/toy_run/toy-en-de-l0-0.5-s1")
    assert main(["1", "--to", str(tmp_path)]) == 1
    lines = [
        line for line in capfd.readouterr().err.splitlines() if "debugger" not in line
    ]  # Python's own word on frozen modules
    (line,) = lines
    assert line.startswith("notebooks/execute.py: error: 1_which_heads_died.ipynb: no run at ")
    assert "did you mean" in line
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- on another run


def test_some_heads_of_the_tiny_run_close_and_some_stay(workplace):
    row = next(
        row
        for row in RunFolder(workplace / "runs/gated").read_json("result.json")["rows"]
        if row["system"] == "l0"
    )
    assert 0 < row["heads_open"] < row["heads_total"]


@pytest.fixture(scope="session")
def workplace(tmp_path_factory) -> Path:
    """A copy of the code and the example, and in `runs` a tiny gated run with its base: all that a notebook
    may need."""
    place = tmp_path_factory.mktemp("notebooks") / "headgates"
    for room in (
        "analysis",
        "configs",
        "data",
        "gates",
        "models",
        "notebooks",
        "report",
        "tasks",
        "headgates",
        "bridges",
        "lightning_modules",
        "workbench",
    ):
        shutil.copytree(ROOT / room, place / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "examples/toy_run", place / "examples/toy_run")
    words = [
        sys.executable,
        str(ROOT / "fit.py"),
        *TINY,
        *LONGER,
        "--name",
        "gated",
        "--runs",
        str(place / "runs"),
        "--threads",
        "1",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=ROOT, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return place


def state(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def shown(workplace, tmp_path, monkeypatch):
    """shown(name, run) -> the notebook with its outputs, from a fresh kernel in the copy; and the files that
    it opened."""

    def of(name: str, run: str | None = None) -> tuple[nbformat.NotebookNode, list[Path]]:
        (tmp_path / "ipython/profile_default/startup").mkdir(parents=True)
        (tmp_path / "ipython/profile_default/startup/watch.py").write_text(WATCH)
        (tmp_path / "opened").touch()
        settings = {"OMP_NUM_THREADS": 1, "OPENED": tmp_path / "opened"}
        settings |= {
            "IPYTHONDIR": tmp_path / "ipython",
            "TMPDIR": tmp_path,
        }  # what the kernel writes for itself
        for variable, value in settings.items():
            monkeypatch.setenv(variable, str(value))
        for variable in ("PYTHONPATH", "HEADGATES_RUN"):
            monkeypatch.delenv(variable, raising=False)
        if run is not None:
            monkeypatch.setenv("HEADGATES_RUN", run)
        notebook = executed_notebook(workplace / f"notebooks/{name}.ipynb", cwd=workplace / "notebooks")
        return notebook, [Path(line) for line in (tmp_path / "opened").read_text().splitlines()]

    return of


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_a_run_of_another_shape_and_reads_only_that_and_the_code(
    name, shown, workplace, tmp_path
):
    before = state(workplace / "runs")
    notebook, opened = shown(name, "runs/gated")
    assert "gated" in said(notebook)
    assert pictures(notebook) >= 3
    assert workplace / "runs/gated/config.yaml" in opened  # the watch does watch
    libraries = (sys.prefix, sys.base_prefix, matplotlib.get_cachedir())
    assert [
        path
        for path in opened
        if path.suffix in DATA and not within(path, workplace, tmp_path, "/proc", *libraries)
    ] == []
    assert [path for path in opened if within(path, ROOT) and not within(path, *libraries)] == []
    assert state(workplace / "runs") == before


def test_without_a_run_the_example_is_shown_and_what_analyze_left_in_it_is_not_made_again(shown, workplace):
    before = state(workplace / "examples")
    notebook, opened = shown("2_attention_and_roles")
    assert EXAMPLE in said(notebook)
    assert "one pass over" not in said(notebook)
    assert any(path.name == "roles.csv" and within(path, workplace / "examples") for path in opened)
    assert state(workplace / "examples") == before
