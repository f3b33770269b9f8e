"""What Weights & Biases gets of a run, read back from the offline run by W&B's own reader; nothing here
reaches a network."""

import json
import multiprocessing
import re
import shutil
import socket
from pathlib import Path

import pytest

from headgates.configs.cli import read
from headgates.configs.metrics import HISTORY, OF_A_SYSTEM, SUMMARY
from headgates.configs.schema import FitConfig
from headgates.lightning_modules.tracker import make_tracker
from headgates.workbench import lab as labs
from headgates.workbench.folder import RunFolder, find_runs
from tests.lightning_modules.offline_run import (
    artifacts,
    assert_same_history,
    draw,
    fit,
    fragments,
    history,
    metrics,
    of,
    records,
    run_record,
    seen,
    summary,
    table,
    without_login,
)

wandb = pytest.importorskip("wandb", reason="wandb is not installed")

ROOT = Path(__file__).parents[2]
BASE, CONTINUED, GATES = "none", "continued", "l0-0.1"
TRAIN = [
    "--train.epochs",
    "3",
    "--finetune.epochs",
    "3",
    "--finetune.bleu-sentences",
    "3",
]  # 27 steps: the 20th is looked at
FACTS = {"commit": "abc1234", "device": "a chip", "versions": {"python": "3"}}


@pytest.fixture(autouse=True, scope="module")
def offline(tmp_path_factory):
    with without_login(tmp_path_factory.mktemp("home")) as home:
        yield home


@pytest.fixture(scope="module")
def tracked(tiny_flags, tmp_path_factory, offline):
    """Base, continued base and gates, followed by W&B, and what was printed."""
    return fit(tiny_flags, tmp_path_factory.mktemp("tracked") / "runs", *TRAIN, "--logger", "wandb")


@pytest.fixture(scope="module")
def runs(tracked):
    """Name -> folder."""
    return {
        run.path.name.split("-xx-yy-")[1].removesuffix("-s1"): run
        for run in find_runs(tracked[0].path.parent)
    }


@pytest.fixture(scope="module")
def gates(runs):
    return records(runs[GATES])


@pytest.fixture
def copied(tracked, tmp_path):
    """A copy of the gated run that a test may change."""
    return RunFolder(shutil.copytree(tracked[0].path, tmp_path / "run"))


# ---------------------------------------------------------------- one W&B run a folder


def test_every_folder_has_a_wandb_run_of_its_own_and_siblings_stand_together(runs):
    base_hash = runs[BASE].config()["run_hash"]
    jobs, ids = {}, set()
    for name, folder in runs.items():
        assert len(fragments(folder)) == 1
        record, state = run_record(folder), folder.read_json("wandb.json")
        assert (record["project"], record["display_name"]) == ("headgates", folder.path.name)
        assert record["run_group"] == f"{runs[BASE].path.name}-{base_hash[:6]}"
        assert (state["project"], state["entity"], state["id"], state["mode"]) == (
            "headgates",
            None,
            record["run_id"],
            "offline",
        )
        jobs[name] = record["job_type"]
        ids.add(state["id"])
    assert jobs == {BASE: "base", CONTINUED: "base-continued", GATES: "gates"}
    assert len(ids) == 3


def test_the_configuration_is_logged_once_and_whole(runs, gates):
    (run,) = of("run", gates)
    logged = run["config"]["update"]
    assert logged.pop("_wandb") == {}
    result, settings = runs[GATES].read_json("result.json"), runs[GATES].config()
    assert logged["lambda"] == 0.1
    assert {name: logged.pop(name) for name in ("commit", "device", "versions")} == {
        name: result[name] for name in ("commit", "device", "versions")
    }
    assert logged | {name: Path(settings[name]).name for name in ("data", "base", "runs")} == logged
    assert logged == settings | {name: logged[name] for name in ("data", "base", "runs")}
    assert {"run_hash", "base_hash"} <= set(logged)
    later = [name for record in of("config", gates) for name in record.get("update", {})]
    assert [name for name in later if not name.startswith("_wandb")] == []


