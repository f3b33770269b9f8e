"""Two processes never make one run at once, and a folder that is no run is never emptied."""

import shutil
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from headgates.configs.cli import config_hash
from headgates.configs.recipe import Recipe, Units
from headgates.configs.settings import Settings
from headgates.data.atomic_file import machine_mark
from headgates.records.folder import RunFolder, base_of
from headgates.records.run_lock import RunLocks, abandon_run, claim_run, open_lock, remove_run

KEY = {"seed": 1}


def test_a_second_process_waits_for_the_first_and_then_goes_on(tmp_path, capsys):
    first, second = RunLocks(), RunLocks()
    first.hold(tmp_path, "abc")
    entered = threading.Event()

    def other() -> None:
        second.hold(tmp_path, "abc")
        entered.set()

    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert not entered.wait(0.3)
    first.release()
    assert entered.wait(10)
    assert "another process is making the run abc" in capsys.readouterr().out
    second.release()


def test_locks_of_other_runs_and_other_folders_do_not_meet(tmp_path):
    places = [(tmp_path, "abc"), (tmp_path, "def"), (tmp_path / "b", "abc")]
    locks = [RunLocks() for _ in places]
    for each, place in zip(locks, places, strict=True):
        each.hold(*place)
    assert [len(each.descriptors) for each in locks] == [1, 1, 1]
    for each in locks:
        each.release()
        assert each.descriptors == []


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of the locks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/headgates/locks"


def test_locks_lie_in_the_users_cache_and_are_nobody_elses(cache, tmp_path):
    locks = RunLocks()
    locks.hold(tmp_path / "runs", "abc")
    (lock,) = cache.iterdir()
    locks.release()
    assert (stat.S_IMODE(cache.stat().st_mode), stat.S_IMODE(lock.stat().st_mode)) == (0o700, 0o600)
    assert not (tmp_path / "runs").exists()


def test_a_lock_is_not_followed_through_a_symbolic_link(cache, tmp_path):
    cache.mkdir(parents=True)
    for there in (True, False):
        aim = tmp_path / f"aim-{there}"
        if there:
            aim.write_text("mine")
        (cache / f"{there}.lock").symlink_to(aim)
        with pytest.raises(OSError, match="symbolic links"):
            open_lock(str(there))
        assert aim.exists() == there
    assert (tmp_path / "aim-True").read_text() == "mine"


# ---------------------------------------------------------------- which folder a run gets


@pytest.fixture
def claim(configure, tmp_path):
    """claim("name", flags...) -> (folder, finished) of the run KEY, its locks given back."""

    def of(name, *flags, key=KEY, **how):
        config, locks = configure(*flags), RunLocks()
        how = {"fresh": config.fresh, **how}
        try:
            return claim_run(config, name, key, facts={"seed": 1}, locks=locks, files="vocab*", **how)
        finally:
            locks.release()

    return of


def finish(folder: RunFolder) -> None:
    folder.write_json("result.json", {"finished": True})


def test_a_finished_run_is_found_under_any_name(claim):
    folder, done = claim("a")
    assert not done
    finish(folder)
    again, done = claim("b")
    assert (again.path, done) == (folder.path, True)


def test_a_copy_that_comes_first_by_name_does_not_become_the_run(claim):
    folder, _ = claim("b")
    finish(folder)
    shutil.copytree(folder.path, folder.path.parent / "a-copy")
    assert claim("b")[0].path == folder.path


def test_the_folder_says_what_it_is_of_and_not_how_it_was_found(claim):
    folder, _ = claim("a", "--set", "unique=true")
    assert folder.run_hash() == config_hash(KEY)
    config = folder.config()
    assert (config["name"], config["unique"], config["resume"], config["fresh"]) == ("a", False, False, False)


def test_a_run_on_a_base_takes_its_tokenizer_along(claim):
    base, _ = claim("base")
    base.write_text("vocab.model", "pieces")
    folder, _ = claim("a", key={"seed": 2}, base=base)
    assert (folder / "vocab.model").read_text() == "pieces"
    assert folder.config()["base_hash"] == base.run_hash()


