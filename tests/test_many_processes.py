"""fit.py, prune.py and analyze.py by several processes: started by --devices, by a torchrun on each of two
nodes, and by tests that give each process what torchrun gives it.

They have the losses, rows and files of one process that accumulates as much, say everything once, and end;
what fails ends all, in one line."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from headgates.commands import analyze, fit, prune
from headgates.records.folder import RunFolder
from tests.worlds.killed import left_of
from tests.worlds.ranks import Command, free_port

ROOT = Path(__file__).parents[1]
LIMIT = 540  # seconds
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EXACT = "--model.dropout 0.0 --train.epochs 2 --rivals importance --epochs 1 --threads 1"
EXACT += " --set finetune.optimizer=adamw"  # by which fsdp trains on


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC"))
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        words, **pipes, text=True, cwd=ROOT, env={**own, **environment}, start_new_session=True
    )


def end(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each; whatever still runs after LIMIT is killed, with all that it
    started."""
    try:
        said = [process.communicate(timeout=LIMIT) for process in processes]
        return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def by_torchrun(words: list[str]) -> list[tuple[int, str, str]]:
    """Run a script's command by a torchrun on each of two nodes."""
    meeting = f"--nnodes 2 --nproc-per-node 1 --master-addr 127.0.0.1 --master-port {free_port()}".split()
    return end(*(start(*TORCHRUN, *meeting, "--node-rank", str(node), *words) for node in range(2)))


@pytest.fixture(scope="module")
def flags(tiny_flags: list[str]) -> list[str]:
    return [str(ROOT / "fit.py"), *tiny_flags, "--heads", "12", *EXACT.split()]


