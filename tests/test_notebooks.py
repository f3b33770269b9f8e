"""The notebooks: each runs from its first to its last cell on a run of another shape, and leaves it as it
was."""

import hashlib
import re
from pathlib import Path

import nbformat
import pytest
import torch

from headgates.configs.cli import read_command
from headgates.configs.recipe import Lambda, Recipe
from headgates.configs.settings import Settings
from headgates.gates import HeadMap, HeadSite
from headgates.records.folder import RunFolder
from headgates.records.table import read_table
from notebooks.execute import executed_notebook, main, notebook_files
from notebooks.show import open_maps
from tests.worlds.finished_runs import made

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ["1_which_heads_died", "2_attention_and_roles", "3_l0_against_importance"]
EXAMPLE = next((ROOT / "examples/toy_run").glob("*-l0-*")).name


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
    code = "\n".join(cell["source"] for cell in notebook.cells if cell["cell_type"] == "code")
    assert set(re.findall(r".*\bheadgates\b.*", code)) <= {"import headgates as hg"}
    assert EXAMPLE in said(notebook)
    assert "Warning" not in said(notebook)
    assert pictures(notebook) >= 3


def test_a_run_that_is_not_there_is_one_line(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HEADGATES_RUN", "examples/toy_run/toy-en-de-l0-0.5-s1")
    assert main(["1", "--to", str(tmp_path)]) == 1
    # Python's own word on frozen modules is left out
    (line,) = (line for line in capfd.readouterr().err.splitlines() if "debugger" not in line)
    assert line.startswith("notebooks/execute.py: error: 1_which_heads_died.ipynb: no run at ")
    assert "did you mean" in line
    assert list(tmp_path.iterdir()) == []


def test_a_map_of_open_heads_has_two_colours_and_a_legend_in_place_of_a_scale():
    heads = HeadMap({HeadSite.at("cross", layer, 3): [True, False, True] for layer in (0, 1)})
    figure = open_maps({"kept": heads})
    (axes,) = figure.axes  # and no colour bar
    (cells,) = axes.collections
    assert (cells.get_array().tolist(), cells.cmap.N) == ([[1, 0, 1]] * 2, 2)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["open", "closed"]


# ---------------------------------------------------------------- on another run


@pytest.fixture(scope="module")
def other(tiny_flags, tmp_path_factory) -> RunFolder:
    """A tiny run with closed and open heads, in a folder with its bases."""
    torch.set_num_threads(1)
    settings = read_command(Settings, [*tiny_flags, "--runs", str(tmp_path_factory.mktemp("notebooks"))])
    run = made(settings, Recipe("l0", Lambda(0.05), epochs=6)).run
    row = run.row_of("pruned")
    assert 0 < row.heads_open < row.heads_total
    return run


def state(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_on_a_run_of_another_shape_and_leaves_it_as_it_was(
    name, other, tmp_path, monkeypatch
):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("HEADGATES_RUN", str(other.path))
    before = state(other.path.parent)
    notebook = executed_notebook(ROOT / f"notebooks/{name}.ipynb", cwd=ROOT / "notebooks")
    assert other.path.name in said(notebook)
    assert pictures(notebook) >= 3
    assert state(other.path.parent) == before


def test_the_gates_of_a_run_that_was_refitted_have_their_own_steps(tiny_flags, tmp_path, monkeypatch):
    """They learned first, and the training afterwards has none."""
    torch.set_num_threads(1)
    settings = read_command(Settings, [*tiny_flags, "--runs", str(tmp_path / "runs")])
    run = made(settings, Recipe("l0", Lambda(0.05), refit="out", epochs=1)).run
    rows = [row for row in read_table(run, "metrics.csv") if row["stage"] == "gates: choice"]
    last = max(row["step"] for row in rows) + 1
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("HEADGATES_RUN", str(run.path))
    notebook = executed_notebook(ROOT / f"notebooks/{NOTEBOOKS[0]}.ipynb", cwd=ROOT / "notebooks")
    assert f"recordings over {last} steps" in said(notebook)
