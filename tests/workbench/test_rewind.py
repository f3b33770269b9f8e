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


@pytest.mark.parametrize("how", ["rescale", "out"])
def test_the_weights_are_those_of_the_base_closed_in_that_way(finished, how):
    base = finished.path.parent / finished.config()["base"].rpartition("/")[2]
    began, expected = open_source(base, device="cpu"), open_source(base, device="cpu")
    trained = copy.deepcopy(began.model)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    bank = attach(trained, gate="subset", target_heads=9)
    closed = bank.closed()
    bank.binarise()
    before = {name: weight.clone() for name, weight in began.model.state_dict().items()}
    rewind(trained, began, how, bank)
    close_heads(expected.model, closed, how, Calibration(expected))
    state, wanted = trained.state_dict(), expected.model.state_dict()
    assert {name for name in wanted if not torch.equal(state[name], wanted[name])} == set()
    changed = {name for name in wanted if not torch.equal(state[name], before[name])}
    assert changed
    assert all("out_proj" in name for name in changed)
    assert all(torch.equal(weight, before[name]) for name, weight in began.model.state_dict().items()), (
        "the base is used again"
    )
    assert torch.equal(bank.closed().flat(), closed.flat())


def test_a_stage_that_begins_again_differs_and_is_found_again(finished, tiny_flags, tmp_path):
    runs = shutil.copytree(finished.path.parent, tmp_path / "runs")
    price = tiny_flags.index("--lambda")
    flags = [
        *tiny_flags[:price],
        *tiny_flags[price + 2 :],
        "--runs",
        str(runs),
        "--gate",
        "subset",
        "--heads",
        "9",
        "--set",
        "gates.settle_when=decided",
        "--set",
        "gates.patience=2",
    ]
    flags += [
        "--systems",
        "base,base-continued,subset",
        "--set",
        "gates.head_start=1",
        "--set",
        "gates.anneal_steps=2",
    ]
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
