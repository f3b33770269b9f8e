"""That a resumed stage ends where an uninterrupted one does, whatever ended it, and what a stage leaves."""

import contextlib
import errno
import os
import signal
import zipfile
from dataclasses import replace

import pytest
import torch

from headgates.configs.stages import StageConfig
from headgates.lightning_modules import module as modules
from headgates.lightning_modules.stage_callback import Watcher
from headgates.lightning_modules.stage_record import StageResult
from headgates.models.checkpoint import load_file, load_model, save_file
from headgates.records.folder import RunFolder
from headgates.tasks.translation import Translation
from tests.lightning_modules.stages import (
    GATES,
    MACHINE,
    STAGE,
    cut_off,
    cut_power,
    rows,
    train,
    untrained,
)

OFTEN = replace(MACHINE, checkpoint_steps=2)


def same_files(left, right) -> bool:
    """The weights of two stages, by bytes, what they logged, and the gates from step to step."""
    names = ["best.pt", "metrics.csv", *(file.name for file in left.glob("gates_history.npz"))]
    return all((left / name).read_bytes() == (right / name).read_bytes() for name in names)


def last_step(path, name="last.pt") -> int:
    return load_file(path / name)["global_step"]


def test_every_step_is_in_one_training_row_and_an_interruption_changes_none(
    translator, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(modules, "LOG_EVERY", 2)
    stage = replace(STAGE, accumulate=3)
    seen: list[tuple[float, int, int]] = []

    class Recording(Translation):
        def loss(self, model, batch, *, smoothing=0.0):
            loss = super().loss(model, batch, smoothing=smoothing)
            if model.training:
                seen.append((float(loss.detach()), batch.target_tokens, batch.step_tokens))
            return loss

    train(untrained(translator), data, tmp_path / "whole", stage=stage, task=Recording())
    often = {"stage": stage, "machine": OFTEN}
    cut_off(monkeypatch, 1, 8, untrained(translator), data, tmp_path / "cut", **often)
    assert last_step(tmp_path / "cut") % data.sampler().steps, "in the middle of an epoch"
    train(untrained(translator), data, tmp_path / "cut", **often, resume=True)
    assert same_files(tmp_path / "whole", tmp_path / "cut")
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    per_epoch = data.sampler().steps
    trained = [row for row in rows(tmp_path / "whole") if row["train/loss"]]
    due = [taken for taken in range(1, 3 * per_epoch + 1) if taken % 2 == 0 or taken % per_epoch == 0]
    assert [int(row["step"]) + 1 for row in trained] == due
    assert [float(row["epoch"]) for row in trained] == [(taken - 1) // per_epoch for taken in due]
    batches = iter(seen)
    for row, first, taken in zip(trained, [0, *due], due, strict=False):
        total = units = 0.0
        for _ in range(first, taken):  # all micro-batches of a step
            left = 1.0
            while left > 1e-9:
                loss, own, of_step = next(batches)
                total, units, left = total + loss, units + own, left - own / of_step
        assert float(row["train/loss"]) == pytest.approx(total / units, rel=1e-5)
    assert not list(batches)


def flip_a_bit(path):
    """In the middle of the largest tensor, which torch reads without a word."""
    with zipfile.ZipFile(path) as file:
        tensors = [each for each in file.infolist() if "/data/" in each.filename]
        whole = file.read(max(tensors, key=lambda each: each.file_size))
    content = bytearray(path.read_bytes())
    content[content.index(whole) + len(whole) // 2] ^= 1
    path.write_bytes(content)
    assert load_file(path)


def change(path, **changes):
    """Write a checkpoint with other values; None takes one away."""
    content = load_file(path) | changes
    save_file(path, {name: value for name, value in content.items() if value is not None})


FOREIGN = {"run_hash": "a1", "stage": "base"}


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (
            lambda path: path.with_name("config.yaml").write_text("run_hash: b2\n"),
            "written by .*a1.* this is .*b2",
        ),
        (lambda path: change(path, origin=FOREIGN), "written by .*'base'.*, and this is .*'gates'"),
        (lambda path: change(path, loops=None), r"last\.pt .*: it holds no loops"),
        (lambda path: change(path, ranks=[{}] * 3), "written by 3 processes, and now there are 1"),
        (lambda path: change(path, state_dict={"x": torch.zeros(3)}), "not those of the model"),
        (flip_a_bit, r"not a whole checkpoint of plain tensors \(the checksum of"),
    ],
    ids=["another run", "another stage", "a part is missing", "ranks", "another model", "a bit"],
)
def test_a_foreign_checkpoint_is_not_resumed(translator, data, tmp_path, monkeypatch, damage, error):
    folder = RunFolder(tmp_path / "cut")
    folder.path.mkdir()
    folder.write_text("config.yaml", "run_hash: a1\n")
    cut_off(monkeypatch, 1, 0, translator, data, folder.path)
    damage(folder / "last.pt")
    with pytest.raises(ValueError, match=f"{error}.*--fresh") as refused:
        train(translator, data, folder.path, resume=True)
    assert "\n" not in str(refused.value)


def test_the_model_is_left_with_the_best_weights_and_not_the_last_and_the_result_survives_json(
    translator, data, folder
):
    diverging = StageConfig(epochs=3, lr=0.3, warmup_steps=0, clip=0.0, bleu_sentences=0)
    result, _ = train(translator, data, folder.path, stage=diverging)
    assert result.best_epoch == result.losses.index(min(result.losses))
    best = load_model(folder / result.weights).state_dict()
    assert all(torch.equal(tensor, best[name]) for name, tensor in translator.model.state_dict().items())
    assert not translator.model.training
    folder.write_json("stage.json", result.to_json())
    assert StageResult(**folder.read_json("stage.json")).to_json() == result.to_json()
    assert result.steps == 3 * data.sampler().steps
    tokens = 3 * sum(len(target) + 1 for _, target in data.train_pairs)
    assert result.tokens_per_second == pytest.approx(tokens / result.seconds)


# ---------------------------------------------------------------- in the middle of an epoch


@pytest.mark.parametrize(
    ("gates", "damage"),
    [(None, None), (GATES, flip_a_bit), (GATES, os.remove)],
)
def test_a_stage_goes_on_from_the_last_checkpoint_that_is_whole(
    translator, data, tmp_path, monkeypatch, gates, damage
):
    often = {"gates": gates, "machine": OFTEN}
    whole, _ = train(
        untrained(translator), data, tmp_path / "whole", gates=gates
    )  # and checkpoints change nothing
    cut = tmp_path / "cut"
    cut_off(monkeypatch, 1, 5, untrained(translator), data, cut, **often)
    assert data.sampler().steps == 9
    assert (last_step(cut), last_step(cut, "last.previous.pt")) == (14, 12)
    assert not list(cut.glob("*.part"))
    expected = contextlib.nullcontext()
    if damage is not None:
        damage(cut / "last.pt")
        expected = pytest.warns(
            UserWarning, match=r"last\.pt.*Going on from last\.previous\.pt, after step 12"
        )
    with expected:
        again, _ = train(untrained(translator), data, cut, **often, resume=True)
    assert same_files(tmp_path / "whole", cut)
    assert (again.losses, again.steps, again.best_epoch) == (whole.losses, whole.steps, whole.best_epoch)
    assert not (cut / "last.previous.pt").exists(), "of a finished stage the last checkpoint is enough"


@pytest.mark.parametrize(
    ("signum", "batch"),
    [(signal.SIGINT, 4), (signal.SIGUSR1, 4), (signal.SIGINT, 8)],
    ids=["Ctrl-C", "SLURM", "Ctrl-C in the last step of an epoch"],
)
def test_a_signal_waits_until_the_step_is_saved(translator, data, tmp_path, monkeypatch, signum, batch):
    train(untrained(translator), data, tmp_path / "whole", gates=GATES)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signum, interrupt)
    try:
        with monkeypatch.context() as patched:
            cut_power(patched, epoch=1, batch=batch, cut=lambda: os.kill(os.getpid(), signum))
            with pytest.raises(KeyboardInterrupt):
                train(untrained(translator), data, tmp_path / "cut", gates=GATES)
        if signum != signal.SIGINT:  # which Lightning ignores from then on: the program is ending
            assert signal.getsignal(signum) is interrupt
    finally:
        signal.signal(signum, before)
    assert last_step(tmp_path / "cut") == 10 + batch
    train(untrained(translator), data, tmp_path / "cut", gates=GATES, resume=True)
    assert same_files(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_that_a_destructor_swallows_in_validation_ends_the_stage(
    translator, data, tmp_path, monkeypatch, times
):
    class Dropped:
        def __del__(self):
            for _ in range(times):
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)

    step = modules.StageModule.validation_step

    def validation_step(self, *batch):
        if self.current_epoch == 1:
            Dropped()
        return step(self, *batch)

    monkeypatch.setattr(modules.StageModule, "validation_step", validation_step)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(translator, data, tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert last_step(tmp_path) == data.sampler().steps


def test_a_signal_after_the_last_epoch_ends_the_program(translator, data, tmp_path):
    class Late(Watcher):
        def on_train_end(self, *_):
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(translator, data, tmp_path, watchers=[Late()])
    finally:
        signal.signal(signal.SIGINT, before)
    assert last_step(tmp_path) == 3 * data.sampler().steps


def test_a_full_disk_leaves_the_checkpoint_before(translator, data, tmp_path, monkeypatch):
    save, written = torch.save, []

    def full(content, file, **how):
        written.append(file)
        if len(written) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(content, file, **how)

    monkeypatch.setattr("headgates.lightning_modules.checkpoints.torch.save", full)
    with pytest.raises(OSError, match=r"cannot write .*: No space left on device; free some space"):
        train(untrained(translator), data, tmp_path / "cut", machine=OFTEN)
    assert not list((tmp_path / "cut").glob("*.part"))
    assert last_step(tmp_path / "cut") == 6
