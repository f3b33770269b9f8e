"""A folder appears whole or not at all, and what a killed process left of it goes."""

import os

import pytest

from headgates.data.atomic_file import machine_mark
from headgates.data.atomic_folder import atomic_folder


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_has_its_name_only_at_the_end_and_replaces_the_one_before(tmp_path):
    place = tmp_path / "above" / "made"
    for text in ("first", "second"):
        with atomic_folder(place) as draft:
            (draft / "file").write_text(text)
            assert not place.exists() or (place / "file").read_text() != text
        assert (place / "file").read_text() == text
    assert names(place.parent) == ["made"]


def write_half(place, error: type[BaseException]) -> None:
    with atomic_folder(place) as draft:
        (draft / "file").write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_all_is_as_before(tmp_path, error):
    with pytest.raises(error):
        write_half(tmp_path / "above" / "made", error)
    assert names(tmp_path) == []
    with atomic_folder(tmp_path / "made") as draft:
        (draft / "file").write_text("whole")
    with pytest.raises(error):
        write_half(tmp_path / "made", error)
    assert names(tmp_path) == ["made"]
    assert (tmp_path / "made/file").read_text() == "whole"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere nothing says harmlessly whether a process runs")
def test_drafts_of_killed_processes_go_and_all_else_stays(tmp_path, dead):
    mark = machine_mark()
    (tmp_path / "mine").mkdir()
    kept = {f".made.{mark}-{os.getppid()}", f".other.{mark}-{dead}", ".made.notes", f"made.{dead}"}
    for name in (f".made.{mark}-{dead}", *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / f".made.{mark}-{dead}1").symlink_to(tmp_path / "mine")
    with atomic_folder(tmp_path / "made"):
        pass
    assert set(names(tmp_path)) - {f".made.{mark}-{dead}1"} == {"made", "mine", *kept}
    assert (tmp_path / f".made.{mark}-{dead}1").is_symlink()