def test_what_a_killed_run_left_half_written_goes_when_it_starts_again(claim, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()  # its number is no running process
    folder, _ = claim("a")
    (tmp_path / f"theirs.{machine_mark()}-{process.pid}.part").write_text("half")
    for name in ("last.pt", "scores/importance.json"):
        folder.write_text(f"{name}.{machine_mark()}-{process.pid}.part", "half")
    (folder / "elsewhere").symlink_to(tmp_path)
    claim("a")
    assert not list(folder.path.glob("**/*.part"))
    assert (tmp_path / f"theirs.{machine_mark()}-{process.pid}.part").read_text() == "half"


def test_fresh_empties_a_run(claim):
    folder, _ = claim("a")
    folder.write_text("scores/old.json", "{}")
    finish(folder)
    again, done = claim("a", "--fresh")
    assert (again.path, done) == (folder.path, False)
    assert sorted(path.name for path in again.path.iterdir()) == ["command.txt", "config.yaml"]


@pytest.mark.parametrize(
    "file", ["thesis.tex", "config.yaml"], ids=["a folder of other files", "another program's config.yaml"]
)
def test_fresh_refuses_to_empty_a_folder_that_is_no_run(claim, tmp_path, file):
    folder = tmp_path / "runs/mine"
    folder.mkdir(parents=True)
    (folder / file).write_text("years: 3\n")
    for name in (None, "mine"):
        with pytest.raises(
            ValueError, match=r"mine (is no run folder|holds a run with another configuration)"
        ) as error:
            claim("mine", "--fresh", *(["--name", name] if name else []), strict=True)
        assert "\n" not in str(error.value)
        assert "--name" in str(error.value)
        assert [path.read_text() for path in folder.iterdir()] == ["years: 3\n"]


def test_an_abandoned_run_leaves_what_lay_there_before(claim, tmp_path):
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/thesis.tex").write_text("years")
    folder, _ = claim("mine")
    folder.write_text("vocab.model", "pieces")
    abandon_run(folder, "vocab*")
    assert [path.name for path in folder.path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("after", range(5))
def test_a_kill_while_a_run_is_deleted_leaves_it_unfinished_and_its_own(claim, monkeypatch, after):
    folder, _ = claim("mine")
    for name in ("result.json", "training-stage.json", "training-last.pt", "hypotheses/base.txt"):
        folder.write_text(name, "{}")
    left, unlink = [after], Path.unlink

    def killed(path, **options):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        unlink(path, **options)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "unlink", killed)
        remove_run(folder)
    if folder.path.exists():
        assert folder.run_hash() == config_hash(KEY)  # --fresh goes on with it
    records = [*folder.path.rglob("*.json")]
    assert not records or (folder / "training-last.pt").exists(), "they would vouch for it"


def test_what_is_left_of_another_run_is_not_taken_for_one_of_ours(claim):
    folder, _ = claim("mine")
    folder.write_text("result.json", '{"version": 1, "finished": true}')
    (folder / "config.yaml").unlink()
    with pytest.raises(ValueError, match="holds a run with another configuration"):
        claim("mine", strict=True)


def test_a_run_that_was_being_resumed_is_not_abandoned(claim):
    folder, _ = claim("a")
    folder.write_text("last.pt", "weights")
    abandon_run(folder, "vocab*")
    assert folder.run_hash() is not None


def test_a_base_in_another_folder_is_known_to_its_user_and_to_no_copy_of_the_run(cache, tmp_path):
    base = RunFolder(tmp_path / "elsewhere/base")
    base.path.mkdir(parents=True)
    base.write_text("config.yaml", "run_hash: b\n")
    config = Settings(runs=str(tmp_path / "runs"), name="a")
    locks, recipe = RunLocks(), Recipe("importance", Units(9))
    run, _ = claim_run(config, "a", KEY, facts={}, locks=locks, files="vocab*", base=base, recipe=recipe)
    locks.release()
    assert base_of(run).path == base.path
    copy = shutil.copytree(run.path, tmp_path / "copies/a")
    with pytest.raises(ValueError, match="is not beside it"):
        base_of(RunFolder(copy))
