"""What Weights & Biases gets of a run, read back from the offline run by W&B's own reader; which W&B runs a
command opens; and one that W&B fails. Nothing here reaches a network."""

import json
import os
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from headgates.configs.metrics import HISTORY, SUMMARY
from headgates.configs.recipe import Lambda
from headgates.lab import tracker as trackers
from headgates.lab.tracker import (
    AGENT,
    Tracker,
    make_tracker,
)
from headgates.lab.wandb_run import FollowedRun, mode_without_asking, state_of
from headgates.lab.wandb_stage import WandbWatcher
from headgates.lab.wandb_tables import artifact_name
from headgates.lightning_modules import stage as stages
from headgates.records.folder import RunFolder, find_runs
from tests.lab.offline_run import (
    artifacts,
    fit,
    fragments,
    history,
    of,
    records,
    summary,
    table,
    without_login,
)
from tests.lightning_modules.stages import rows
from tests.worlds.finished_runs import LEARNED

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

ROOT = Path(__file__).parents[2]
TRAIN = ["--logger", "wandb"]
FACTS = {"commit": "abc1234", "device": "a chip", "versions": {"python": "3"}}


@pytest.fixture(autouse=True, scope="module")
def offline(tmp_path_factory):
    with without_login(tmp_path_factory.mktemp("home")) as home:
        yield home


def test_a_state_without_its_project_is_said_to_be_broken(tmp_path):
    RunFolder(tmp_path).write_json("wandb.json", {"id": "a", "logged": True})
    with pytest.raises(ValueError, match=r"wandb\.json: entity is missing; remove it"):
        state_of(RunFolder(tmp_path))


@pytest.fixture(scope="module")
def tracked(tiny_flags, tmp_path_factory, offline):
    """The base, the continued base and the pruned run, followed by W&B, and what was printed."""
    return fit(tiny_flags, tmp_path_factory.mktemp("tracked") / "runs", *TRAIN)


@pytest.fixture(scope="module")
def runs(tracked):
    """Job -> folder."""
    found = find_runs(tracked[0].path.parent)
    return {of("run", records(folder))[0]["job_type"]: folder for folder in found}


@pytest.fixture(scope="module")
def gates(runs):
    return records(runs["pruned"])


def logged_in_csv(folder, job):
    """{(step, name): value} of metrics.csv by the names of W&B."""
    return {
        (
            int(row["step"]),
            name if row["stage"] in (job, "gates", "training") else f"choice/{name}",
        ): pytest.approx(float(value))
        for row in rows(folder.path)
        for name, value in row.items()
        if value and name not in ("stage", "step")
    }


def test_every_folder_has_a_run_of_its_own_in_one_group_with_its_whole_history(runs):
    assert runs.keys() == {"base", "base-continued", "pruned"}
    base = runs["base"]
    for job, folder in runs.items():
        found = records(folder)
        (run,) = of("run", found)
        state = folder.read_json("wandb.json")
        assert (run["project"], run["display_name"]) == ("headgates", folder.path.name)
        assert run["run_group"] == f"{base.path.name}-{base.config()['run_hash'][:6]}"
        assert state == {"project": "headgates", "entity": None, "id": run["run_id"], "logged": True}
        assert history(found) == logged_in_csv(folder, job)
    assert {name for _, name in history(records(runs["pruned"])) if not name.startswith("importance")} == {
        *HISTORY,
        "epoch",
    }


def test_the_configuration_is_logged_whole_with_the_last_names_of_paths(runs, gates):
    logged = of("run", gates)[0]["config"]["update"]
    result, settings = runs["pruned"].read_json("result.json"), runs["pruned"].config()
    facts = {name: result[name] for name in ("commit", "device", "versions")}
    paths = {name: Path(settings[name]).name for name in ("data", "base", "runs")}
    assert {name: value for name, value in logged.items() if name != "_wandb"} == settings | facts | paths


def test_the_gates_are_a_picture_and_a_table_of_heads_after_every_epoch(runs, gates):
    items = [row["item"] for row in of("history", gates)]
    pictures = [row for row in items if row.get("gates/heatmap._type") == "image-file"]
    assert [row["trainer/global_step"] for row in pictures] == [8, 17]  # where the validations stand
    assert [row["gates/heads.nrows"] for row in pictures] == [21, 42]
    heads = table(runs["pruned"], gates, "gates/heads")
    assert list(heads[0]) == ["epoch", "site", "kind", "layer", "head", "log_alpha", "p_open", "open"]
    assert len({(row["epoch"], row["site"], row["head"]) for row in heads}) == 42
    sites = runs["pruned"].read_json("gates.json")["sites"].values()
    last = sum(row["p_open"] for row in heads if row["epoch"] == 2)
    assert last == pytest.approx(sum(head["open_prob"] for site in sites for head in site), abs=1e-5)


