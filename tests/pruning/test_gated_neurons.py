"""`fit.py --kinds ffn|all`: learned gates and rows of scores on feed-forward neurons, from flag to file."""

import pytest
import torch

from headgates.configs.cli import read
from headgates.configs.compare import CompareConfig
from headgates.configs.schema import FitConfig
from headgates.gates import FFN_KINDS, HeadMap, heads_left
from headgates.lab.lab import Lab
from headgates.pruning.comparison import Comparison
from headgates.pruning.point import Size
from headgates.pruning.protocol import make_runs
from headgates.records.run_rows import FinishedRun
from headgates.records.source import open_source
from headgates.report.table import comparison_table

NEURONS = 2 * 23  # of the tiny model, which keeps 0, 16 or all 23 of each layer
LEVELS = {0, 16, 23}


@pytest.fixture
def gates(base, unpriced):
    """gates(words...) is the configuration of learned gates on the base."""
    flags = [*unpriced, "--runs", str(base.path.parent), "--base", str(base.path)]
    return lambda *words: read(FitConfig, [*flags, *map(str, words)])


def logits(source) -> torch.Tensor:
    model, generator = source.model.eval(), torch.Generator().manual_seed(1)
    source_ids, target_ids = (torch.randint(4, 20, (3, 5), generator=generator) for _ in range(2))
    with torch.no_grad():
        return model(source_ids, target_ids)


@pytest.mark.parametrize("gate", ["l0", "subset", "l0-started"])
def test_gates_keep_the_heads_and_whole_blocks_of_neurons_and_all_rows_are_of_that_size(gates, gate, capsys):
    own = "l0-target" if gate == "l0" else gate
    rows = f"base,base-continued,{own},{own}-removed,importance:out+ffn,weight-norm:trained"
    run = make_runs(gates("--gate", gate, "--kinds", "all", "--heads", 8, "--neurons", 32, "--systems", rows))
    assert run.path.name == f"text0-xx-yy-{own}-8-32n-all-s1"
    for row in run.rows():
        if not row.is_base:
            assert (row.heads_open, row.neurons_total) == (8, NEURONS)
            assert 32 <= row.neurons_open < 32 + 16, "where a number falls into a block, that one stays"
            assert {*row.neurons_by_site.values()} <= LEVELS
    xi = HeadMap.from_json(run.systems()[own]["xi"])
    masked, removed = (open_source(run.path, system) for system in (own, f"{own}-removed"))
    torch.testing.assert_close(logits(masked), logits(removed), rtol=1e-5, atol=1e-5)
    assert heads_left(removed.model, "all") == xi.map(lambda row: row > 0), "numbered as in the base"
    learned = next(row for row in run.rows() if row.system == own)
    assert learned.expected_open_neurons > 0
    comparison_table(run)
    said = capsys.readouterr().out
    assert f" {learned.neurons_open}/{NEURONS} " in said
    assert f"8 of 21 heads and {learned.neurons_open} of 46 feed-forward neurons" in said
    (found,) = [row for row in FinishedRun(run).rows if row["learned"]]
    assert found["kinds"] == "enc-self+dec-self+cross+enc-ffn+dec-ffn"
    assert found["neurons_open"] == learned.neurons_open


def test_neurons_alone_are_chosen_first_refitted_and_trained_on(gates, stages):
    words = [
        "--kinds",
        "ffn",
        "--neurons",
        16,
        "--gates.reconstruct",
        "out+ffn",
        "--systems",
        "base,l0-target",
    ]
    run = make_runs(gates("--gate", "l0", *words))
    assert stages == ["gates: choice", "gates"]
    row = run.rows()[-1]
    assert (row.heads_open, row.heads_total, row.neurons_open) == (21, 21, 16)
    assert sorted(row.neurons_by_site.values()) == [0, 16]
    again = make_runs(gates("--gate", "l0", *words))
    assert (again.path, stages) == (run.path, ["gates: choice", "gates"]), "found again by its hash"


