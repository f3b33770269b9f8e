"""Precision, and that a resumed stage ends where an uninterrupted one does."""

import csv
import errno
import os
import signal
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from headgates.configs.schema import GateConfig, StageConfig
from headgates.gates import LambdaBudget, attach
from headgates.lightning_modules import module as modules
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, StageResult, run_stage
from headgates.models.checkpoint import load_file, load_model, save_file
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator
from headgates.tasks.translation import Translation
from headgates.workbench.folder import RunFolder

TASK = Translation()
MACHINE = Machine(devices=1, precision="32", logger="csv")
STAGE = StageConfig(epochs=3, lr=0.01, warmup_steps=5, average=0.8, bleu_sentences=0)


class PowerCut(Exception):
    pass


def cut_power(monkeypatch, *, epoch, batch):
    """Training ends with PowerCut at this batch of this epoch (both from 0)."""
    step = StageModule.training_step

    def training_step(self, given, index):
        if (self.current_epoch, index) == (epoch, batch):
            raise PowerCut
        return step(self, given, index)

    monkeypatch.setattr(StageModule, "training_step", training_step)


def stage(translator, data, path, *, gated, resume=False, config=STAGE, machine=MACHINE):
    path.mkdir(exist_ok=True)
    data.accumulate = config.accumulate
    if gated:
        attach(translator.model, gate="l0")
    gating = (
        Gating(GateConfig(lr=0.3, lambda_warmup=2), LambdaBudget(0.1, 2), epochs=config.epochs)
        if gated
        else None
    )
    module = StageModule(TASK, translator, config, seed=1, gating=gating)
    return run_stage("gates", module, data, RunFolder(path), machine, config, resume=resume)


