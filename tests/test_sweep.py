"""sweep.py as its user meets it: a sweep of two trials on one base, the agent's command run once, what is
refused and how."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from headgates.commands import sweep
from headgates.workbench.folder import RunFolder
from headgates.workbench.sweeps.command import agent_command
from headgates.workbench.sweeps.sweep_file import parse_sweep

ROOT = Path(__file__).parents[1]
LETTERS = "abcdefg"


@pytest.fixture
def sweep_here(called):
    """sweep_here(words...) -> (exit code, stdout, stderr)."""
    return called(sweep)


@pytest.fixture
def settings(tmp_path):
    """A configuration over text of its own that trains in a second: 21 heads."""
    folder = tmp_path / "text"
    folder.mkdir()
    for split, start, count in (("train", 0, 61), ("valid", 61, 11), ("test", 72, 13)):
        lines = [
            " ".join(LETTERS[(i // 7**k) % 7] * 2 for k in range(4)) for i in range(start, start + count)
        ]
        (folder / f"{split}.xx").write_text("".join(line + "\n" for line in lines))
        (folder / f"{split}.yy").write_text("".join(line.upper() + "\n" for line in lines))
    model = {"d_model": 14, "heads": 7, "ffn": 11, "encoder_layers": 1, "decoder_layers": 1}
    config = {"data": str(folder), "src": "xx", "tgt": "yy", "precision": "32", "model": model}
    config |= {"text": {"vocab_size": 37, "max_tokens": 67}, "search": {"beam": 1}}
    config |= {"train": {"epochs": 2, "bleu_sentences": 0}, "finetune": {"epochs": 1, "bleu_sentences": 0}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "config.yaml"


def write(path, **changes):
    content = {
        "program": "fit.py",
        "method": "grid",
        "parameters": {"lambda": {"values": [0.1, 0.2]}},
    } | changes
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


# ---------------------------------------------------------------- with training


def test_two_jobs_share_one_base_and_the_sweep_ends_with_its_figure(
    sweep_here, settings, tmp_path, monkeypatch
):
    parameters = {
        "config": {"value": str(settings)},
        "lambda": {"values": [0.1, 3.0]},
        "systems": {"value": "base,l0"},
    }
    file, runs = write(tmp_path / "own.yaml", parameters=parameters), tmp_path / "runs"
    words = (file, "--runs", runs, "--jobs", 2, "--threads", 1)
    code, out, error = sweep_here(*words)
    assert (code, error) == (0, ""), out + error
    names = ["text-xx-yy-l0-0.1-s1", "text-xx-yy-l0-3-s1"]
    assert sorted(path.name for path in runs.iterdir()) == ["sweep-own", *names, "text-xx-yy-none-s1"], (
        "one base for both"
    )
    logs = [(runs / f"sweep-own/logs/00{number}.log").read_text() for number in (1, 2)]
    assert sorted("base: training" in log for log in logs) == [False, True], "and it was trained once"

    records = json.loads((runs / "sweep-own/trials.json").read_text())["trials"]
    assert [record["run"] for record in records] == names
    for record in records:
        row = {
            row["system"]: row for row in RunFolder(runs / record["run"]).read_json("result.json")["rows"]
        }["l0"]
        assert (record["result"]["bleu"], record["result"]["heads_open"]) == (row["bleu"], row["heads_open"])
        assert re.search(
            rf"trial {record['number']} of 2 \(lambda {record['parameters']['lambda']:g}\): done", out
        )
    with (runs / "sweep-own/pareto.csv").open(newline="") as table:
        assert {row["run"] for row in csv.DictReader(table)} >= set(names)
    for name in ("pareto.png", "pareto.svg"):
        assert (runs / "sweep-own" / name).stat().st_size > 1000
        assert f"figure: {runs / 'sweep-own' / name}" in out
    assert (runs / "sweep-own/sweep.yaml").read_text() == file.read_text()

    start = subprocess.Popen

    def popen(words, *rest, **options):
        if words[0] != "git":  # what the record of the table asks for the commit
            raise AssertionError("started a process")
        return start(words, *rest, **options)

    monkeypatch.setattr("headgates.workbench.sweeps.jobs.subprocess.Popen", popen)
    code, out, error = sweep_here(*words)
    assert (code, error) == (0, "")
    assert "0 of 2 trials to run" in out
    # another sweep with one trial of the same configuration: its run is there
    code, out, _ = sweep_here(*words, "--name", "other", "--count", 1)
    assert code == 0
    assert "trial 1 of 1 (lambda 0.1): done, finished before" in out
    words = ("--out", tmp_path / "drawn", "--map", "auto")
    code, out, error = sweep_here("pareto", runs / names[0], "--siblings", *words)
    assert (code, error) == (0, "")
    assert (tmp_path / "drawn/pareto.md").is_file()
    with (tmp_path / "drawn/pareto.csv").open(newline="") as table:
        assert {row["run"] for row in csv.DictReader(table)} >= set(names), "the sibling too"


def test_the_agents_command_for_a_sweep_of_ours_runs_on_a_tiny_toy(tmp_path):
    """Word for word what W&B's agent starts (tests/sweeps/test_command.py), with the tiny configuration added
    as the file says."""
    content = yaml.safe_load((ROOT / "configs/sweeps/lambda.yaml").read_text())
    content["parameters"] |= {
        "config": {"value": "configs/toy_tiny.yaml"},
        "train.epochs": {"value": 1},
        "test_sentences": {"value": 7},
    }
    file = parse_sweep(content, Path("lambda.yaml"))
    (draw,) = file.draws(seed=1, count=1)
    words = agent_command(file.command, "fit.py", draw.values)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "WANDB_MODE": "offline",
    }
    arguments = [*words, "--runs", str(tmp_path)]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    run = RunFolder.open(tmp_path / f"toy-en-de-l0-{draw.values['lambda']:g}-s{draw.values['seed']}")
    assert run.finished()
    assert run.config()["lambda"] == draw.values["lambda"]
    assert [row["system"] for row in run.read_json("result.json")["rows"]] == [
        "base",
        "base-continued",
        "l0",
        "greedy",
    ]


# ---------------------------------------------------------------- without training


@pytest.fixture
def commands(monkeypatch):
    """The command lines of the trials that would run, by number; none of them does."""
    found = {}

    def run_trials(state, trials, **_):
        found.clear()
        found.update({trial.number: trial.command for trial in trials})

    monkeypatch.setattr("headgates.workbench.sweeps.jobs.run_trials", run_trials)
    return found


def test_the_machines_choices_are_the_last_words_and_only_failed_trials_begin_afresh(
    sweep_here, settings, tmp_path, commands, monkeypatch
):
    monkeypatch.setattr("headgates.workbench.sweeps.jobs.cores", lambda: 11)
    here, elsewhere = (str(tmp_path / name) for name in ("here", "elsewhere"))
    for folder in (here, elsewhere):
        Path(folder).mkdir()
    parameters = {
        "config": {"value": str(settings)},
        "lambda": {"values": [0.1, 0.2, 0.3]},
        "data-dir": {"value": elsewhere},
    }
    file = write(
        tmp_path / "own.yaml",
        parameters=parameters,
        command=["${interpreter}", "${program}", "--logger", "wandb", "${args}"],
    )
    words = (file, "--runs", tmp_path / "runs", "--jobs", 2)
    code, out, error = sweep_here(*words)
    assert (code, error) == (0, "")
    assert "3 of 3 trials to run, 2 at once, 5 threads each" in out
    assert "no trial is done, so there is no figure" in out
    begin = [
        sys.executable,
        str(ROOT / "fit.py"),
        "--logger",
        "wandb",
        f"--config={settings}",
        "--lambda=0.2",
        f"--data-dir={elsewhere}",
    ]
    own = ["--resume", "--unique", "--logger", "csv", "--runs", str(tmp_path / "runs"), "--threads", "5"]
    assert commands[2] == [*begin, *own]
    sweep_here(*words, "--logger", "wandb", "--threads", 3, "--data-dir", here, "--count", 2)
    assert sorted(commands) == [1, 2]
    assert commands[2][-7:] == [
        "wandb",
        "--runs",
        str(tmp_path / "runs"),
        "--threads",
        "3",
        "--data-dir",
        here,
    ]

    path = tmp_path / "runs/sweep-own/trials.json"
    content = json.loads(path.read_text())
    content["trials"][0]["status"], content["trials"][1]["status"] = "failed", "running"
    path.write_text(json.dumps(content))
    code, out, _ = sweep_here(*words)
    assert (code, sorted(commands)) == (1, [2, 3])
    assert "1 of 3 trials failed; --retry tries them again" in out
    path.write_text(json.dumps(content))
    sweep_here(*words, "--retry")
    assert [number for number in commands if "--fresh" in commands[number]] == []
    path.write_text(json.dumps(content))
    sweep_here(*words, "--fresh")
    assert sorted(commands) == [1, 2, 3]
    assert [number for number in commands if "--fresh" in commands[number]] == [1]


def test_a_sibling_that_cannot_be_compared_costs_the_sweep_no_figure(
    sweep_here, settings, tmp_path, commands, monkeypatch
):
    drawn = []

    def with_siblings(folders, _):
        raise ValueError("BLEU on different test sets cannot be compared")

    monkeypatch.setattr("headgates.workbench.sweeps.runs.with_siblings", with_siblings)
    monkeypatch.setattr(
        "headgates.report.bleu_heads.write_bleu_heads",
        lambda folders, out, title: drawn.append((folders, out, title)),
    )
    file = write(
        tmp_path / "own.yaml", parameters={"config": {"value": str(settings)}, "lambda": {"value": 0.1}}
    )
    folder = tmp_path / "runs/sweep-own"
    sweep_here(file, "--runs", tmp_path / "runs")
    record = json.loads((folder / "trials.json").read_text())
    record["trials"][0] |= {
        "status": "done",
        "run": "this",
        "result": {"heads_open": 3, "heads_total": 7, "bleu": 2.0, "bleu_ci95": [1, 3]},
    }
    (folder / "trials.json").write_text(json.dumps(record))
    (tmp_path / "runs/this").mkdir()
    code, out, _ = sweep_here(file, "--runs", tmp_path / "runs")
    assert code == 0
    assert "without siblings: BLEU on different test sets cannot be compared" in out
    ((folders, out_folder, title),) = drawn
    assert ([run.path for run in folders], out_folder, title) == (
        [tmp_path / "runs/this"],
        folder,
        "sweep-own",
    )


def test_dashboard_is_asked_for_with_its_target(sweep_here, monkeypatch):
    asked = []
    dashboard = SimpleNamespace(make_dashboard=lambda target, out, report: asked.append((target, out)))
    monkeypatch.setitem(
        sys.modules, "headgates.workbench.sweeps.dashboard", dashboard
    )  # the real one needs wandb-workspaces
    assert sweep_here("dashboard", "me/headgates", "--out", "here.json")[0] == 0
    assert sweep_here("dashboard", "me/headgates")[0] == 0
    assert asked == [("me/headgates", "here.json"), ("me/headgates", None)]


# ---------------------------------------------------------------- refused


@pytest.fixture
def nothing_starts(monkeypatch):
    start = subprocess.Popen

    def popen(words, *rest, **options):
        if words[0] != "git":  # what the record of the table asks for the commit
            raise AssertionError("started a process")
        return start(words, *rest, **options)

    monkeypatch.setattr("headgates.workbench.sweeps.jobs.subprocess.Popen", popen)


def assert_one_line(error, *words):
    (line,) = error.strip().splitlines()
    assert line.startswith("sweep.py: error: ")
    assert [word for word in words if word not in line] == [], line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"parameters": {"lambda": {"values": [0.1, "abc"]}}},
            ["trial 2 (lambda abc)", "--lambda: expected a number, got 'abc'"],
        ),
        (
            {"parameters": {"lambda": {"value": 0.1}, "kinds": {"value": "crss"}}},
            ["trial 1", "kinds crss", "did you mean 'cross'?"],
        ),
        ({"parameters": {"lamda": {"value": 0.1}}}, ["parameters.lamda", "did you mean 'lambda'?"]),
        ({"parameters": {"config": {"value": "no/such.yaml"}}}, ["trial 1", "no/such.yaml: No such file"]),
        ({"parameters": {"data": {"value": "mutli30k"}}}, ["mutli30k", "multi30k"]),
        ({"command": ["bash", "-c", "true", "${program}"]}, ["command: expected", "got bash"]),
        ({"method": "bayes"}, ["method bayes: supported locally are grid and random"]),
        ({"method": "random"}, ["give --count, or run_cap"]),
        ({"metric": {"name": "belu"}}, ["no run logs 'belu' (did you mean 'bleu'?)"]),
    ],
)
def test_a_wrong_sweep_is_one_line_before_anything_starts(
    sweep_here, tmp_path, nothing_starts, changes, words
):
    code, out, error = sweep_here(write(tmp_path / "own.yaml", **changes), "--runs", tmp_path / "runs")
    assert (code, out) == (1, "")
    assert_one_line(error, *words)
    assert not (tmp_path / "runs").exists()


def test_another_sweep_under_the_same_name_is_refused(sweep_here, tmp_path, nothing_starts):
    folder = tmp_path / "runs/sweep-own"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("program: fit.py\nmethod: grid\nparameters: {lambda: {values: [7]}}\n")
    (folder / "trials.json").write_text(
        '{"seed": 1, "trials": [{"number": 1, "parameters": {"lambda": 7}, "status": "done"}]}'
    )
    code, _, error = sweep_here(write(tmp_path / "own.yaml"), "--runs", tmp_path / "runs")
    assert code == 1
    assert_one_line(
        error,
        f"{folder} holds another sweep (parameters); give this one a --name of its own, or remove {folder}",
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["FILE is missing"]),
        (["a.yaml", "--jobs", "0"], ["--jobs: expected a number at least 1, got 0"]),
        (["a.yaml", "--name", "a/b"], ["--name: expected a plain name, without separators"]),
        (["a.yaml", "--logger", "tensorboard"], ["--logger: expected one of csv, wandb"]),
        (["a.yaml", "--cuont", "3"], ["unknown flag --cuont; did you mean --count?"]),
        (
            ["a.yaml", "--runs", __file__],
            [f"--runs: expected the folder of all runs, got the file {__file__}"],
        ),
        (
            ["paretto", "runs/x", "--siblings"],
            ["paretto is neither a sweep file nor a command (did you mean 'pareto'?)"],
        ),
        (["dashbord", "me/headgates"], ["(did you mean 'dashboard'?)"]),
        (["pareto"], ["sweep.py pareto: error: RUNS is missing"]),
        (["pareto", "run", "--map", "most"], ["--map: expected the lambda of a run, or auto, got 'most'"]),
        (["pareto", "run", "--name", "a/b"], ["--name: expected a plain name"]),
        (["dashboard"], ["sweep.py dashboard: error: TARGET is missing"]),
    ],
)
def test_a_wrong_command_line_exits_with_2(sweep_here, words, parts):
    code, _, error = sweep_here(*words)
    assert code == 2
    assert [part for part in parts if part not in error] == [], error


def test_a_run_that_is_not_there_is_named(sweep_here, tmp_path):
    code, _, error = sweep_here("pareto", tmp_path / "no-run")
    assert code == 1
    assert_one_line(error, f"no run at {tmp_path / 'no-run'}")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["--jobs", "--count", "sweep.py pareto"]),
        (["pareto"], ["--siblings"]),
        (["dashboard"], ["--out"]),
    ],
)
def test_help_answers_for_each_command(sweep_here, words, parts):
    code, out, _ = sweep_here(*words, "--help")
    assert code == 0
    assert [part for part in parts if part not in out] == []
