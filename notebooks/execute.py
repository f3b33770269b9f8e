"""Execute the notebooks on a run folder and write them with their outputs.

python notebooks/execute.py                                        # all, in place, on examples/toy_run
HEADGATES_RUN=runs/NAME python notebooks/execute.py 2 --to FOLDER  # one of them on another run, elsewhere
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
SECONDS = 600  # of one cell


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="notebooks/execute.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("numbers", nargs="*", help="numbers of the notebooks (default: all)")
    parser.add_argument("--to", default=str(HERE), help="folder to write to (default: notebooks/, in place)")
    given = parser.parse_args(argv)
    try:
        for source in notebook_files(given.numbers):
            target = Path(given.to) / f"{source.stem}.ipynb"
            write(executed_notebook(source), target)
            print(f"{target}: {target.stat().st_size:,} bytes", flush=True)
    except CellExecutionError as error:  # its text is the whole cell and its traceback
        mistake = error.evalue if error.ename == "ValueError" else error
        print(f"notebooks/execute.py: error: {source.name}: {mistake}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"notebooks/execute.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def notebook_files(numbers: Sequence[str] = ()) -> list[Path]:
    """The notebooks with these numbers, all of them without any. Raises ValueError for a number that no
    notebook has."""
    by_number = {path.name.split("_")[0]: path for path in sorted(HERE.glob("[0-9]_*.ipynb"))}
    if unknown := [number for number in numbers if number not in by_number]:
        raise ValueError(f"no notebook {unknown[0]}; expected numbers of {', '.join(by_number)}")
    return [by_number[number] for number in numbers or by_number]


def executed_notebook(source: Path, *, cwd: Path = HERE) -> Any:
    """The notebook with new outputs, run in a fresh kernel in the folder `cwd`. Raises CellExecutionError
    where a cell fails."""
    notebook = nbformat.read(source, as_version=4)
    resources = {"metadata": {"path": str(cwd)}}
    options = {
        "timeout": SECONDS,
        "record_timing": False,
        "extra_arguments": ["--log-level=ERROR"],
    }  # of the kernel itself
    # a warning of tqdm names a folder of the machine
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress")
    NotebookClient(notebook, kernel_name="python3", resources=resources, **options).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same notebook gives the same file
    notebook.metadata.get("language_info", {}).pop("version", None)
    return notebook


def write(notebook: Any, target: Path) -> None:
    """Write the notebook to `target`; a crash leaves the old file whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    nbformat.write(notebook, str(partial))
    os.replace(partial, target)


if __name__ == "__main__":
    sys.exit(main())
