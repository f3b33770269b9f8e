"""Gates stand beside any task: one that is not translation is trained, gated, pruned, evaluated and opened
again."""

from dataclasses import replace

import pytest
import torch

from headgates.configs import tasks as tables
from headgates.configs.cli import read
from headgates.configs.schema import FitConfig, GateConfig, StageConfig
from headgates.gates import HeadMap, LambdaBudget, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from headgates.tasks import task_named
from headgates.workbench.folder import RunFolder
from headgates.workbench.protocol import make_runs
from headgates.workbench.source import open_source
from tests.tasks.bag_of_words import BagOfWords

SYSTEMS = [
    "base",
    "base-continued",
    "l0-soft",
    "l0",
    "l0-removed",
    "random",
    "random:trained",
    "weight-norm",
]
STAGE = StageConfig(epochs=3, optimizer="adamw", lr=0.01, warmup_steps=3, bleu_sentences=0)


@pytest.fixture(scope="module")
def tasks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tables.TASKS, "bag", "tests.tasks.bag_of_words:BagOfWords")
        yield tables.TASKS


@pytest.fixture(scope="module")
def run(tasks, tiny_flags, tmp_path_factory) -> RunFolder:
    torch.set_num_threads(1)
    flags = [
        "--task",
        "bag",
        "--systems",
        ",".join(SYSTEMS),
        "--runs",
        str(tmp_path_factory.mktemp("bag")),
        "--logger",
        "csv",
    ]
    return make_runs(read(FitConfig, [*tiny_flags, *flags]))


def test_its_name_is_all_that_the_table_needs(tasks):
    assert type(task_named("bag")).__name__ == "BagOfWords"


def test_a_price_on_heads_closes_some_and_the_loss_falls(corpus, vocab_folder, data, folder, configure):
    torch.manual_seed(0)
    task, gates = BagOfWords(), GateConfig(lr=0.3, lambda_warmup=2, settle=0.0)
    predictor = task.new_predictor(vocab_folder, configure())
    bank = attach(predictor.model, gate="l0")
    sample = (corpus.valid.sources[:5], corpus.valid.targets[:5])
    gating = Gating(gates, LambdaBudget(0.1, 2), epochs=STAGE.epochs)
    module = StageModule(task, predictor, STAGE, seed=1, sample=sample, gating=gating)
    result = run_stage("gates", module, data, folder, Machine(1, "32", "csv"), STAGE)
    assert result.losses[-1] < result.losses[0]
    assert bank.open().count() < 7
    assert "val/hits" in (folder / "metrics.csv").read_text().splitlines()[0]
    found = task.load_predictor(
        vocab_folder, folder / result.weights, {}
    )  # gates lie beside the weights, not among them
    assert found.model.state_dict().keys() == {
        name for name in predictor.model.state_dict() if not name.startswith("head_gates")
    }


def test_the_gates_feel_the_price_and_nothing_else_does(vocab_folder, data, configure, quiet_trainer):
    def gradients(lam):
        torch.manual_seed(0)
        predictor = BagOfWords().new_predictor(vocab_folder, configure())
        attach(predictor.model, gate="l0")
        gating = Gating(GateConfig(), LambdaBudget(lam, 0), epochs=1)
        module = StageModule(BagOfWords(), predictor, replace(STAGE, epochs=1), seed=1, gating=gating)
        found = {}

        def keep(optimizer):
            if not found:
                found.update({name: p.grad.clone() for name, p in predictor.model.named_parameters()})

        module.on_before_optimizer_step = keep
        quiet_trainer(limit_train_batches=1, limit_val_batches=0).fit(module.train(), datamodule=data)
        return found, predictor.model.head_gates

    (without, _), (priced, _) = gradients(0.0), gradients(0.7)
    for name, gradient in without.items():
        if not name.startswith("head_gates."):
            assert torch.equal(gradient, priced[name])
    (gates,) = [name for name in without if name.startswith("head_gates.")]
    p = torch.sigmoid(
        torch.tensor(2.5, dtype=torch.float64) - 0.33 * torch.tensor(0.1 / 1.1, dtype=torch.float64).log()
    )
    assert (priced[gates] - without[gates]).double().tolist() == pytest.approx(
        [float(0.7 * p * (1 - p))] * 7, rel=1e-3
    )


def test_the_whole_experiment_has_its_rows_in_its_own_metric(run):
    rows = {row.system: row for row in run.rows()}
    assert list(rows) == SYSTEMS
    for row in rows.values():
        assert (row.metric, row.heads_total, list(row.heads_by_kind)) == ("hits", 7, ["enc-self"])
        assert 0 <= row.main.value <= 100
        assert row.main.p_value is not None
        assert row.measures.keys() == {"hits"}
    assert 0 < rows["l0"].heads_open < 7
    assert rows["random"].heads_open == rows["weight-norm"].heads_open == rows["l0"].heads_open
    assert rows["l0-removed"].parameters < rows["l0"].parameters


def test_what_is_removed_is_what_was_closed(run):
    xi = HeadMap.from_json(run.systems()["l0"]["xi"])
    model = open_source(run.path, "l0-removed").model
    assert model.encoder.layers[0].self_attention.heads == xi.count()


def test_it_is_another_run_than_a_translation_and_does_not_translate(run, tiny_flags):
    assert run.config()["task"] == "bag"
    with pytest.raises(ValueError, match="does not translate: its task is bag"):
        _ = open_source(run.path).translator
