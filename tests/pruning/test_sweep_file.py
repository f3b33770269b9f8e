"""Sweep files: which trials they define, and what is refused before anything starts."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from headgates.commands.fit import FitOptions
from headgates.configs.cli import read_command
from headgates.pruning.sweep_file import read_sweep

ROOT = Path(__file__).resolve().parents[2]
GRID = {"lambda": {"values": [0.1, 0.2]}, "seed": {"value": 3}, "kinds": {"values": ["cross", "enc-self"]}}


@pytest.fixture
def written(tmp_path):
    """written(key=value) -> a sweep file with these keys changed; None leaves a key out."""

    def write(**changes):
        content = {"program": "fit.py", "method": "grid", "parameters": GRID} | changes
        text = yaml.safe_dump(
            {key: value for key, value in content.items() if value is not None}, sort_keys=False
        )
        (tmp_path / "own.yaml").write_text(text)
        return str(tmp_path / "own.yaml")

    return write


@pytest.mark.parametrize("path", sorted((ROOT / "configs/sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_fit_reads_every_trial_of_a_file_of_ours_as_the_agent_would_start_it(path, monkeypatch, tmp_path):
    wandb_agent = pytest.importorskip("wandb.wandb_agent")
    started = []
    monkeypatch.setattr(
        wandb_agent, "AgentProcess", lambda command, **_: started.append(command) or SimpleNamespace()
    )
    for name, value in {
        "WANDB_DIR": str(tmp_path),
        "WANDB_RUN_ID": "-",
        "WANDB_SWEEP_PARAM_PATH": "-",
    }.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "wandb/sweep-None").mkdir(parents=True)
    agent = wandb_agent.Agent(api=None, queue=None)
    content = yaml.safe_load(path.read_text())
    agent._sweep_command = content["command"]
    settings, words = read_sweep(str(path))[1]
    options = read_command(FitOptions, words)
    values = {name: entry.get("value", settings.get(name)) for name, entry in content["parameters"].items()}
    args = {name: {"value": value} for name, value in values.items()}
    agent._command_run({"type": "run", "run_id": "abc", "program": "fit.py", "args": args})
    assert started == [["/usr/bin/env", "python", "fit.py", *words]]
    assert (options.lam, options.resume, options.logger) == ([values["lambda"]], True, "wandb")


def test_the_last_parameter_changes_fastest_and_stands_where_the_command_says(written):
    command = ["python", "${program}", "--logger", "wandb", "${args}", "--resume"]
    trials = read_sweep(written(command=command))
    points = [(0.1, "cross"), (0.1, "enc-self"), (0.2, "cross"), (0.2, "enc-self")]
    assert [settings for settings, _ in trials] == [{"lambda": lam, "kinds": kind} for lam, kind in points]
    assert trials[2][1] == ["--logger", "wandb", "--lambda=0.2", "--seed=3", "--kinds=cross", "--resume"]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"method": "bayes"}, "method"),
        ({"early_terminate": {"type": "hyperband"}}, "early_terminate"),
        ({"run_cap": 3}, "run_cap"),
        ({"parameters": {"lambda": {"min": 0.1, "max": 1.0}}}, "parameters.lambda"),
        ({"parameters": {"lambda": {"values": []}}}, "parameters.lambda"),
        ({"parameters": {"lambda": {"values": [0.1], "probabilities": [1]}}}, "parameters.lambda"),
        ({"parameters": None}, "parameters"),
        ({"program": "other.py"}, "program"),
        ({"command": ["python", "${args}"]}, "command"),
    ],
)
def test_what_is_no_grid_of_fit_is_refused_in_one_line_that_names_it_and_the_agent(written, changes, name):
    path = written(**changes)
    with pytest.raises(ValueError, match="wandb agent") as raised:
        read_sweep(path)
    assert str(raised.value).startswith(f"{path}: {name}: ")
    assert "\n" not in str(raised.value)
