"""metrics.csv, TensorBoard, and W&B without a login."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_modules.loggers import MetricsFile, make_loggers

ROOT = Path(__file__).parents[2]


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def write(path, stage, values):
    metrics = MetricsFile(path, stage)
    for step, value in values.items():
        metrics.log_metrics({"val/loss": value}, step)
    metrics.save()
    return metrics


def test_a_row_gathers_what_is_logged_at_one_step(path):
    metrics = MetricsFile(path, "base")
    metrics.log_metrics({"train/loss": 2.5, "epoch": 0}, 20)
    metrics.log_metrics({"val/loss": 2.25}, 20)
    metrics.log_metrics({"train/loss": 1.5}, 40)
    metrics.save()
    first, second = read(path)
    assert first == {"stage": "base", "step": "20", "epoch": "0.0", "train/loss": "2.5", "val/loss": "2.25"}
    assert (second["step"], second["train/loss"], second["val/loss"]) == ("40", "1.5", "")


def test_another_stage_keeps_the_rows_of_those_before_it(path):
    write(path, "gates", {1: 2.0, 2: 1.5})
    write(path, "greedy-finetuned", {1: 3.0})
    assert [(row["stage"], row["step"], row["val/loss"]) for row in read(path)] == [
        ("gates", "1", "2.0"),
        ("gates", "2", "1.5"),
        ("greedy-finetuned", "1", "3.0"),
    ]


def test_a_resumed_stage_keeps_its_earlier_rows_and_forgets_those_it_takes_again(path):
    write(path, "base", {10: 3.0, 20: 2.0, 30: 1.0})
    again = MetricsFile(path, "base")
    again.forget_after(20)
    again.log_metrics({"val/loss": 1.25, "val/bleu": 7.0}, 30)
    again.save()
    found = [(row["step"], row["val/loss"], row["val/bleu"]) for row in read(path)]
    assert found == [("10", "3.0", ""), ("20", "2.0", ""), ("30", "1.25", "7.0")]


def test_the_file_is_replaced_whole(path):
    write(path, "base", {1: 2.0})
    assert [each.name for each in path.parent.iterdir()] == ["metrics.csv"]


def test_csv_alone_is_the_default(tmp_path):
    (only,) = make_loggers("csv", tmp_path, "base", {})
    assert isinstance(only, MetricsFile)


def test_tensorboard_stands_beside_the_csv(tmp_path):
    loggers = make_loggers("tensorboard", tmp_path, "gates", {})
    for logger in loggers:
        logger.log_metrics({"val/loss": 2.0}, 1)
        logger.save()
        logger.finalize("success")
    assert read(tmp_path / "metrics.csv")[0]["val/loss"] == "2.0"
    (events,) = (tmp_path / "tensorboard" / "gates").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0


OFFLINE = """
import socket, sys
from pathlib import Path
connect = socket.socket.connect
def local_only(self, address):  # W&B's own service process is reached over localhost or a file
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"no network in this test: {address}")
    return connect(self, address)
socket.socket.connect = local_only
from lightning_modules.loggers import make_loggers
for logger in make_loggers("wandb", Path(sys.argv[1]), "gates", {"lambda": 0.01}):
    logger.log_metrics({"val/loss": 2.0}, 1)
    logger.save()
    logger.finalize("success")
import wandb
wandb.finish()
"""


def test_wandb_without_a_login_is_offline_and_asks_nothing(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    run, home = tmp_path / "run", tmp_path / "home"
    run.mkdir()
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") and name != "NETRC"}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    script = [sys.executable, "-c", OFFLINE, str(run)]
    done = subprocess.run(script, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "no login found, so this run is kept offline" in done.stdout
    assert "wandb sync" in done.stdout
    assert list(run.glob("wandb/offline-run-*/*.wandb"))
    assert read(run / "metrics.csv")[0]["val/loss"] == "2.0"


def test_a_wandb_mode_that_the_user_chose_stays(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    chosen = {}
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr("lightning_modules.loggers.WandbLogger", lambda **arguments: chosen.update(arguments))
    make_loggers("wandb", tmp_path, "base", {})
    assert chosen["mode"] == "disabled"
