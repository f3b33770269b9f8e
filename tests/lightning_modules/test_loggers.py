"""metrics.csv, and what stands beside it."""

import csv

import pytest

from headgates.lightning_modules.loggers import MetricsFile, make_loggers


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


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"stage,step\nbase,first\n", b"\xff\xfe", b"stage,step\nbase\n"]
)
def test_a_file_of_another_shape_is_one_line(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.csv is not what .* writes.*; remove it") as error:
        MetricsFile(path, "base")
    assert "\n" not in str(error.value)


def test_a_resumed_stage_keeps_its_earlier_rows_and_forgets_those_it_takes_again(path):
    write(path, "before", {1: 4.0})
    write(path, "base", {10: 3.0, 20: 2.0, 30: 1.0})
    again = MetricsFile(path, "base")
    again.forget_from(20)  # counted from 0: the first that is taken again
    again.log_metrics({"val/loss": 1.25, "val/bleu": 7.0}, 30)
    again.save()
    found = [(row["step"], row["val/loss"], row["val/bleu"]) for row in read(path)]
    assert found == [("1", "4.0", ""), ("10", "3.0", ""), ("30", "1.25", "7.0")]


def test_tensorboard_and_a_tracker_stand_beside_the_csv(tmp_path):
    logged = []
    loggers = make_loggers("tensorboard", tmp_path, "gates", lambda *row: logged.append(row))
    for logger in loggers:
        logger.log_metrics({"val/loss": 2.0}, 1)
        logger.save()
        logger.finalize("success")
    assert read(tmp_path / "metrics.csv")[0]["val/loss"] == "2.0"
    assert logged == [("gates", {"val/loss": 2.0}, 1)]
    (events,) = (tmp_path / "tensorboard" / "gates").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