def test_a_price_closes_neurons_and_the_rows_of_scores_keep_as_many(gates):
    words = ["--kinds", "all", "--lambda", 0.1, "--gates.lr", 0.5, "--set", "gates.log_alpha=0.1"]
    run = make_runs(gates("--gate", "l0", *words, "--systems", "base,l0,importance"))
    learned, scored = run.rows()[1:]
    assert learned.neurons_open < NEURONS
    assert {*learned.neurons_by_site.values()} <= LEVELS
    assert (learned.heads_open, learned.neurons_open) == (scored.heads_open, scored.neurons_open)


def test_rows_of_scores_stand_at_both_numbers(scored, stages):
    words = ["--kinds", "all", "--heads", 4, "--neurons", 23, "--systems", "base,importance,random:out+ffn"]
    run = make_runs(scored(*words))
    assert run.path.name == "text0-xx-yy-heads-4-neurons-23-s1"
    for row in run.rows()[1:]:
        xi = HeadMap.from_json(run.systems()[row.system]["xi"])
        left = [int(each.sum()) for each in xi.select(FFN_KINDS).values()]
        assert (row.heads_open, row.neurons_open) == (xi.select("heads").count(), sum(left)), row.system
        assert (row.heads_open, {*left} <= LEVELS) == (4, True)
        assert 23 <= row.neurons_open < 23 + 16
    assert stages == []


def test_more_neurons_than_there_are_are_refused_before_any_training(gates, stages):
    with pytest.raises(ValueError, match="--neurons: cannot keep 47 of 46 neurons of enc-ffn, dec-ffn"):
        Lab(gates("--gate", "l0", "--kinds", "ffn", "--neurons", 47))
    with pytest.raises(ValueError, match="--neurons: cannot keep 24 of 23 neurons of dec-ffn"):
        make_runs(gates("--gate", "scores", "--kinds", "dec-ffn", "--neurons", 24, "--systems", "random"))
    assert stages == []


# ---------------------------------------------------------------- compare.py


@pytest.fixture
def compared(base):
    words = [str(base.path), "--methods", "importance,subset", "--runs", str(base.path.parent)]
    return lambda *more: Comparison(read(CompareConfig, [*words, *map(str, more)]))


def test_every_number_of_heads_stands_with_every_number_of_neurons(compared, stages):
    found = compared("--kinds", "all", "--heads", "4,9", "--neurons", "16,32", "--finetune", "0,2")
    assert found.sizes == [Size(9, 32), Size(9, 16), Size(4, 32), Size(4, 16)]
    assert found.sizes_words == "9, 4 of 21 heads with 32, 16 of 46 neurons"
    assert len(found.plan) == 4 * (1 + 2)
    point = found.plan[-1]
    assert point.flags["neurons"] == 16
    plain = next(point for point in found.plan if not point.epochs)
    found.keep_scores([plain])
    found.make_here(plain)
    assert stages == []
    (run,) = found.base.path.parent.glob("*-heads-9-neurons-32-s1")
    assert open_source(run).folder.run_hash() == plain.run_hash


def test_shares_of_the_neurons_are_whole_blocks(compared):
    assert compared("--kinds", "ffn", "--finetune", 1).sizes == [Size(None, 32), Size(None, 16)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--neurons", 16], "--neurons: --kinds enc-self,dec-self,cross names none of them"),
        (["--kinds", "ffn", "--heads", 4], "--heads: --kinds enc-ffn,dec-ffn names none of them"),
        (["--kinds", "all", "--heads", 4], "each to numbers of its own: give --neurons too"),
        (["--kinds", "ffn", "--neurons", 48], "cannot keep 48 of 46 neurons"),
    ],
)
def test_sizes_that_cannot_be_are_refused(compared, words, message):
    with pytest.raises(ValueError, match=message):
        compared(*words)