def test_the_history_is_what_metrics_csv_holds_of_every_stage(runs, gates):
    assert_same_history(seen(gates, "gates"), metrics(runs[GATES], "gates"))
    assert_same_history(
        seen(gates, "greedy-finetuned", "greedy-finetuned/"), metrics(runs[GATES], "greedy-finetuned")
    )
    assert_same_history(seen(records(runs[BASE]), "base"), metrics(runs[BASE], "base"))


def test_a_number_is_logged_once_and_not_at_every_step_until_the_next(gates):
    trained = [step for step, numbers in seen(gates, "gates") if "train/loss" in numbers]
    validated = [step for step, numbers in seen(gates, "gates") if "val/loss" in numbers]
    assert (trained, validated) == (
        [8, 17, 19, 26],
        [8, 17, 26],
    )  # of 27 steps, from 0: every 20 and the last of an epoch


def test_the_history_of_the_gates_has_every_name_that_dashboards_know(gates):
    assert {name for _, row in seen(gates, "gates") for name in row} == {*HISTORY, "epoch"}


def test_every_stage_counts_its_own_steps(gates):
    steps = {
        record.get("name") or record["glob_name"]: record.get("step_metric") for record in of("metric", gates)
    }
    assert steps == {
        "step": None,
        **dict.fromkeys(("epoch", "train/*", "val/*", "gates/*"), "step"),
        "greedy-finetuned/step": None,
        "greedy-finetuned/*": "greedy-finetuned/step",
    }
    own = [row["step"]["num"] for row in of("history", gates)]
    assert own == sorted(set(own))


def test_the_gates_are_a_picture_and_a_table_of_heads_after_every_epoch(runs, gates):
    pictures = [row for row in history(gates) if row.get("gates/heatmap._type") == "image-file"]
    assert [row["step"] for row in pictures] == [8, 17, 26]  # where the validations stand
    for row in pictures:
        (path,) = runs[GATES].path.glob(f"wandb/offline-run-*/files/{row['gates/heatmap.path']}")
        assert path.read_bytes().startswith(b"\x89PNG")
    assert [row["gates/heads.nrows"] for row in pictures] == [21, 42, 63]
    rows = table(runs[GATES], gates, "gates/heads")
    assert list(rows[0]) == ["epoch", "site", "kind", "layer", "head", "log_alpha", "p_open", "open"]
    assert len({(row["epoch"], row["site"], row["head"]) for row in rows}) == 63
    assert sum(row["p_open"] for row in rows if row["epoch"] == 3) == pytest.approx(
        sum(
            head["open_prob"]
            for site in runs[GATES].read_json("gates.json")["sites"].values()
            for head in site
        ),
        abs=1e-5,
    )


# ---------------------------------------------------------------- the end


def test_the_summary_is_the_own_systems_row_and_names_every_system(runs, gates):
    found, result = summary(gates), runs[GATES].read_json("result.json")
    rows = {row["system"]: row for row in result["rows"]}
    assert set(SUMMARY) <= set(found)
    own = rows["l0"]
    assert (found["bleu"], found["chrf"], found["p_value"]) == (
        own["bleu"],
        own["chrf"],
        own["p_value_vs_reference"],
    )
    assert [found["bleu_low"], found["bleu_high"]] == own["bleu_ci95"]
    assert [found["bleu_difference_low"], found["bleu_difference_high"]] == own["bleu_difference_ci95"]
    assert found["heads_closed"] == 21 - own["heads_open"]
    assert {kind: found[f"heads_open/{kind}"] for kind in own["heads_by_kind"]} == own["heads_by_kind"]
    for system, row in rows.items():
        assert {name: found[f"systems/{system}/{name}"] for name in OF_A_SYSTEM} == {
            name: row[name] for name in OF_A_SYSTEM
        }
    base = summary(records(runs[BASE]))
    assert set(SUMMARY) <= set(base)
    assert base["heads_open"] == 21


def test_the_comparison_has_a_row_a_system_with_interval_and_signatures(runs, gates):
    rows = table(runs[GATES], gates, "comparison")
    results = runs[GATES].read_json("result.json")["rows"]
    assert [row["system"] for row in rows] == [row["system"] for row in results]
    for row, result in zip(rows, results, strict=True):
        assert [row["bleu_low"], row["bleu_high"]] == result["bleu_ci95"]
        assert (row["bleu"], row["p_value"], row["reference"]) == (
            result["bleu"],
            result["p_value_vs_reference"],
            result["reference"],
        )
        assert (row["bleu_signature"], row["chrf_signature"]) == (
            result["bleu_signature"],
            result["chrf_signature"],
        )