def metric_rows(path):
    with (path / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def untrained(translator):
    """Always the same weights, and dropout."""
    pl.seed_everything(0, verbose=False)
    config = replace(translator.model.config, dropout=0.2, attention_dropout=0.2)
    model = Transformer(config, len(translator.source_vocab), len(translator.target_vocab))
    return Translator(model, translator.source_vocab, translator.target_vocab, translator.search)


@pytest.mark.parametrize("gated", [False, True], ids=["base", "gates"])
def test_a_resumed_stage_ends_with_exactly_the_weights_of_an_uninterrupted_one(
    translator, data, tmp_path, monkeypatch, gated
):
    whole = stage(untrained(translator), data, tmp_path / "whole", gated=gated)
    with monkeypatch.context() as patched:
        cut_power(patched, epoch=1, batch=3)
        with pytest.raises(PowerCut):
            stage(untrained(translator), data, tmp_path / "cut", gated=gated)
    resumed = stage(untrained(translator), data, tmp_path / "cut", gated=gated, resume=True)
    assert (resumed.losses, resumed.steps, resumed.best_epoch) == (
        whole.losses,
        whole.steps,
        whole.best_epoch,
    )
    for name in ("best.pt", "last.pt"):
        left, right = (load_file(tmp_path / run / name) for run in ("whole", "cut"))
        key = "model" if name == "best.pt" else "state_dict"
        assert left[key].keys() == right[key].keys()
        assert all(torch.equal(left[key][each], right[key][each]) for each in left[key])
        assert all(
            torch.equal(tensor, right["gates"][each]) for each, tensor in left.get("gates", {}).items()
        )
    assert metric_rows(tmp_path / "whole") == metric_rows(tmp_path / "cut")
    if gated:
        with (
            np.load(tmp_path / "whole" / "gates_history.npz") as left,
            np.load(tmp_path / "cut" / "gates_history.npz") as right,
        ):
            assert left["steps"].tolist() == right["steps"].tolist()
            assert np.array_equal(left["log_alpha"], right["log_alpha"])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_step_is_in_one_training_row_and_an_interruption_changes_none(
    translator, data, tmp_path, monkeypatch, accumulate
):
    monkeypatch.setattr(modules, "LOG_EVERY", 4 if accumulate == 1 else 2)
    config = replace(STAGE, accumulate=accumulate)
    losses: dict[
        int, list[tuple[float, int]]
    ] = {}  # optimiser step -> (loss summed over the units, units) of its micro-batches

    class Recorded(Translation):
        def loss(self, model, batch, *, smoothing=0.0):
            loss = super().loss(model, batch, smoothing=smoothing)
            if model.training:
                losses.setdefault(module.global_step, []).append((float(loss.detach()), batch.target_tokens))
            return loss

    (tmp_path / "whole").mkdir()
    data.accumulate = accumulate
    module = StageModule(Recorded(), untrained(translator), config, seed=1)
    run_stage("gates", module, data, RunFolder(tmp_path / "whole"), MACHINE, config)
    with monkeypatch.context() as patched:
        cut_power(patched, epoch=1, batch=8)
        with pytest.raises(PowerCut):
            stage(untrained(translator), data, tmp_path / "cut", gated=False, config=config)
    stage(untrained(translator), data, tmp_path / "cut", gated=False, resume=True, config=config)
    rows = [row for row in metric_rows(tmp_path / "whole") if row["train/loss"]]
    assert metric_rows(tmp_path / "cut") == metric_rows(tmp_path / "whole")
    every, per_epoch = modules.LOG_EVERY, data.sampler().steps
    due = {taken for taken in range(1, 3 * per_epoch + 1) if taken % every == 0 or taken % per_epoch == 0}
    assert [int(row["step"]) + 1 for row in rows] == sorted(due)
    assert per_epoch % every  # some rows are shorter than the others
    first = 0
    for row in rows:
        batches = [batch for step in range(first, int(row["step"]) + 1) for batch in losses[step]]
        first = int(row["step"]) + 1
        assert float(row["train/loss"]) == pytest.approx(
            sum(loss for loss, _ in batches) / sum(n for _, n in batches), rel=1e-5
        )
        assert float(row["epoch"]) == int(row["step"]) // per_epoch
    assert first == len(losses) == 3 * per_epoch


def test_every_number_is_in_metrics_csv_once(translator, data, tmp_path):
    stage(untrained(translator), data, tmp_path / "run", gated=True)
    rows, per_epoch = metric_rows(tmp_path / "run"), data.sampler().steps
    due = {
        taken
        for taken in range(1, 3 * per_epoch + 1)
        if taken % modules.LOG_EVERY == 0 or taken % per_epoch == 0
    }
    for name in ("train/loss", "train/learning_rate", "gates/penalty"):
        assert [int(row["step"]) + 1 for row in rows if row[name]] == sorted(due)
    for name in ("val/loss", "val/objective"):
        assert [int(row["step"]) + 1 for row in rows if row[name]] == [
            per_epoch,
            2 * per_epoch,
            3 * per_epoch,
        ]


@pytest.fixture
def cut(translator, data, tmp_path, monkeypatch) -> RunFolder:
    """A run of the hash a1 that was cut off after its first epoch."""
    folder = RunFolder(tmp_path / "cut")
    folder.write_text("config.yaml", "run_hash: a1\n")
    with monkeypatch.context() as patched:
        cut_power(patched, epoch=1, batch=0)
        with pytest.raises(PowerCut):
            stage(translator, data, folder.path, gated=False)
    return folder


def flip_a_bit(path):
    """In the middle of the largest tensor, which torch reads without a word."""
    with zipfile.ZipFile(path) as file:
        largest = max(
            (each for each in file.infolist() if "/data/" in each.filename), key=lambda each: each.file_size
        )
        whole = file.read(largest)
    content = bytearray(path.read_bytes())
    content[content.index(whole) + len(whole) // 2] ^= 1
    path.write_bytes(content)
    assert load_file(path)


def change(path, **changes):
    """Write a checkpoint with other values; None takes one away."""
    content = {name: value for name, value in (load_file(path) | changes).items() if value is not None}
    save_file(path, content)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (
            lambda folder: folder.write_text("config.yaml", "run_hash: b2\n"),
            r"last\.pt was written by .*a1.*, and this is .*b2.*--fresh",
        ),
        (
            lambda folder: change(folder / "last.pt", origin={"run_hash": "a1", "stage": "base"}),
            "written by .*'base'.*, and this is .*'gates'",
        ),
        (lambda folder: change(folder / "last.pt", loops=None), r"last\.pt .*: it holds no loops; .*--fresh"),
        (
            lambda folder: change(folder / "last.pt", state_dict={"x": torch.zeros(3)}),
            "its weights are not those of the model .*--fresh",
        ),
        (
            lambda folder: (folder / "last.pt").write_bytes((folder / "last.pt").read_bytes()[:-999]),
            "not a whole checkpoint .*--fresh",
        ),
        (
            lambda folder: flip_a_bit(folder / "last.pt"),
            r"not a whole checkpoint of plain tensors \(the checksum of .*--fresh",
        ),
        (
            lambda folder: (folder / "last.pt").write_bytes((folder / "best.pt").read_bytes()),
            r"it holds no state_dict, .*--fresh",
        ),
    ],
    ids=[
        "another run",
        "another stage",
        "a part is missing",
        "another model",
        "cut short",
        "a bit",
        "best.pt",
    ],
)
def test_a_foreign_checkpoint_is_not_resumed(cut, translator, data, damage, error):
    damage(cut)
    with pytest.raises(ValueError, match=error) as refused:
        stage(translator, data, cut.path, gated=False, resume=True)
    assert "\n" not in str(refused.value)


