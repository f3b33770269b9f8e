"""Which W&B runs a command opens, under `wandb agent`, without a login, with names that W&B refuses; and one
that W&B fails."""

import os
import re
from pathlib import Path

import pytest

from headgates.configs.cli import read
from headgates.configs.metrics import SUMMARY
from headgates.configs.schema import FitConfig
from headgates.lightning_modules import tracker as trackers
from headgates.lightning_modules.tracker import AGENT, Tracker, check_name, make_tracker, mode_without_asking
from headgates.lightning_modules.wandb_run import GateMaps, StageLogger, WandbRun
from headgates.workbench.folder import find_runs
from headgates.workbench.lab import Lab
from tests.lightning_modules.offline_run import (
    artifacts,
    fit,
    fragments,
    of,
    records,
    run_record,
    seen,
    summary,
    without_login,
)

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

ROOT = Path(__file__).parents[2]
SHORT = ["--train.epochs", "1", "--finetune.epochs", "1", "--systems", "base,l0"]
FACTS = {"commit": "abc1234", "device": "a chip", "versions": {"python": "3"}}


@pytest.fixture(autouse=True, scope="module")
def offline(tmp_path_factory):
    with without_login(tmp_path_factory.mktemp("home")) as home:
        yield home


# ---------------------------------------------------------------- wandb agent


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """agent(id) puts this process into the environment that `wandb agent` starts a command in."""

    def start(run_id):
        parameters = tmp_path / f"config-{run_id}.yaml"
        parameters.write_text("wandb_version: 1\n\nlambda:\n  value: 0.1\n")
        for name, value in zip(AGENT, ("sweep1", run_id, str(parameters)), strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WANDB_PROJECT", "another")
        monkeypatch.setenv(
            "WANDB_DIR", str(tmp_path)
        )  # the agent's own folder: runs are kept in theirs all the same

    return start


def test_an_agents_run_is_the_one_asked_for_and_the_base_stands_outside_the_sweep(
    tiny_flags, tmp_path, agent
):
    agent("point1")
    flags = [tiny_flags, tmp_path / "runs", *SHORT, "--logger", "wandb"]
    run, _ = fit(*flags)
    assert [os.environ[name] for name in AGENT[:2]] == ["sweep1", "point1"]
    base, gated = find_runs(tmp_path / "runs")[::-1]
    outside, inside = run_record(base), run_record(gated)
    assert (inside["run_id"], inside["sweep_id"], inside["project"]) == ("point1", "sweep1", "another")
    assert inside["config"]["update"]["lambda"] == 0.1
    assert "sweep_id" not in outside
    assert outside["run_id"] == base.read_json("wandb.json")["id"] != "point1"
    assert outside["project"] == "another"
    assert gated.read_json("wandb.json")["id"] == "point1"

    agent("point2")  # another agent draws the same settings
    again, _ = fit(*flags)
    assert again.path == run.path
    found = records(gated)
    assert [record["run_id"] for record in of("run", found)] == ["point1", "point2"]
    end = [kind for kind, _ in found].index("exit") + 1
    first, second = found[:end], found[end:]
    assert [record.get("exit_code", 0) for record in of("exit", found)] == [0, 0]
    assert {name: summary(second)[name] for name in SUMMARY} == {
        name: summary(first)[name] for name in SUMMARY
    }
    assert artifacts(first).keys() == artifacts(second).keys() >= {f"{gated.path.name}-gates"}
    assert seen(second, "gates") == seen(first, "gates") != []
    assert [record["name"] for record in of("artifact", second) if record["type"] == "run_table"] == [
        "run-point2-comparison",
        "run-point2-translations",
    ]
    assert gated.read_json("wandb.json")["id"] == "point1"  # which saw it trained
    assert len(fragments(base)) == 1


def test_the_base_is_the_agents_run_where_it_is_what_was_asked_for(tiny_flags, tmp_path, agent):
    agent("point3")
    base, _ = fit(tiny_flags, tmp_path / "runs", *SHORT, "--logger", "wandb", "--gate", "none")
    record = run_record(base)
    assert (record["run_id"], record["sweep_id"], record["job_type"]) == ("point3", "sweep1", "base")


# ---------------------------------------------------------------- names and logins


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "n" * 129])
def test_a_name_that_wandb_refuses_is_one_line_before_anything_is_made(
    name, configure, monkeypatch, tmp_path
):
    with pytest.raises(wandb.Error):  # W&B's own opinion
        wandb.Settings(project=name)
    for variable in ("WANDB_PROJECT", "WANDB_ENTITY"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, name)
            with pytest.raises(ValueError, match=variable) as error:
                Lab(configure("--logger", "wandb"))
        text = str(error.value)
        assert "\n" not in text
        assert "letters, digits, '-', '_' and '.', and none of / \\ # ? % :" in text
        wandb.Settings(project=text.rpartition("take for example ")[2])  # the cure is one
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["headgates", "a_b-c.1", "köpfe", "two words", "n" * 128])
def test_other_names_are_taken(name):
    check_name("WANDB_PROJECT", name)
    assert wandb.Settings(project=name).project == name