def test_summary_and_tables_are_those_of_the_result(runs, gates, corpus):
    found = summary(gates)
    results = runs["pruned"].read_json("result.json")["rows"]
    own = next(row for row in results if row["system"] == "pruned")
    assert set(SUMMARY) <= set(found)
    assert [found["bleu"], found["chrf"]] == [own["bleu"], own["chrf"]]
    assert (found["heads_open"], found["heads_closed"]) == (own["heads_open"], 21 - own["heads_open"])
    compared, lines = (table(runs["pruned"], gates, name) for name in ("comparison", "translations"))
    assert [row["source"] for row in lines] == corpus.test.sources
    assert [row["reference"] for row in lines] == corpus.test.targets
    for row, result in zip(compared, results, strict=True):
        system = result["system"]
        for name in ("bleu", "chrf", "heads_open"):
            assert found[f"systems/{system}/{name}"] == result[name]
        assert (row["system"], [row["bleu_low"], row["bleu_high"]]) == (system, result["bleu_ci95"])
        assert (row["bleu_signature"], row["reference"]) == (result["bleu_signature"], result["reference"])
        text = "".join(line[system] + "\n" for line in lines)
        assert text == (runs["pruned"] / f"hypotheses/{system}.txt").read_text()


def test_gates_the_removed_model_and_the_page_are_artifacts_with_aliases(runs, gates):
    found, name = artifacts(gates), runs["pruned"].path.name
    files = {"gates": "gates.json", "best": "best.pt"}
    assert found.keys() == {f"{name}-{each}" for each in files}
    for each, file in files.items():
        record = found[f"{name}-{each}"]
        assert set(record["aliases"]) == {"latest", "l0-0.1", "seed-1", runs["pruned"].result()["commit"]}
        (entry,) = record["manifest"]["contents"]
        assert Path(entry["local_path"]).read_bytes() == (runs["pruned"] / file).read_bytes()
    assert artifact_name(RunFolder("runs/a-enc-self+cross"), "gates.json") == "a-enc-self-cross-gates"
    assert len(artifact_name(RunFolder("runs/" + "n" * 200), "gates.json")) == 128


def test_no_path_home_or_host_is_logged(runs, offline, text_folder):
    private = [offline, runs["base"].path.parents[1], text_folder.parent, ROOT, socket.gethostname()]
    secret = [str(word).encode() for word in private if len(str(word)) > 3]
    assert len(runs) == 3
    assert len(secret) >= 4
    for folder in runs.values():
        found = records(folder)
        # where a file of an artifact lies, so that `wandb sync` finds it, stays here
        entries = [entry for each in of("artifact", found) for entry in each["manifest"]["contents"]]
        lies = [entry.pop("local_path") for entry in entries]
        assert [word for word in secret if word in json.dumps(found).encode()] == []
        (fragment,) = fragments(folder)
        media = [path for path in (fragment.parent / "files").rglob("*") if path.is_file()]
        assert {path.relative_to(fragment.parent).parts[1] for path in media} == {"media"}  # no metadata
        for path in (*media, *map(Path, lies)):
            assert [word for word in secret if word in path.read_bytes()] == [], path


def test_the_command_ends_with_one_line_that_says_how_to_sync_and_no_number_is_changed(
    tracked, runs, finished
):
    ours, out = tracked
    lines = [line for line in out.splitlines() if "wandb" in line]
    assert lines == [out.splitlines()[-1]]
    (command,) = re.findall(r"no login found, so runs are kept offline; `(wandb sync .*)`", lines[0])
    synced = [path for word in command.split()[2:] for path in Path("/").glob(word.lstrip("/"))]
    found = {path for folder in synced for path in folder.glob("*.wandb")}
    assert found == {path for run in runs.values() for path in fragments(run)}
    for name in (
        "gates.json",
        "metrics.csv",
        *(f"hypotheses/{system}.txt" for system in ours.systems()),
    ):
        assert (finished / name).read_bytes() == (ours / name).read_bytes()
    assert not (finished / "wandb").exists()


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tracked, tiny_flags, tmp_path, monkeypatch):
    runs = shutil.copytree(tracked[0].path.parent, tmp_path / "runs")
    recipe, run_stage = replace(LEARNED, budget=Lambda(0.2), refit="out"), stages.run_stage

    def interrupted(name, *rest, **options):
        if name == "training":
            raise KeyboardInterrupt
        return run_stage(name, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "run_stage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(tiny_flags, runs, *TRAIN, recipe=recipe)
    (folder,) = (run for run in find_runs(runs) if "l0-0.2" in run.path.name)
    first = folder.read_json("wandb.json")
    fit(tiny_flags, runs, *TRAIN, "--resume", recipe=recipe)
    assert folder.read_json("wandb.json") == {**first, "logged": True} != first
    found = records(folder)
    assert [record["run_id"] for record in of("run", found)] == [first["id"]] * 2
    assert [record.get("exit_code", 0) for record in of("exit", found)] == [1, 0]
    assert history(found) == logged_in_csv(folder, "gates")
    assert {len(fragments(run)) for run in find_runs(runs) if run.path != folder.path} == {1}


def test_what_failed_is_one_line_and_the_same_command_logs_it(tracked, corpus, tmp_path, monkeypatch, capsys):
    folder = RunFolder(shutil.copytree(tracked[0].path, tmp_path / "run"))
    shutil.rmtree(folder / "wandb")
    (folder / "wandb.json").unlink()

    add_file = wandb.Artifact.add_file

    def full(self, path, *rest, **options):
        if Path(path).parent == folder.path:
            raise OSError(28, "No space left on device")
        return add_file(self, path, *rest, **options)

    def log():
        tracker = make_tracker("wandb", FACTS)
        tracker.complete(folder, "gates", folder, (corpus.test.sources, corpus.test.targets))
        tracker.close()
        return capsys.readouterr().err.splitlines()

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Artifact, "add_file", full)
        (line,) = log()
    for words in ("could not log gates.json, best.pt", "No space left on device", str(folder.path)):
        assert words in line
    first = records(folder)
    assert set(SUMMARY) <= set(summary(first))
    assert history(first) == logged_in_csv(folder, "gates")  # it had not seen the training
    assert artifacts(first) == {}
    assert log() == []
    again = records(folder)
    assert artifacts(again).keys() >= {"run-gates", "run-best"}
    assert len({record["run_id"] for record in of("run", again)}) == 1
    assert log() == []
    assert len(fragments(folder)) == 2  # nothing was left