def test_a_checkpoint_of_an_earlier_version_is_resumed(cut, translator, data):
    change(cut / "last.pt", origin=None)
    assert len(stage(translator, data, cut.path, gated=False, resume=True).losses) == 3


def test_a_power_cut_leaves_only_whole_files(translator, data, tmp_path, monkeypatch):
    cut_power(monkeypatch, epoch=2, batch=0)
    with pytest.raises(PowerCut):
        stage(translator, data, tmp_path / "cut", gated=False)
    assert not list((tmp_path / "cut").glob("*.part"))
    load_model(tmp_path / "cut" / "best.pt")
    assert load_file(tmp_path / "cut" / "last.pt")["epoch"] == 1


def test_the_model_is_left_with_the_best_weights_and_not_the_last(translator, data, folder):
    diverging = StageConfig(epochs=3, lr=0.3, warmup_steps=0, clip=0.0, bleu_sentences=0)
    module = StageModule(TASK, translator, diverging, seed=1)
    result = run_stage("base", module, data, folder, MACHINE, diverging)
    assert result.best_epoch == result.losses.index(min(result.losses))
    best = load_model(folder / result.weights)
    assert all(
        torch.equal(tensor, best.state_dict()[name]) for name, tensor in translator.model.state_dict().items()
    )
    assert not translator.model.training


def test_the_result_survives_json(translator, data, folder):
    result = run_stage("base", StageModule(TASK, translator, STAGE, seed=1), data, folder, MACHINE, STAGE)
    folder.write_json("stage.json", result.to_json())
    again = StageResult(**folder.read_json("stage.json"))
    assert again.losses == pytest.approx(result.losses, abs=1e-5)
    assert again.to_json() == result.to_json()
    assert result.steps == 3 * data.sampler().steps
    assert result.tokens_per_second == pytest.approx(
        3 * sum(len(target) + 1 for _, target in data.train_pairs) / result.seconds
    )


def test_a_stage_logs_to_tensorboard_on_request(translator, data, folder):
    one = StageConfig(epochs=1, bleu_sentences=0)
    run_stage(
        "base", StageModule(TASK, translator, one, seed=1), data, folder, Machine(1, "32", "tensorboard"), one
    )
    assert list(folder.path.glob("tensorboard/base/events.out.tfevents.*"))
    assert (folder / "metrics.csv").is_file()


# ---------------------------------------------------------------- in the middle of an epoch

OFTEN = replace(MACHINE, checkpoint_steps=2)


