"""Gates stand beside any task: one that is not translation trains with gates, and its model comes back."""

from dataclasses import replace

import pytest
import torch

from headgates.configs.schema import GateConfig, StageConfig
from headgates.gates import LambdaBudget, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, run_stage
from tests.tasks.bag_of_words import BagOfWords

STAGE = StageConfig(epochs=3, optimizer="adamw", lr=0.01, warmup_steps=3, bleu_sentences=0)


def test_a_penalty_closes_heads_and_the_loss_falls(corpus, vocab_folder, data, folder, configure):
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


def test_the_penalty_reaches_the_gates_alone(vocab_folder, data, configure, quiet_trainer):
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

    (without, _), (penalised, _) = gradients(0.0), gradients(0.7)
    for name, gradient in without.items():
        if not name.startswith("head_gates."):
            assert torch.equal(gradient, penalised[name])
    (gates,) = [name for name in without if name.startswith("head_gates.")]
    p = torch.sigmoid(
        torch.tensor(2.5, dtype=torch.float64) - 0.33 * torch.tensor(0.1 / 1.1, dtype=torch.float64).log()
    )
    assert (penalised[gates] - without[gates]).double().tolist() == pytest.approx(
        [float(0.7 * p * (1 - p))] * 7, rel=1e-3
    )
