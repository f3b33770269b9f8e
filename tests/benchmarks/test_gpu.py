"""The benchmark of a GPU compares its models before a clock starts, and says where there is no GPU."""

import copy
import sys

import pytest
import torch

from benchmarks import gpu
from benchmarks.training_peers import make_batches, marian, our_marian


@pytest.fixture
def pair():
    torch.manual_seed(1)
    theirs = marian(gpu.SMALL_WIDTH, 0.0).eval()
    return theirs, our_marian(copy.deepcopy(theirs)).eval(), gpu.first(make_batches(1)[0], 3)


def test_equal_models_pass_and_one_other_weight_is_found(pair):
    theirs, ours, batch = pair
    assert gpu.check_same(theirs, ours, batch)["same_lines"] == 1.0
    with torch.no_grad():
        ours.decoder.layers[0].cross_attention.out_proj.weight[0] += 0.1
    with pytest.raises(ValueError, match="ours and Marian differ"):
        gpu.check_same(theirs, ours, batch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_is_told_what_to_type(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    assert gpu.run("gpu", gpu.QUESTION, gpu.__doc__, gpu.FLAGS, gpu.answer) == 1
    assert "--device cpu --small" in capsys.readouterr().err
