"""What is refused before any process is started, or waits for one that never comes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headgates.lab import processes
from headgates.lab.processes import check_machine, join, launched, own_port, silence_others
from tests.worlds.processes import ended
from tests.worlds.ranks import free_port
from tests.worlds.runs import assert_one_line

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch):
    """As if nothing had started this process; its streams are its own again afterwards."""
    for name in (
        "TORCHELASTIC_RUN_ID",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "LOCAL_RANK",
        "NODE_RANK",
        "SLURM_NTASKS",
        "SLURM_JOB_NAME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(processes, "_silenced", [])
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)


def started_by_torchrun(monkeypatch, *, rank=0, ranks=6, of_node=3):
    values = {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": of_node,
        "LOCAL_RANK": rank % of_node,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_a_process_alone_starts_nothing():
    assert launched() is None
    assert join() == (1, 1)
    assert join(1, 1) == (1, 1)


def test_torchrun_says_how_many_there_are(monkeypatch):
    started_by_torchrun(monkeypatch)
    assert launched() == (3, 2)
    with pytest.raises(
        ValueError, match="torchrun started 3 processes on each of 2 nodes, and --devices 2 --num-nodes 2"
    ):
        join(2, 2)
    started_by_torchrun(monkeypatch, ranks=1, of_node=1)
    assert join() == (1, 1)


def test_nodes_with_different_numbers_of_processes_are_refused(monkeypatch):
    started_by_torchrun(monkeypatch, ranks=5)
    with pytest.raises(ValueError, match="3 processes here and 5 in all"):
        launched()


def test_slurm_must_have_started_as_many_tasks(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    with pytest.raises(ValueError, match="expected 8 SLURM tasks, got 1"):
        check_machine(4, 2)
    monkeypatch.setenv("SLURM_NTASKS", "8")
    check_machine(4, 2)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    started_by_torchrun(monkeypatch, ranks=8, of_node=4)  # srun started one torchrun on each node
    check_machine(4, 2)


def test_no_process_waits_for_nodes_that_nobody_starts(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    with pytest.raises(ValueError, match="start the command on every node, by torchrun or srun"):
        check_machine(4, 2)


def test_a_process_beside_the_first_is_silent_until_it_has_joined(monkeypatch, capsys):
    started_by_torchrun(monkeypatch, rank=4)
    silence_others()
    print("said twice")
    print("said twice", file=sys.stderr)
    assert capsys.readouterr() == ("", "")


SCRIPT = """
import os, sys
from datetime import timedelta
from pathlib import Path
from headgates.lab import processes
from headgates.lab.exit_code import exit_code

Path(__file__).with_name(f"{os.getpid()}.pid").touch()
processes.MEETING = timedelta(seconds=2)
sys.exit(exit_code("fit.py", lambda: processes.join(2) and None, interrupted=""))
"""


def joined(folder, **environment: object) -> tuple[int, str]:
    """The exit code and stderr of a command of two processes; none of them is left."""
    (folder / "join.py").write_text(SCRIPT)
    values = {name: str(value) for name, value in environment.items()}
    done = subprocess.run(
        [sys.executable, folder / "join.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", **values},
        capture_output=True,
        text=True,
        timeout=120,
    )
    numbers = [int(path.stem) for path in folder.glob("*.pid")]
    assert numbers
    assert all(ended(number, within=10) for number in numbers)
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line_and_leaves_no_process(tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, error = joined(tmp_path, MASTER_PORT=port)
    assert code == 1
    assert_one_line(error, f"did not meet at 127.0.0.1:{port}", "MASTER_PORT takes another port")


@pytest.mark.slow
def test_a_first_process_that_never_comes_is_one_line_after_the_time_to_meet(tmp_path):
    code, error = joined(tmp_path, MASTER_PORT=free_port(), LOCAL_RANK=1, WORLD_SIZE=2, NODE_RANK=0)
    assert code == 1
    assert_one_line(error, "did one not start within 0:00:02")


def test_jobs_of_slurm_that_are_near_in_number_take_other_ports(monkeypatch):
    ports = []
    for job in range(2000, 4000):
        for step in (0, 1):
            monkeypatch.delenv("MASTER_PORT", raising=False)
            monkeypatch.setenv("SLURM_JOB_ID", str(job))
            monkeypatch.setenv("SLURM_STEP_ID", str(step))
            own_port()
            ports.append(os.environ["MASTER_PORT"])
    assert len(set(ports)) == len(ports)
    monkeypatch.setenv("MASTER_PORT", "4711")
    own_port()
    assert os.environ["MASTER_PORT"] == "4711"