def test_the_translations_stand_beside_source_and_reference(runs, gates, corpus):
    rows = table(runs[GATES], gates, "translations")
    systems = [row["system"] for row in runs[GATES].read_json("result.json")["rows"]]
    assert list(rows[0]) == ["source", "reference", *systems]
    assert [row["source"] for row in rows] == corpus.test.sources  # 17, fewer than are shown at most
    assert [row["reference"] for row in rows] == corpus.test.targets
    for system in systems:
        assert (
            "".join(row[system] + "\n" for row in rows)
            == (runs[GATES] / f"hypotheses/{system}.txt").read_text()
        )


def test_gates_the_removed_model_and_the_page_are_artifacts_with_aliases(runs, gates):
    found, name = artifacts(gates), runs[GATES].path.name
    expected = {f"{name}-gates": "gates", f"{name}-l0-removed": "model", f"{name}-report": "report"}
    assert {each: record["type"] for each, record in found.items()} == expected
    commit = runs[GATES].read_json("result.json")["commit"]
    for record, file in zip(found.values(), ("gates.json", "l0-removed.pt", "report.html"), strict=True):
        assert set(record["aliases"]) == {"latest", "lambda-0.1", "seed-1", commit}
        (entry,) = record["manifest"]["contents"]
        assert (entry["path"], int(entry["size"])) == (file, (runs[GATES] / file).stat().st_size)
        assert Path(entry["local_path"]).read_bytes() == (runs[GATES] / file).read_bytes()
        assert json.loads(record["metadata"])["run_hash"] == runs[GATES].config()["run_hash"]


def test_no_path_home_or_host_is_logged(runs, offline, text_folder):
    secret = [
        str(offline),
        str(runs[BASE].path.parents[1]),
        str(text_folder.parent),
        str(ROOT),
        socket.gethostname(),
    ]
    secret = [word.encode() for word in secret if len(word) > 3]
    for folder in runs.values():
        # where a file of an artifact lies, so that `wandb sync` finds it: it stays here
        lies = [
            entry["local_path"]
            for record in of("artifact", records(folder))
            for entry in record["manifest"]["contents"]
        ]
        (fragment,) = fragments(folder)
        media = [path for path in (fragment.parent / "files").rglob("*") if path.is_file()]
        assert {path.relative_to(fragment.parent).parts[:2] for path in media} == {
            ("files", "media")
        }  # no metadata, requirements, output
        for path in (fragment, *media, *map(Path, lies)):
            content = path.read_bytes()
            for where in lies:
                content = content.replace(where.encode(), b"")
            assert [word for word in secret if word in content] == [], path


def test_the_command_ends_with_one_line_that_says_how_to_sync(tracked, runs):
    _, out = tracked
    lines = [line for line in out.splitlines() if "wandb" in line]
    assert lines == [out.splitlines()[-1]]
    assert "no login found, so runs are kept offline" in lines[0]
    (command,) = re.findall(r"`(wandb sync .*)`", lines[0])
    synced = [path for word in command.split()[2:] for path in Path("/").glob(word.lstrip("/"))]
    assert {path for folder in synced for path in folder.glob("*.wandb")} == {
        path for run in runs.values() for path in fragments(run)
    }


def test_following_a_run_changes_none_of_its_numbers(tracked, tiny_flags, tmp_path):
    ours, _ = tracked
    theirs, _ = fit(tiny_flags, tmp_path / "runs", *TRAIN)
    assert (theirs / "gates.json").read_bytes() == (ours / "gates.json").read_bytes()
    assert (theirs / "metrics.csv").read_bytes() == (ours / "metrics.csv").read_bytes()
    for system in ours.systems():
        assert (theirs / f"hypotheses/{system}.txt").read_bytes() == (
            ours / f"hypotheses/{system}.txt"
        ).read_bytes()
    assert not (theirs / "wandb").exists()


# ---------------------------------------------------------------- again


