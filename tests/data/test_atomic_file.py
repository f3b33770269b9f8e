"""A file is written whole or not at all, and an error says which file and what to do."""

import os
from io import FileIO

import pytest

from headgates.data.atomic_file import atomic_file, machine_mark, remove_leftovers


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    return path


def test_a_file_has_its_name_only_when_it_is_whole(path):
    with atomic_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("crash", [ValueError, OSError, KeyboardInterrupt])
def test_a_crash_in_the_middle_leaves_the_old_file_whole_and_nothing_else(path, crash):
    def write_half(file):
        file.write(b"half")
        raise crash

    with pytest.raises(crash), atomic_file(path) as file:
        write_half(file)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_the_file_before_is_kept_under_its_name(path):
    before = path.with_name("before.json")
    for content in (b"new", b"newer"):
        with atomic_file(path, previous=before) as file:
            file.write(content)
    assert (path.read_bytes(), before.read_bytes()) == (b"newer", b"new")
    path.unlink()
    with atomic_file(path, previous=before) as file:  # as after a kill between the renames
        file.write(b"newest")
    assert (path.read_bytes(), before.read_bytes()) == (b"newest", b"new")
    with pytest.raises(ValueError), atomic_file(path, previous=before) as file:
        raise ValueError
    assert (path.read_bytes(), before.read_bytes()) == (b"newest", b"new")


def test_a_planted_link_is_not_followed(path):
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    path.with_name(f"result.json.{machine_mark()}-{os.getpid()}.part").symlink_to(victim)
    with atomic_file(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), victim.read_bytes()) == (b"new", b"precious")
    assert not path.is_symlink()


def test_what_a_killed_process_left_is_removed_and_nothing_else(path, dead, monkeypatch):
    folder, mark = path.parent, machine_mark()
    left = {f"result.json.{mark}-{dead}.part", f"other.json.{mark}-{dead}.part"}
    others = f"result.json.{mark}-{os.getppid()}.part", f"result.json.{mark}-{dead}", "result.json.part"
    for name in (*left, *others, f"result.json.abcdef-{dead}.part"):  # the last of another machine
        (folder / name).write_bytes(b"half")
    (folder / f"result.json.{mark}-0{dead}.part").symlink_to(folder / "result.json.part")
    (folder / f"result.json.{mark}-00{dead}.part").mkdir()
    before, user = set(folder.iterdir()), os.getuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: user + 1)
        remove_leftovers(folder)
    assert set(folder.iterdir()) == before, "another user's"
    with atomic_file(path) as file:
        file.write(b"new")
    assert {each.name for each in before - set(folder.iterdir())} == {f"result.json.{mark}-{dead}.part"}
    remove_leftovers(folder)
    assert {each.name for each in before - set(folder.iterdir())} == left


def test_the_bytes_are_on_the_disk_before_the_file_has_its_name(path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes()))
    with atomic_file(path) as file:
        file.write(b"new")
    assert seen == [b"old"]


def test_a_writer_may_take_the_name_and_put_another_file_there(path):
    with atomic_file(path) as file:
        other = path.with_name("other")
        other.write_bytes(b"new")
        other.replace(file.name)
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_one_line_that_names_the_file(path, monkeypatch):
    monkeypatch.setattr("headgates.data.atomic_file.Path.open", lambda *_: FileIO("/dev/full", "w"))
    message = f"^cannot write {path}: No space left on device; free some space and repeat the command$"
    with pytest.raises(OSError, match=message), atomic_file(path) as file:
        file.write(b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "nowhere/a.txt"
    with (
        pytest.raises(OSError, match=f"^cannot write {path}: No such file or directory; choose a folder"),
        atomic_file(path),
    ):
        pass
