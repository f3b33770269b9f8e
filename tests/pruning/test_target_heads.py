"""Methods with a number of heads, learning from the base, and the same heads from scratch: on the
tiny language."""

import numpy as np
import pytest
import torch

from headgates.configs.cli import read
from headgates.configs.schema import FitConfig
from headgates.gates import HeadMap
from headgates.lab.lab import Lab
from headgates.models.checkpoint import load_file
from headgates.pruning.protocol import make_runs


@pytest.fixture
def configure(unpriced, tmp_path):
    """The tiny configuration without its price."""
    return lambda *flags: read(FitConfig, [*unpriced, "--runs", str(tmp_path / "runs"), *flags])


FEW = ("--finetune.epochs", "2", "--gates.settle", "0.5")


def rows(run):
    return {row["system"]: row for row in run.read_json("result.json")["rows"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--gate", "subset", "--heads", "22"),
            "--heads: cannot keep 22 of 21 heads of enc-self, dec-self, cross; give a smaller number",
        ),
        (("--curve", "100"), "--curve: expected fewer heads than the 21 of enc-self,"),
        (("--gate", "l0", "--heads", "8", "--kinds", "cross"), "--heads: cannot keep 8 of 7 heads of cross"),
        (
            ("--gate", "subset", "--heads-per-kind", "enc-self=8,dec-self=1,cross=1"),
            "--heads-per-kind: cannot keep 8 of 7 enc-self heads; heads of each kind: enc-self 7, dec-self "
            "7, cross 7",
        ),
    ],
)
def test_more_heads_than_there_are_are_refused_before_anything_is_trained(
    configure, tmp_path, words, message
):
    with pytest.raises(ValueError, match=message):
        Lab(configure(*words))
    assert not (tmp_path / "runs").exists()


def test_a_run_keeps_the_number_by_kind_and_the_scores_beside_it_too(configure, text_folder):
    told = (
        "--gate",
        "l0-started",
        "--heads-per-kind",
        "enc-self=1,dec-self=4,cross=3",
    )
    run = make_runs(
        configure(
            *FEW,
            *told,
            "--systems",
            "base,l0-started,l0-started-removed,importance",
            "--train.epochs",
            "1",
        )
    )
    assert run.path.name == f"{text_folder.name}-xx-yy-l0-started-8-enc-self=1+dec-self=4+cross=3-s1"
    for system in ("l0-started", "l0-started-removed", "importance"):
        assert rows(run)[system]["heads_by_kind"] == {"enc-self": 1, "dec-self": 4, "cross": 3}
    with np.load(run / "gates_history.npz") as history:
        first = dict(zip(history["heads"].tolist(), history["log_alpha"][0].tolist(), strict=True))
    scores = HeadMap.from_json(run.read_json("scores/importance.json"))
    importance = torch.cat(
        [row / row.norm() for row in scores.values()]
    )  # as importance pruning compares layers
    assert torch.equal(
        torch.tensor(list(first.values())).argsort(), importance.argsort()
    )  # gates start in this order


def test_a_priced_run_keeps_the_number_learns_from_its_base_and_trains_the_heads_from_scratch(
    configure, text_folder, stages
):
    told = (
        "--gate",
        "l0",
        "--heads",
        "9",
        "--distill.weight",
        "0.5",
        "--set",
        "distill.temperature=2",
    )
    run = make_runs(
        configure(*FEW, *told, "--systems", "base,base-continued,l0,importance:trained,l0-scratch")
    )
    assert run.path.name == f"{text_folder.name}-xx-yy-l0-target-9-s1"
    assert stages == [
        "base",
        "base-continued",
        "gates",
        "importance:trained",
        "l0-target-scratch",
        "l0-target-scratch, on",
    ]
    found = rows(run)
    assert list(found) == ["base", "base-continued", "l0-target", "importance:trained", "l0-target-scratch"]
    assert found["l0-target"]["heads_open"] == found["importance:trained"]["heads_open"] == 9
    scratch, learned = found["l0-target-scratch"], found["l0-target"]
    assert scratch["heads_by_site"] == learned["heads_by_site"]
    assert scratch["parameters"] == learned["parameters"]
    assert scratch["stage"]["steps"] == found["base-continued"]["stage"]["steps"]
    weights = [load_file(run / name)["model"] for name in ("best.pt", "l0-target-scratch-best.pt")]
    assert weights[0].keys() == weights[1].keys()
    assert not [path.name for path in run.path.glob("*-last.pt")]
    distances = [
        sum((other[name] - weights[0][name]).norm() ** 2 for name in weights[0])
        for other in (base_weights(run), weights[1])
    ]
    assert distances[1] > 4 * distances[0]  # not a continuation of the base


def base_weights(run):
    return load_file(run.path.parent / run.config()["base"] / "best.pt")["model"]
