"""What is refused before any process is started, or waits for one that never comes."""

import sys

import pytest

from headgates.workbench import processes
from headgates.workbench.processes import check_machine, join, launched, silence_others


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
