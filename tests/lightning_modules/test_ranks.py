"""Two processes take the steps of one that accumulates twice as many batches: the same losses, weights, gates
and decisions."""

import csv
import io
from dataclasses import replace

import pytest
import torch

from headgates.configs.schema import StageConfig
from tests.worlds.rank_jobs import trained
from tests.worlds.ranks import on_ranks

STAGE = StageConfig(
    epochs=2, lr=0.01, warmup_steps=3, average=0.8, clip=0.5, bleu_sentences=5, optimizer="adamw"
)


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gate", ["l0-target", "subset"])
def test_two_processes_train_as_one_that_accumulates_twice_as_much(text_folder, vocab_folder, tmp_path, gate):
    where = str(text_folder), str(vocab_folder)
    one = trained(*where, str(tmp_path / "one"), gate, replace(STAGE, accumulate=2))
    two = on_ranks(trained, 2, *where, str(tmp_path / "two"), gate, STAGE)
    for each in two:
        close(each["losses"], one["losses"])
        for kind in ("weights", "last", "average"):
            close(each[kind], one[kind])
        assert [each[name] for name in ("steps", "settled", "best")] == [
            one[name] for name in ("steps", "settled", "best")
        ]
    assert (one["world"], two[0]["world"]) == (1, 2)
    theirs, ours = (list(csv.DictReader(io.StringIO(each["metrics"]))) for each in (one, two[0]))
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for column in ("train/loss", "val/loss", "val/bleu", "gates/expected_cross"):
        values = [[float(row[column]) for row in rows if row.get(column)] for rows in (ours, theirs)]
        close(*values)


def test_a_step_has_a_rank_without_a_batch_in_this_text(data):
    sampler = data.sampler(world=2)
    assert (len(sampler._cuts) - 1) % 2 == 1  # else the test above would not see one
