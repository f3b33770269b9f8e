"""Whether what a command line names is there, as far as the file system says. Scripts ask this before they
import torch and Lightning, which takes seconds; nothing here imports them. What stands in the files is
checked where they are read."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from headgates.configs.settings import Settings
from headgates.data import check_text
from headgates.data.ranks import first
from headgates.data.text import DataError
from headgates.data.text_file import no_file
from headgates.records.folder import RunFolder
from headgates.records.foreign_source import is_foreign


def check_run(source: str, *, exported: bool = False) -> None:
    """Raises ValueError unless there is a run folder, or PREFIX:PLACE with a known prefix, whose reader
    checks the place. exported: a folder that export.py wrote will do too."""
    if is_foreign(source):
        return
    if exported:
        from headgates.bridges.exported import is_exported  # here: most commands need none of it

        if is_exported(source):
            return
    RunFolder.open(source)


def check_files(*paths: str | None) -> None:
    """Raises DataError unless each of the paths that are given may be a file; it may also be a pipe."""
    for path in map(Path, filter(None, paths)):
        if not path.exists():
            raise no_file(path)
        if path.is_dir():
            raise DataError(f"expected a file, got the folder {path}")


def check_texts(places: Sequence[str]) -> None:
    """Raises DataError unless each place of --trim-vocabulary is there: a file or folder, or two files
    SOURCE:TARGET; and where all are blank files."""
    sources = []
    for place in places:
        files = [place] if Path(place).exists() else place.split(":")
        sources.append(Path(files[0]))
        if not Path(place).is_dir() and len(files) <= 2:  # more are refused where they are read
            check_files(*files)
    if places and all(map(is_blank, sources)):
        raise no_line_of(places)


def is_blank(path: Path) -> bool:
    """Whether it is a file without text. A pipe, which can be read once, is not looked at."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return all(line.isspace() for line in file)


def no_line_of(places: Sequence[str]) -> DataError:
    return DataError(f"--trim-vocabulary {','.join(places)}: there is no line with text in it")


def check_data_dir(data_dir: str | None) -> None:
    """Raises DataError where --data-dir is given and no folder."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(
            f"--data-dir {data_dir} is not a folder; make it first, or leave it out to use the cache"
        )


def check_writable(runs: str) -> None:
    """Raises OSError unless runs can be written in this folder, or it can be made."""
    folder = Path(runs)
    try:
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise OSError(
            f"cannot write in {folder}: {error.strerror}; choose another folder with --runs"
        ) from None


def check_settings(settings: Settings) -> None:
    """Raises ValueError where the text of a base is not there, OSError where its run cannot be written. The
    text of a task of another kind is that task's to find."""
    first(lambda: check_writable(settings.runs))
    check_data_dir(settings.data_dir)
    if settings.task == "translation" and settings.data is not None:
        check_text(settings.data, data_dir=settings.data_dir, src=settings.src, tgt=settings.tgt)