def test_a_resumed_run_goes_on_in_the_same_wandb_run(tracked, tiny_flags, tmp_path, monkeypatch):
    runs = shutil.copytree(tracked[0].path.parent, tmp_path / "runs")
    flags = [*TRAIN, "--logger", "wandb", "--lambda", "0.2", "--systems", "base,l0,greedy,greedy-finetuned"]
    run_stage = labs.run_stage

    def interrupted(name, *rest, **options):
        if name == "greedy-finetuned":
            raise KeyboardInterrupt
        return run_stage(name, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(labs, "run_stage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(tiny_flags, runs, *flags)
    (folder,) = (run for run in find_runs(runs) if "l0-0.2" in run.path.name)
    first = folder.read_json("wandb.json")
    assert first["logged"] == []
    _, out = fit(tiny_flags, runs, *flags, "--resume")
    assert [line for line in out.splitlines() if "wandb sync" in line]
    assert {**folder.read_json("wandb.json"), "logged": []} == first
    found = records(folder)
    assert len(fragments(folder)) == 2
    assert [record["run_id"] for record in of("run", found)] == [first["id"]] * 2
    assert [bool(record.get("resume")) for record in of("run", found)] == [True] * 2
    assert [record.get("exit_code", 0) for record in of("exit", found)] == [1, 0]
    assert_same_history(seen(found, "gates"), metrics(folder, "gates"))
    assert_same_history(
        seen(found, "greedy-finetuned", "greedy-finetuned/"), metrics(folder, "greedy-finetuned")
    )
    assert {len(fragments(run)) for run in find_runs(runs) if run.path != folder.path} == {
        1
    }  # the base was there, and has nothing new


def test_what_failed_is_one_line_and_the_same_command_logs_the_rest_alone(
    copied, gates, corpus, monkeypatch, capsys
):
    (copied / "report.html").write_text("<p>a report</p>")
    test = (corpus.test.sources, corpus.test.targets)

    add_file = wandb.Artifact.add_file

    def full(self, path, *rest, **options):
        if Path(path).parent == copied.path:
            raise OSError(28, "No space left on device")
        return add_file(self, path, *rest, **options)

    def log():
        tracker = make_tracker(read(FitConfig, ["--logger", "wandb"]), FACTS)
        tracker.complete(copied, "gates", None, test)
        tracker.close()
        return capsys.readouterr().err.splitlines(), fragments(copied)[-1]

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Artifact, "add_file", full)
        shutil.rmtree(copied / "wandb")
        (copied / "wandb.json").unlink()
        errors, _ = log()
    assert len(errors) == 1
    for word in (
        "could not log gates.json, l0-removed.pt, report.html",
        "No space left on device",
        str(copied.path),
    ):
        assert word in errors[0]
    first = records(copied)
    assert set(SUMMARY) <= set(summary(first))
    assert seen(first, "gates") == seen(gates, "gates")  # it had not seen the training
    assert artifacts(first) == {}

    errors, path = log()
    assert errors == []
    second = records(copied)[len(first) :]
    expected = {"run-gates": "gates", "run-l0-removed": "model", "run-report": "report"}
    assert {name: record["type"] for name, record in artifacts(second).items()} == expected
    assert history(second) == []
    assert [record["run_id"] for record in of("run", second)] == [copied.read_json("wandb.json")["id"]]

    assert log() == ([], path)  # nothing is left


def test_a_spawned_process_logs_into_the_same_run_and_folder(copied):
    shutil.rmtree(copied / "wandb")
    (copied / "wandb.json").unlink()
    tracker = make_tracker(read(FitConfig, ["--logger", "wandb"]), FACTS)
    tracker.open(copied, "gates")
    rows = [{"epoch": 1, "site": "encoder.0.enc-self", "head": 0, "p_open": 0.5}]
    process = multiprocessing.get_context("spawn").Process(target=draw, args=(tracker.run, rows))
    process.start()
    process.join(300)
    tracker.close()
    assert process.exitcode == 0
    found = records(copied)
    assert len(fragments(copied)) == 1
    assert table(copied, found, "gates/heads") == rows
    assert list(copied.path.glob(f"wandb/offline-run-*/files/{summary(found)['gates/heatmap.path']}"))