def test_a_run_that_trained_nothing_is_logged_without_steps(tracked, corpus, tmp_path):
    folder = RunFolder(shutil.copytree(tracked[0].path, tmp_path / "run"))
    shutil.rmtree(folder / "wandb")
    for name in ("wandb.json", "metrics.csv"):
        (folder / name).unlink()
    tracker = make_tracker("wandb", FACTS)
    tracker.complete(folder, "gates", folder, (corpus.test.sources, corpus.test.targets))
    tracker.close()
    assert set(SUMMARY) <= set(summary(records(folder)))


class Broken:
    """A W&B run that takes nothing but a preemption."""

    id, project, entity, settings = "a1", "headgates", None, SimpleNamespace(mode="offline")

    def __init__(self):
        self.calls = []

    def log(self, row):
        raise OSError(28, "No space left on device")

    def mark_preempting(self):
        self.calls.append("preempting")


def test_a_history_that_wandb_does_not_take_costs_one_line_and_a_preempted_run_says_so(folder, capsys):
    run = Broken()
    followed = FollowedRun(run, folder, FACTS)
    for step in range(3):
        followed.log_stage("base", {"val/loss": 1.0}, step)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "could not log history ([Errno 28] No space left on device); the command goes on without it" in line
    )
    WandbWatcher(followed).on_preempted()
    assert run.calls == ["preempting"]


# ---------------------------------------------------------------- wandb agent, names and logins


def test_an_agents_run_is_the_one_asked_for_and_the_base_stands_outside_the_sweep(
    tiny_flags, tmp_path, monkeypatch
):
    flags = [
        tiny_flags,
        tmp_path / "runs",
        "--train.epochs",
        "1",
    ]
    for run_id in ("point1", "point2"):  # another agent draws the same settings
        parameters = tmp_path / f"config-{run_id}.yaml"
        parameters.write_text("wandb_version: 1\n\nlambda:\n  value: 0.1\n")
        for name, value in zip(AGENT, ("sweep1", run_id, str(parameters)), strict=True):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WANDB_PROJECT", "another")
        monkeypatch.setenv(
            "WANDB_DIR", str(tmp_path)
        )  # the agent's own: runs are kept in theirs all the same
        gated, _ = fit(*flags, "--logger", "wandb", recipe=replace(LEARNED, epochs=1))
        assert [os.environ[name] for name in AGENT[:2]] == ["sweep1", run_id]
    (base,) = (run for run in find_runs(tmp_path / "runs") if "-none-" in run.path.name)
    (outside,), found = of("run", records(base)), records(gated)
    inside = of("run", found)
    assert [(run["run_id"], run["sweep_id"], run["project"]) for run in inside] == [
        ("point1", "sweep1", "another"), ("point2", "sweep1", "another")
    ]  # fmt: skip
    assert "sweep_id" not in outside
    assert outside["run_id"] == base.read_json("wandb.json")["id"]
    end = [kind for kind, _ in found].index("exit") + 1
    first, second = found[:end], found[end:]
    assert {name: summary(second)[name] for name in SUMMARY} == {
        name: summary(first)[name] for name in SUMMARY
    }
    assert history(first) == history(second)
    assert gated.read_json("wandb.json")["id"] == "point1"  # which saw it trained


def test_a_name_that_wandb_refuses_is_one_line_before_anything_is_made(monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    with pytest.raises(ValueError, match=r"^WANDB_PROJECT: .*a/b.*; choose another name$"):
        make_tracker("wandb", FACTS)


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


def test_only_wandb_that_is_asked_for_installed_and_not_disabled_is_followed(monkeypatch):
    assert type(make_tracker("tensorboard", FACTS)) is Tracker
    assert type(make_tracker("wandb", FACTS)) is not Tracker
    with monkeypatch.context() as patch:
        patch.setattr(trackers, "find_spec", lambda name: None)
        for logger in ("wandb", "tensorboard"):
            with pytest.raises(ValueError, match=f"pip install {logger}, or take --logger csv"):
                make_tracker(logger, FACTS)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert type(make_tracker("wandb", FACTS)) is Tracker
