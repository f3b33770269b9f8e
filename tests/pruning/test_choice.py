"""Heads that are chosen on frozen weights: these stay those of the base until they are refitted, and then
train without the closed heads."""

import shutil

import pytest
import torch

from headgates.configs.cli import ConfigError, read
from headgates.configs.schema import FitConfig
from headgates.gates import HeadMap
from headgates.lab import lab
from headgates.pruning.closing import Calibration, close_heads
from headgates.pruning.protocol import make_runs
from headgates.records.source import open_source

WORDS = (
    "--gate subset --heads 9 --systems base,subset,subset-removed --gates.reconstruct out "
    "--set gates.anneal_steps=2 --name chosen"
)


def test_weights_are_frozen_while_heads_are_chosen_and_begin_where_the_refit_left_them(
    finished, unpriced, tmp_path, monkeypatch
):
    runs, seen = shutil.copytree(finished.path.parent, tmp_path / "runs"), {}
    train = lab.run_stage

    def watched(name, module, *arguments, **options):
        model = module.model
        seen[name] = {key: weight.clone() for key, weight in model.state_dict().items()}
        result = train(name, module, *arguments, **options)
        if name == "gates: choice":
            trained = {n for n, p in model.named_parameters() if not torch.equal(p, seen[name][n])}
            assert trained
            assert all(each.startswith("head_gates.") for each in trained)
        return result

    monkeypatch.setattr(lab, "run_stage", watched)
    run = make_runs(read(FitConfig, [*unpriced, "--runs", str(runs), *WORDS.split()]))
    base = open_source(run.config()["base"], device="cpu")
    closed = ~HeadMap.from_json(run.systems()["subset"]["xi"]).map(lambda row: row.bool())
    assert closed.heads_total - closed.count() == 9
    close_heads(base.model, closed, "out", Calibration(base))
    wanted = base.model.state_dict()
    assert all(torch.equal(seen["gates"][name], weight) for name, weight in wanted.items())
    assert not (run / "choice-best.pt").exists()
    removed = {row.system: row for row in run.rows()}["subset-removed"]
    assert removed.heads_open == 9


@pytest.mark.parametrize(
    "flags",
    [
        ["--gates.reconstruct", "resample"],
        ["--gates.reconstruct", "outt"],
    ],
)
def test_what_training_cannot_start_from_is_refused(flags):
    with pytest.raises(ConfigError, match=r"expected|choose|one of|did you mean"):
        read(FitConfig, flags)
