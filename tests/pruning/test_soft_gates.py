"""The row of the gates as trained is soft, and of the model that systems.json describes, also where they were
made exact on the way."""

import pytest

from headgates.configs.systems import file_name
from headgates.gates import HeadMap
from headgates.pruning.protocol import make_runs
from headgates.records.source import open_source

FEW = ("--systems", "base,l0-soft,l0", "--train.epochs", "1", "--lambda", "0.05", "--gates.lr", "0.12")


def again(run, system, corpus):
    return "".join(
        line + "\n" for line in open_source(run.path, system).translator.translate(corpus.test.sources)
    )


def test_soft_gates_translate_again_as_they_did_in_the_run(configure, corpus):
    run = make_runs(configure(*FEW, "--gates.settle", "0.5"))
    rows = {row.system: row for row in run.rows()}
    xi = HeadMap.from_json(run.systems()["l0-soft"]["xi"])
    values = [head["value"] for heads in run.read_json("gates.json")["sites"].values() for head in heads]
    assert any(0 < value < 1 for value in values)  # a run where it matters
    assert rows["l0-soft"].heads_open == int((xi.flat() > 0).sum())
    assert xi.flat().tolist() == pytest.approx(values)
    assert rows["l0"].same_as is None
    for system in ("l0-soft", "l0"):
        assert again(run, system, corpus) == (run / f"hypotheses/{file_name(system)}.txt").read_text()
