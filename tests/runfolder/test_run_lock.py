"""Two processes never make one run at once."""

import threading

from runfolder.run_lock import Locks


def test_a_second_process_waits_for_the_first_and_then_goes_on(tmp_path, capsys):
    first, second = Locks(), Locks()
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


def test_locks_of_different_runs_do_not_meet(tmp_path):
    first, second = Locks(), Locks()
    first.hold(tmp_path, "abc")
    second.hold(tmp_path, "def")
    assert [len(first.files), len(second.files)] == [1, 1]
    first.release()
    second.release()
    assert first.files == second.files == []
