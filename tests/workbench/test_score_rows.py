"""Scores beside the gates: each row closes exactly as many heads as l0, those that its score puts lowest."""

from pathlib import Path

import pytest
import torch

from headgates.analysis.scores.random_score import random_score
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.gates import HeadMap
from headgates.workbench.folder import RunFolder
from headgates.workbench.protocol import make_runs
from headgates.workbench.source import open_source

ROWS = "base,l0,random,weight-norm,weight-norm:trained"


@pytest.fixture(scope="module")
def compared(tiny_flags, tmp_path_factory) -> RunFolder:
    """A finished run whose heads are compared with two other scores."""
    torch.set_num_threads(1)
    return make_runs(
        read(FitConfig, [*tiny_flags, "--systems", ROWS, "--runs", str(tmp_path_factory.mktemp("compared"))])
    )


def kept(run: RunFolder, system: str) -> HeadMap:
    return HeadMap.from_json(run.systems()[system]["xi"])


def test_all_methods_keep_as_many_heads_as_the_gates(compared):
    rows = compared.read_json("result.json")["rows"]
    assert [row["system"] for row in rows] == ROWS.split(",")
    heads = {row["system"]: row["heads_open"] for row in rows if row["system"] != "base"}
    assert set(heads.values()) == {heads["l0"]}
    assert 0 < heads["l0"] < 21
    assert kept(compared, "weight-norm") == kept(compared, "weight-norm:trained")


@pytest.mark.parametrize("system", ["random", "weight-norm"])
def test_the_lowest_scores_are_closed(compared, system):
    scores, xi = HeadMap.load(compared / f"scores/{system}.json").flat(), kept(compared, system).flat()
    assert set(xi.tolist()) == {0.0, 1.0}
    assert scores[xi == 0].max() < scores[xi == 1].min()


def test_scores_are_of_the_base_and_not_of_the_gated_model(compared):
    base = compared.path.parent / Path(compared.config()["base"]).name
    expected = weight_norm(open_source(base).translator.model)
    assert HeadMap.load(compared / "scores/weight-norm.json").flat().tolist() == pytest.approx(
        expected.flat().tolist()
    )


def test_another_seed_draws_other_heads(compared):
    model = open_source(compared.path, dense=True).model
    recorded = HeadMap.load(compared / "scores/random.json").flat().tolist()
    assert random_score(model, seed=1).flat().tolist() == pytest.approx(recorded)
    assert random_score(model, seed=2).flat().tolist() != pytest.approx(recorded)
