"""Which process makes a run is seen by other machines on the same disk; a second machine is a second name in
these tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.records import heartbeat
from headgates.records.heartbeat import Heartbeat, machine
from headgates.records.run_lock import RunLocks, claim_run, lock_folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in {"BEAT": 0.02, "SILENT": 0.5, "LOOK_SECONDS": 0.01}.items():
        monkeypatch.setattr(heartbeat, name, seconds)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "runs/a"


class Clock:
    """In the place of `time`: a second machine's looks take no time, and the first beats before each of them,
    until after four times SILENT it ends."""

    def __init__(self, first: Path, end):
        self.first, self.end, self.looks, self.now = first, end, round(4 * heartbeat.SILENT / 0.01), 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.looks -= 1
        if self.looks:
            os.utime(self.first, ns=(self.looks, self.looks))
        else:
            self.end()


def test_the_second_machine_waits_as_long_as_the_first_lives(folder, capsys, monkeypatch):
    first, second = Heartbeat(folder, "abc", "one 1:2"), Heartbeat(folder, "abc", "two 1:2")
    assert first.take() == "ours"
    monkeypatch.setattr(heartbeat, "time", clock := Clock(first.path, first.end))
    assert second.take() == "waited"
    assert clock.looks == 0
    assert f"process {os.getpid()} on one is making {folder}; waiting" in capsys.readouterr().out
    second.end()
    assert list(folder.parent.iterdir()) == []


def test_a_machine_that_died_is_waited_for_only_a_while(folder):
    first, second = Heartbeat(folder, "abc", "one 1:2"), Heartbeat(folder, "abc", "two 1:2")
    assert first.make()  # and no beat
    assert second.take() == "waited"
    assert second.holder() == second.own
    first.end()
    assert second.holder() == second.own, "what is another's by now stays"
    second.end()


def test_what_a_killed_process_of_this_machine_left_is_no_reason_to_wait(folder, monkeypatch):
    monkeypatch.setattr(heartbeat, "SILENT", 1000)
    assert Heartbeat(folder, "abc", "one 1:2").make()
    again = Heartbeat(folder, "abc", "one 1:2")
    assert again.take() == "ours"
    again.end()


@pytest.mark.parametrize(("alive", "expected"), [(True, "another's"), (False, "ours")])
def test_a_folder_that_another_run_writes_is_not_taken(folder, alive, expected):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    other = Heartbeat(folder, "def", "one 1:2")
    other.own["process"] = os.getppid() if alive else process.pid
    assert other.make()
    beat = Heartbeat(folder, "abc", "one 1:2")
    assert beat.take() == expected
    assert beat.holder() == (other.own if alive else beat.own)
    beat.end()


def test_a_half_written_file_is_waited_for(folder):
    folder.parent.mkdir()
    beat = Heartbeat(folder, "abc", "one 1:2")
    beat.path.write_text('{"machine"')
    assert beat.take() == "waited"
    beat.end()


def test_processes_of_one_user_on_one_machine_have_one_name(tmp_path):
    assert machine(lock_folder()) == machine(lock_folder()) != machine(tmp_path)


# ---------------------------------------------------------------- which folder a run gets


@pytest.fixture
def claim(configure):
    def of(name, *flags, key, locks, **how):
        config = configure(*flags)
        return claim_run(
            config,
            name,
            key,
            facts={"seed": 1},
            locks=locks,
            files="vocab*",
            fresh=config.fresh,
            **how,
        )

    return of


@pytest.fixture
def other_machine(monkeypatch):
    """Its locks lie elsewhere."""

    def use(path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(path))

    return use


def test_a_second_machine_finds_the_run_finished_that_it_waited_for(
    claim, tmp_path, other_machine, monkeypatch
):
    first, second = RunLocks(), RunLocks()
    folder, done = claim("a", key={"seed": 1}, locks=first)
    assert not done
    other_machine(tmp_path / "two")

    def end() -> None:
        folder.write_json("result.json", {"finished": True})
        first.release()

    monkeypatch.setattr(heartbeat, "time", clock := Clock(first.beats[0].path, end))
    found, done = claim("a", key={"seed": 1}, locks=second)
    assert (found.path, done, clock.looks) == (folder.path, True, 0)
    assert second.beats == []
    assert [path.name for path in folder.path.parent.iterdir()] == ["a"]


@pytest.mark.parametrize("machines", [1, 2])
def test_two_runs_do_not_write_one_folder_at_once(claim, tmp_path, other_machine, machines):
    first, second = RunLocks(), RunLocks()
    folder, _ = claim("a", key={"seed": 1}, locks=first)
    (folder / "config.yaml").unlink()  # as in the moment before it is written
    if machines == 2:
        other_machine(tmp_path / "two")
    with pytest.raises(ValueError, match="holds a run with another configuration; give this one a --name"):
        claim("a", key={"seed": 2}, locks=second, strict=True)
    second.release()
    aside, _ = claim("a", key={"seed": 2}, locks=second)
    assert aside.path != folder.path
    first.release()
    second.release()


def test_a_folder_that_cannot_be_written_is_one_clear_error(claim, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr(Path, "open", refuse)  # the superuser may write everywhere
    locks = RunLocks()
    with pytest.raises(
        OSError, match=r"cannot write in .*runs: Permission denied; choose another folder with --runs"
    ):
        claim("a", key={"seed": 1}, locks=locks)
    locks.release()
    assert not (tmp_path / "runs/a").exists()
