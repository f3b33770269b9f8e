"""`fit.py --gate scores --heads K`: no learned gates, the rows of scores at exactly K heads."""

from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.weight_norm import weight_norm
from headgates.configs.cli import ConfigError, read
from headgates.configs.schema import FitConfig
from headgates.configs.systems import ScoreRow, file_name
from headgates.gates import HeadMap
from headgates.lab.lab import Lab
from headgates.pruning.closing import Calibration, close_heads
from headgates.pruning.grid import planned_runs
from headgates.pruning.protocol import make_runs
from headgates.records.folder import base_of
from headgates.records.related import siblings
from headgates.records.source import open_source
from headgates.report.table import comparison_table

ROWS = "base,base-continued,importance,weight-norm,weight-norm:trained"


def test_rows_stand_at_exactly_the_number_of_heads_and_the_run_is_found_again(scored, base, stages, capsys):
    config = scored("--heads", 4, "--systems", ROWS)
    run = make_runs(config)
    assert run.path.name == "text0-xx-yy-heads-4-s1"
    rows = {row.system: row for row in run.rows()}
    assert list(rows) == ROWS.split(",")
    assert {row.heads_open for row in rows.values() if not row.is_base} == {4}
    assert {row.main.p_value is None for row in rows.values()} == {False}
    assert stages == ["weight-norm:trained"], "base and base-continued are there already"
    assert run.own_system() == "weight-norm:trained"
    xi = {
        name: HeadMap.from_json(run.systems()[name]["xi"]).flat() for name in rows if not rows[name].is_base
    }
    assert torch.equal(xi["weight-norm"], xi["weight-norm:trained"])
    scores = HeadMap.load(run / "scores/weight-norm.json").flat()
    assert scores[xi["weight-norm"] == 0].max() < scores[xi["weight-norm"] == 1].min()
    expected = weight_norm(open_source(base.path).model).flat().tolist()
    assert scores.tolist() == pytest.approx(expected), "of the base and not of a pruned model"
    ((run_hash, *_),) = planned_runs([config])
    assert run_hash == run.run_hash()
    assert make_runs(config).path == run.path
    assert stages == ["weight-norm:trained"]
    comparison_table(run)
    assert "4/21" in capsys.readouterr().out


def test_a_run_of_scores_stands_for_its_base_and_not_beside_learned_gates(scored, base, runs):
    run = make_runs(scored("--heads", 9, "--systems", "base,random"))
    assert base_of(run).path.resolve() == base.path.resolve()
    (gated,) = (path for path in runs.iterdir() if "-l0-" in path.name)
    assert [sibling.path.name for sibling in siblings(base, report=print)] == [gated.name]
    bank = open_source(run.path).model
    assert (
        sum(
            row.sum()
            for row in bank.state_dict().values()
            if row.shape == (7,) and set(row.tolist()) <= {0.0, 1.0}
        )
        == 9
    )
    with pytest.raises(ValueError, match=r"is a run with heads closed by scores; --base needs a base run"):
        Lab(scored("--base", run.path, "--heads", 9, "--systems", "random"))


def test_what_is_not_trained_is_the_same_run_however_long_others_train(scored):
    plain = [
        planned_runs([scored("--heads", 4, "--systems", "base,importance", "--finetune.epochs", n)])[0][0]
        for n in (1, 2)
    ]
    trained = [
        planned_runs([scored("--heads", 4, "--systems", "base,importance:trained", "--finetune.epochs", n)])[
            0
        ][0]
        for n in (1, 2)
    ]
    assert plain[0] == plain[1]
    assert trained[0] != trained[1]
    assert planned_runs([scored("--heads", 5, "--systems", "base,importance")])[0][0] != plain[0]


def test_without_a_number_scores_are_refused(scored):
    with pytest.raises(ValueError, match="give --heads N"):
        scored("--systems", "base,importance")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--heads", -1, "--systems", "importance"], "--heads: expected a number at least 0, got -1"),
        (["--heads", 4, "--systems", "base,l0"], "--gate scores learns no gates, so it has no row l0"),
        (["--heads", 4, "--systems", "base"], "name at least one in --systems, such as importance"),
        (["--heads", 4, "--systems", "base,importanc"], "did you mean 'importance'"),
    ],
)
def test_what_cannot_be_made_is_refused_at_once(scored, words, error):
    with pytest.raises(ConfigError, match=error):
        scored(*words)


def test_more_heads_than_there_are_is_refused_before_any_training(scored, tiny_flags, stages):
    with pytest.raises(
        ValueError, match="cannot keep 22 of 21 heads of enc-self, dec-self, cross; give a smaller number"
    ):
        make_runs(
            scored("--heads", 22, "--systems", "base-continued,importance:trained", "--finetune.epochs", 1)
        )
    with pytest.raises(ValueError, match="cannot keep 8 of 7 heads of cross"):
        make_runs(scored("--heads", 8, "--kinds", "cross", "--systems", "importance"))
    with pytest.raises(ValueError, match="cannot keep 22 of 21 heads"):
        Lab(replace(read(FitConfig, tiny_flags), gate="scores", heads=22, systems=["importance"]))
    assert stages == []


@pytest.mark.parametrize("closing", ["zero", "out+ffn+v"])
def test_every_closing_has_rows_with_weights_of_their_own(scored, base, closing, stages):
    plain, trained = (ScoreRow("weight-norm", closing, t).name for t in (False, True))
    run = make_runs(scored("--heads", 8, "--systems", f"base,{plain},{trained}"))
    assert stages == [trained]
    rows = {row.system: row for row in run.rows()}
    assert {rows[name].heads_open for name in (plain, trained)} == {8}
    model, dense = open_source(run.path, plain), open_source(base.path)
    is_open = HeadMap.from_json(run.systems()[plain]["xi"]).map(lambda row: row > 0)
    output = run.path / "hypotheses" / f"{file_name(plain)}.txt"
    assert (
        model.task.predict(model.predictor, model.corpus.test.sources) == output.read_text().split("\n")[:-1]
    )
    close_heads(dense.model, ~is_open, closing, Calibration(dense))
    weights = [
        dict(source.model.named_parameters())["encoder.layers.0.self_attention.out_proj.weight"]
        for source in (model, dense)
    ]
    if closing == "zero":
        assert not torch.equal(*weights), "closed by gates, whose heads may open again"
    else:
        torch.testing.assert_close(*weights)
