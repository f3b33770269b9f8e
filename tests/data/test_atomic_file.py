"""A file is written whole or not at all, and an error says which file and what to do."""

import os
from io import FileIO

import pytest

from data.atomic_file import atomic_file


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


@pytest.mark.parametrize("crash", [ValueError, OSError, RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_a_crash_in_the_middle_leaves_the_old_file_whole_and_nothing_else(path, crash):
    def write_half(file):
        file.write(b"half")
        raise crash

    with pytest.raises(crash), atomic_file(path) as file:
        write_half(file)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_a_planted_link_is_not_followed(path):
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    path.with_name(f"result.json.{os.getpid()}.part").symlink_to(victim)
    with atomic_file(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), victim.read_bytes()) == (b"new", b"precious")
    assert not path.is_symlink()


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
    monkeypatch.setattr("data.atomic_file.Path.open", lambda *_: FileIO("/dev/full", "w"))
    message = f"^cannot write {path}: No space left on device; free some space and repeat the command$"
    with pytest.raises(OSError, match=message), atomic_file(path) as file:
        file.write(b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "nowhere/a.txt"
    with pytest.raises(OSError, match=f"^cannot write {path}: No such file or directory; choose a folder"), atomic_file(path):
        pass