def test_wandb_is_offline_without_a_login_and_keeps_the_mode_that_was_chosen(monkeypatch):
    wandb.teardown()
    assert mode_without_asking() == "offline"
    wandb.teardown()
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    assert mode_without_asking() is None
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mode_without_asking() is None
    wandb.teardown()


def test_only_wandb_that_is_asked_for_and_not_disabled_is_followed(configure, monkeypatch):
    assert type(make_tracker(configure(), FACTS)) is Tracker
    assert type(make_tracker(configure("--logger", "tensorboard"), FACTS)) is Tracker
    assert type(make_tracker(configure("--logger", "wandb"), FACTS)) is not Tracker
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert type(make_tracker(configure("--logger", "wandb"), FACTS)) is Tracker


def test_wandb_that_is_not_installed_is_named_with_the_cure(configure, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install wandb, or take --logger csv"):
        make_tracker(configure("--logger", "wandb"), FACTS)


def test_nothing_imports_wandb_before_it_is_asked_for():
    early = [
        path.name
        for path in (ROOT / "lightning_modules").glob("*.py")
        if re.search(r"^(import|from) wandb", path.read_text(), re.M)
    ]
    assert early == []


def test_only_the_stage_of_the_gates_is_looked_on(folder):
    tracker = make_tracker(read(FitConfig, ["--logger", "wandb"]), FACTS)
    run = type(
        "Run",
        (),
        {"id": "a1", "project": "p", "entity": None, "settings": type("S", (), {"mode": "offline"})},
    )()
    tracker.runs.append(WandbRun(run, folder, "gates", FACTS))
    assert tracker.watchers("greedy-finetuned") == []
    (watcher,) = tracker.watchers("gates")
    assert isinstance(watcher, GateMaps)


def test_a_history_that_wandb_does_not_take_costs_one_line_and_no_training(folder, capsys):
    class Broken:
        id, project, entity = "a1", "headgates", None

        class settings:
            mode = "offline"

        def log(self, row):
            raise OSError(28, "No space left on device")

    run = WandbRun(Broken(), folder, "base", FACTS)
    logger = StageLogger(run, "base")
    for step in range(3):
        logger.log_metrics({"val/loss": 1.0}, step)
    (line,) = capsys.readouterr().err.splitlines()
    assert "history" in line
    assert "No space left on device" in line
    assert "the run goes on" in line


def test_a_stage_that_is_taken_up_again_forgets_the_heads_of_epochs_it_repeats(folder, monkeypatch):
    logged = []
    run = type(
        "Run",
        (),
        {"id": "a1", "project": "p", "entity": None, "settings": type("S", (), {"mode": "offline"})},
    )()
    run.log = logged.append
    monkeypatch.setattr(wandb, "Image", lambda picture: None)
    row = {"site": "encoder.0.enc-self", "head": 0, "p_open": 0.5}
    for epoch in (1, 2, 3, 2):
        WandbRun(run, folder, "gates", FACTS).log_gates([{"epoch": epoch, **row}], epoch=epoch, step=epoch)
    assert [[data[0] for data in each["gates/heads"].data] for each in logged] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2],
    ]