def same_files(left, right) -> bool:
    """The weights of two stages, by bytes, and what they logged."""
    return (left / "best.pt").read_bytes() == (right / "best.pt").read_bytes() and metric_rows(
        left
    ) == metric_rows(right)


def last_step(path, name="last.pt") -> int:
    return load_file(path / name)["global_step"]


@pytest.mark.parametrize("damage", [None, "torn", "foreign", "missing"])
def test_a_stage_goes_on_in_the_middle_of_an_epoch_from_the_last_checkpoint_that_is_whole(
    translator, data, tmp_path, monkeypatch, damage
):
    stage(untrained(translator), data, tmp_path / "whole", gated=True)
    cut, per_epoch = tmp_path / "cut", data.sampler().steps
    assert per_epoch == 9
    with monkeypatch.context() as patched:
        cut_power(patched, epoch=1, batch=5)
        with pytest.raises(PowerCut):
            stage(untrained(translator), data, cut, gated=True, machine=OFTEN)
    assert (last_step(cut), last_step(cut, "last.previous.pt")) == (14, 12)
    if damage is None:
        stage(untrained(translator), data, cut, gated=True, machine=OFTEN, resume=True)
    else:
        damages = {
            "torn": flip_a_bit,
            "foreign": lambda path: change(path, origin={"run_hash": "b", "stage": "x"}),
            "missing": os.remove,
        }
        damages[damage](cut / "last.pt")
        with pytest.warns(UserWarning, match=r"last\.pt.*Going on from last\.previous\.pt, after step 12"):
            stage(untrained(translator), data, cut, gated=True, machine=OFTEN, resume=True)
    assert same_files(tmp_path / "whole", cut)
    assert not (cut / "last.previous.pt").exists(), "of a finished stage the last checkpoint is enough"


def test_checkpoints_within_an_epoch_change_nothing(translator, data, tmp_path):
    for name, machine in {
        "none": replace(MACHINE, checkpoint_minutes=0),
        "often": replace(OFTEN, checkpoint_minutes=1e-9),
    }.items():
        stage(untrained(translator), data, tmp_path / name, gated=True, machine=machine)
    assert same_files(tmp_path / "none", tmp_path / "often")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_waits_until_the_step_is_saved(translator, data, tmp_path, monkeypatch, signum):
    stage(untrained(translator), data, tmp_path / "whole", gated=True)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signum, interrupt)
    step, steps = StageModule.training_step, []

    def training_step(self, given, index):
        steps.append(index)
        if (self.current_epoch, index) == (1, 4):
            os.kill(os.getpid(), signum)
        return step(self, given, index)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(StageModule, "training_step", training_step)
            with pytest.raises(KeyboardInterrupt):
                stage(untrained(translator), data, tmp_path / "cut", gated=True)
        if signum != signal.SIGINT:  # which Lightning ignores from then on: the program is ending
            assert signal.getsignal(signum) is interrupt
    finally:
        signal.signal(signum, before)
    assert (len(steps), last_step(tmp_path / "cut")) == (14, 14)
    stage(untrained(translator), data, tmp_path / "cut", gated=True, resume=True)
    assert same_files(tmp_path / "whole", tmp_path / "cut")


def test_a_full_disk_leaves_the_checkpoint_before(translator, data, tmp_path, monkeypatch):
    stage(untrained(translator), data, tmp_path / "whole", gated=False)
    save, written = torch.save, []

    def full(content, file, **how):
        written.append(file)
        if len(written) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(content, file, **how)

    with monkeypatch.context() as patched:
        patched.setattr("headgates.lightning_modules.checkpoints.torch.save", full)
        with pytest.raises(
            OSError, match=r"cannot write .*: No space left on device; free some space and repeat the command"
        ):
            stage(untrained(translator), data, tmp_path / "cut", gated=False, machine=OFTEN)
    assert not list((tmp_path / "cut").glob("*.part"))
    assert last_step(tmp_path / "cut") == 6
    stage(untrained(translator), data, tmp_path / "cut", gated=False, machine=OFTEN, resume=True)
    assert same_files(tmp_path / "whole", tmp_path / "cut")