@pytest.fixture(scope="module")
def one(flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of one process that accumulates the batches of two."""
    runs = tmp_path_factory.mktemp("one") / "runs"
    words = [*flags, "--train.accumulate", "2", "--runs", str(runs)]
    ((code, _, error),) = Command(words, runs.parent / "said").end()
    assert code == 0, error
    return runs


@pytest.mark.parametrize("way", ["nodes", "fsdp"])
def test_two_processes_make_the_run_of_one(way, one, flags, tmp_path):
    runs = tmp_path / "runs"
    words = [*flags, "--runs", str(runs)]
    if way == "nodes":
        done = by_torchrun(words)
    else:
        done = Command([*words, "--devices", "2", "--strategy", "fsdp"], tmp_path / "started").end()
    assert [code for code, _, _ in done] == [0] * len(done), done
    said = "".join(out for _, out, _ in done)
    assert said.count("base: epoch 1 of 2") == 1
    assert sorted(path.name for path in runs.iterdir()) == sorted(path.name for path in one.iterdir())
    for folder in map(RunFolder, sorted(one.iterdir())):
        twin = RunFolder(runs / folder.path.name)
        assert sorted(path.name for path in twin.path.iterdir()) == sorted(
            path.name for path in folder.path.iterdir()
        )
        assert twin.run_hash() == folder.run_hash()
        for ours, theirs in zip(twin.rows(), folder.rows(), strict=True):
            assert (ours.system, ours.heads_open) == (theirs.system, theirs.heads_open)
            assert ours.main.value == pytest.approx(theirs.main.value, abs=1e-6)
            if theirs.stage:
                assert ours.stage["losses"] == pytest.approx(theirs.stage["losses"], abs=2e-5)
        weights = [
            torch.load(run / "best.pt", weights_only=True)["model"]
            for run in (twin, folder)
            if (run / "best.pt").is_file()
        ]
        if (
            weights and way == "fsdp"
        ):  # a key's bias shifts all scores alike: its gradient is rounding, and so is where Adam takes it
            weights = [
                {name: weight for name, weight in each.items() if not name.endswith("k_proj.bias")}
                for each in weights
            ]
        if weights:
            torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-4)
    if way == "fsdp":  # the finished run is found by all, and said once
        found = Command(words, tmp_path / "said", ranks=2).end()
        assert [code for code, _, _ in found] == [0, 0], found
        said = "".join(out for _, out, _ in found)
        assert "epoch 1 of" not in said
        assert said.count("\nnext:") == 1


def test_scores_and_analyses_by_two_processes_are_those_of_one(one, called, tmp_path):
    base = next(path for path in one.iterdir() if "-none-" in path.name)
    for script, words in {
        prune: ["--by", "importance", "--heads", "9", "--fresh"],
        analyze: ["--what", "lrp,confidence", "--fresh"],
    }.items():
        found = []
        path = str(ROOT / f"{script.__name__.rpartition('.')[2]}.py")
        for way in ("here", "ranks"):
            if way == "here":
                done = [called(script)(base, *words)]
            else:
                done = Command([path, str(base), *words], tmp_path / script.__name__, ranks=2).end()
            assert done[0][0] == 0, done
            found.append(
                {
                    path.relative_to(one): path.read_text()
                    for path in sorted([*base.rglob("*.csv"), *one.glob("compare-*/*.csv")])
                    if "metrics" not in path.name
                }
            )
        assert found[0].keys() == found[1].keys() != set()
        for name, text in found[0].items():
            for ours, theirs in zip(
                found[1][name].replace("\n", ",").split(","), text.replace("\n", ",").split(","), strict=True
            ):
                assert ours == theirs or float(ours) == pytest.approx(float(theirs), abs=1e-4), name


def test_prune_trains_by_all_processes_that_torchrun_started(one, tmp_path):
    base = RunFolder(next(path for path in one.iterdir() if "-none-" in path.name))
    words = [str(base.path), "--by", "importance", "--heads", "9", "--epochs", "1", "--runs", str(tmp_path)]
    done = Command([str(ROOT / "prune.py"), *words], tmp_path / "said", ranks=2).end()
    assert [code for code, _, _ in done] == [0, 0], done
    assert "changed:" not in done[0][1], "the base has the batches of two a step"
    (run,) = (path for path in tmp_path.glob("*-importance-*") if (path / "result.json").is_file())
    ours, theirs = (row.stage for row in (RunFolder(run).row_of("pruned"), base.row_of("base")))
    assert ours["steps"] == theirs["steps"] / theirs["epochs"]
    config = RunFolder(run).config()
    assert (config["devices"] * config["num_nodes"], config["train"]["accumulate"]) == (2, 1)


def test_what_the_first_refuses_ends_all_with_one_line(flags, tmp_path):
    runs = tmp_path / "runs"
    (runs / "taken").mkdir(parents=True)
    (runs / "taken" / "config.yaml").write_text("run_hash: of another\n")
    base_alone = [word for word in flags if word not in ("--heads", "12")]
    words = [*base_alone, "--gate", "none", "--runs", str(runs), "--name", "taken"]
    done = Command(words, tmp_path / "said", ranks=2, of_node=1).end()
    assert all(code != 0 for code, _, _ in done)
    errors = "".join(error for _, _, error in done)
    assert errors.count("fit.py: error: ") == 1, errors
    assert "taken holds a run with another configuration" in errors
    assert [path.name for path in runs.rglob("*")] == ["taken", "config.yaml"]


def test_more_processes_than_the_machine_has_are_refused(flags, called, tmp_path):
    code, _, error = called(fit)(*flags[1:], "--devices", "9999", "--runs", str(tmp_path))
    assert (code, error.count("\n")) == (1, 1), error
    assert (
        "--devices 9999: expected at most one process for each GPU, or CPU core without any; this machine has"
        in error
    )


def test_two_processes_that_are_killed_within_an_epoch_end_as_if_they_were_not(flags, tmp_path):
    """All at once by kill -9, as a machine goes down, after the third and the eighth checkpoint; with
    dropout, which draws by rank."""
    words = [*flags, *["--model.dropout", "0.1", "--set", "checkpoint_steps=2", "--resume"]]

    def command(runs: str) -> Command:
        return Command([*words, "--runs", str(tmp_path / runs)], tmp_path / "said", ranks=2)

    done = command("whole").end()
    assert [code for code, _, _ in done] == [0, 0], done
    within = []
    for checkpoints in (3, 8):
        killed = command("killed")
        seen: set[int] = set()
        while killed.running() and len(seen) < checkpoints:
            with suppress(FileNotFoundError):  # one that ended in between
                seen |= {path.stat().st_mtime_ns for path in existing(tmp_path / "killed")}
            time.sleep(0.002)
        killed.kill()
        within += [
            torch.load(path, weights_only=True)["global_step"] for path in existing(tmp_path / "killed")
        ]
    done = command("killed").end()
    assert [code for code, _, _ in done] == [0, 0], done
    whole, resumed = left_of(tmp_path / "whole"), left_of(tmp_path / "killed")
    assert whole.keys() == resumed.keys()
    timed = ("compare-*/*", "*/cards.json")  # tables that show seconds
    others = [path for path in whole if not any(Path(path).match(pattern) for pattern in timed)]
    assert [path for path in others if whole[path] != resumed[path]] == []
    batches = json.loads(next((tmp_path / "whole").glob("*-none-*/stage.json")).read_text())["steps"]
    assert any(
        step % (batches // 2) for step in within
    )  # of two epochs: not every kill was at the end of one


def existing(runs: Path) -> list[Path]:
    """The checkpoints of runs that are not finished."""
    return [
        path
        for path in runs.glob("*/*last.pt")
        if path.is_file() and not (path.parent / "result.json").is_file()
    ]


def test_a_process_that_is_killed_ends_the_others_with_one_line(flags, tmp_path):
    words = [*flags, "--runs", str(tmp_path / "runs"), "--train.epochs", "3000"]
    command = Command(words, tmp_path / "said", ranks=2)
    try:
        while command.running() and not list(tmp_path.glob("runs/*/last.pt")):  # after its first epoch
            time.sleep(0.05)
        command.processes[1].kill()
        (code, _, error), _ = command.end()
    finally:
        command.kill()
    assert code == 1, error
    assert error.count("fit.py: error: another of the 2 processes has ended") == 1
