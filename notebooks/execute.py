"""Run the notebooks on a run folder and write their .ipynb files with what they showed; the .py files beside them are what is edited.

python notebooks/execute.py                                        # on examples/toy_run, as they are committed
HEADGATES_RUN=runs/NAME python notebooks/execute.py 2 --to FOLDER  # one of them on another run, elsewhere
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
SECONDS = 600  # of one cell


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="notebooks/execute.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("numbers", nargs="*", help="numbers of the notebooks (default: all)")
    parser.add_argument("--to", default=str(HERE), help="folder for the .ipynb files (default: notebooks/)")
    given = parser.parse_args(argv)
    try:
        for source in sources(given.numbers):
            target = Path(given.to) / f"{source.stem}.ipynb"
            write(executed(source), target)
            print(f"{target}: {target.stat().st_size:,} bytes", flush=True)
    except (ValueError, OSError, CellExecutionError) as error:
        print(f"notebooks/execute.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def sources(numbers: Sequence[str] = ()) -> list[Path]:
    """The .py files of the notebooks with these numbers, all without any. Raises ValueError at a number that none has."""
    known = {path.name.split("_")[0]: path for path in sorted(HERE.glob("[0-9]_*.py"))}
    if unknown := [number for number in numbers if number not in known]:
        raise ValueError(f"no notebook {unknown[0]}; expected numbers of {', '.join(known)}")
    return [known[number] for number in numbers or known]


def executed(source: Path, *, cwd: Path = HERE) -> Any:
    """The notebook of a .py file with its outputs, run in a fresh kernel in the folder `cwd`. CellExecutionError where a cell fails."""
    notebook = jupytext.read(source)
    resources = {"metadata": {"path": str(cwd)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources, record_timing=False).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same notebook gives the same file
    notebook.metadata.get("language_info", {}).pop("version", None)
    return notebook


def write(notebook: Any, target: Path) -> None:
    """To a temporary name, then renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    nbformat.write(notebook, str(partial))
    os.replace(partial, target)


if __name__ == "__main__":
    sys.exit(main())
