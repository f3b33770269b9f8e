"""Where weights begin again once the heads are decided: at the base's, closed in the way that was asked
for."""

import copy
import shutil

import pytest
import torch

from headgates.configs.cli import ConfigError, read
from headgates.configs.schema import FitConfig
from headgates.gates import attach
from headgates.workbench.closing import Calibration, close_heads
from headgates.workbench.protocol import make_runs
from headgates.workbench.source import open_source
from headgates.workbench.stages import rewind
from tests.worlds.small_model import stirred


@pytest.mark.parametrize("how", ["rescale", "out"])
def test_the_weights_are_those_of_the_base_closed_in_that_way(finished, how):
    base = finished.path.parent / finished.config()["base"].rpartition("/")[2]
    began, expected = open_source(base, device="cpu"), open_source(base, device="cpu")
    trained = stirred(copy.deepcopy(began.model), 1.0)
    bank = attach(trained, gate="subset", target_heads=9)
    closed = bank.closed()
    bank.binarise()
    before = copy.deepcopy(began.model.state_dict())
    rewind(trained, began, how, bank)
    close_heads(expected.model, closed, how, Calibration(expected))
    state, wanted = trained.state_dict(), expected.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in wanted.items())
    changed = {name for name in wanted if not torch.equal(state[name], before[name])}
    assert changed
    assert all("out_proj" in name for name in changed)
    now = began.model.state_dict()
    assert all(torch.equal(now[name], weight) for name, weight in before.items()), "the base is used again"
    assert torch.equal(bank.closed().flat(), closed.flat())


def test_a_stage_that_begins_again_differs_and_is_found_again(finished, unpriced, tmp_path):
    runs = shutil.copytree(finished.path.parent, tmp_path / "runs")
    words = "--gate subset --heads 9 --systems base,base-continued,subset --set gates.settle_when=decided"
    words += " --set gates.patience=2 --set gates.head_start=1 --set gates.anneal_steps=2"
    flags = [*unpriced, "--runs", str(runs), *words.split()]
    plain, repaired, again = (
        make_runs(read(FitConfig, [*flags, *more]))
        for more in (
            ["--name", "plain"],
            ["--gates.reconstruct", "out", "--name", "repaired"],
            ["--gates.reconstruct", "out", "--name", "repaired"],
        )
    )
    assert plain.run_hash() != repaired.run_hash() == again.run_hash()
    losses = [run.read_json("stage.json")["losses"] for run in (plain, repaired)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    "flags",
    [
        ["--gates.reconstruct", "resample"],
        ["--gates.reconstruct", "outt"],
        ["--set", "gates.head_start_by=importanec"],
    ],
)
def test_what_training_cannot_start_from_is_refused(flags):
    with pytest.raises(ConfigError, match=r"expected|choose|one of|did you mean"):
        read(FitConfig, flags)
