"""The loss, its scale over micro-batches, clipping, the optimiser's groups, validation, and NaN."""

import math
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import pytorch_lightning as pl
import sacrebleu
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from headgates.configs.stages import GateConfig, StageConfig
from headgates.data.batch import collate
from headgates.data.special_tokens import SpecialTokens
from headgates.gates import HardConcrete, LambdaBudget, NotANumber, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.optimizers import inverse_sqrt
from headgates.lightning_modules.stage_data import StageData
from headgates.tasks.translation import Translation

PAD = SpecialTokens().padding

TASK = Translation()
STAGE = StageConfig(
    epochs=1,
    optimizer="adamw",
    lr=0.01,
    warmup_steps=7,
    clip=0.0,
    label_smoothing=0.1,
    bleu_sentences=0,
    weight_decay=0.03,
)
BUDGET = LambdaBudget(0.7, warmup=4)


class Gradients(pl.Callback):
    """A copy of every gradient just before the optimiser's step."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.found = {n: p.grad.clone() for n, p in module.model.named_parameters() if p.grad is not None}


def one_step(module, batches, quiet_trainer):
    gradients = Gradients()
    trainer = quiet_trainer(gradients, accumulate_grad_batches=len(batches), limit_val_batches=0)
    trainer.fit(module.train(), DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch))
    return gradients.found


def ungated(translator, **stage):
    return StageModule(TASK, translator, replace(STAGE, **stage), seed=1)


def check_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def cut(pairs, sizes):
    """Micro-batches of one optimiser step, of these numbers of pairs."""
    tokens = sum(len(target) + 1 for _, target in pairs[: sum(sizes)])
    ends = list(accumulate(sizes, initial=0))
    return [collate(pairs[a:b], list(range(a, b)), tokens) for a, b in pairwise(ends)]


def smoothed(model, batch):
    """Label-smoothed cross-entropy per target token, torch's own."""
    logits = model(batch.source, batch.target_in).flatten(0, 1)
    return F.cross_entropy(
        logits, batch.target_out.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="mean"
    )


def test_the_loss_is_torchs_label_smoothed_cross_entropy_per_target_token(translator, data, quiet_trainer):
    (batch,), model = cut(data.train_pairs, [17]), translator.model
    smoothed(model, batch).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    check_close(one_step(ungated(translator), [batch], quiet_trainer), expected)


def test_a_step_of_micro_batches_has_the_gradient_of_one_big_batch(translator, data, quiet_trainer):
    sizes = [2, 11, 4]
    start = {name: tensor.clone() for name, tensor in translator.model.state_dict().items()}
    whole = one_step(ungated(translator), cut(data.train_pairs, [17]), quiet_trainer)
    translator.model.load_state_dict(start)
    parts = ungated(translator, accumulate=len(sizes))
    check_close(one_step(parts, cut(data.train_pairs, sizes), quiet_trainer), whole)


@pytest.mark.parametrize("sizes", [[17], [2, 11, 4]])
def test_the_penalty_counts_once_an_optimiser_step(translator, data, quiet_trainer, monkeypatch, sizes):
    # without noise and at 2.5 a gate is exactly 1: cross-entropy gives it no gradient, the penalty lambda * p
    # (1 - p)
    monkeypatch.setattr(HardConcrete, "sample", HardConcrete.test_value)
    module = gated(translator, accumulate=len(sizes))
    p = module.gate_bank.open_prob().flat()[0]
    found = []
    module.gates.adam.register_step_pre_hook(lambda *_: found.extend(p.grad for p in module.gates.gates))
    one_step(module, cut(data.train_pairs, sizes), quiet_trainer)
    assert torch.cat(found).tolist() == pytest.approx([float(BUDGET.weight(0) * p * (1 - p))] * 21, rel=1e-4)


def gated(translator, **stage):
    bank = attach(translator.model, gate="l0", lam=BUDGET.lam, warmup=BUDGET.warmup)
    stage = replace(STAGE, **stage)
    return StageModule(TASK, translator, stage, seed=1, gating=Gating(GateConfig(lr=0.3), bank, epochs=1))


def test_each_weight_has_one_optimizer_and_gates_one_of_their_own_without_weight_decay(translator):
    module = gated(translator)
    made = module.configure_optimizers()
    optimizer, scheduler = made["optimizer"], made["lr_scheduler"]["scheduler"]
    assert made["lr_scheduler"]["interval"] == "step"
    (weights,), (gates,) = optimizer.param_groups, module.gates.adam.param_groups
    for step in range(23):
        assert weights["lr"] == pytest.approx(STAGE.lr * inverse_sqrt(step, STAGE.warmup_steps))
        optimizer.step()
        scheduler.step()
    assert (gates["lr"], weights["weight_decay"], gates["weight_decay"]) == (0.3, 0.03, 0)
    assert sum(p.numel() for p in gates["params"]) == 21
    ids = [id(p) for group in (weights, gates) for p in group["params"]]
    assert len(set(ids)) == len(ids) == len(list(module.model.parameters()))


@pytest.mark.parametrize("clip", [0.01, 0.0])
def test_clipping_bounds_the_model_and_leaves_the_gates_alone(translator, clip):
    module = gated(translator, clip=clip)
    optimizer = module.configure_optimizers()["optimizer"]
    for p in module.model.parameters():
        p.grad = torch.ones_like(p)
    weights = [p for name, p in module.model.named_parameters() if not name.startswith("head_gates.")]
    before = math.sqrt(sum(p.numel() for p in weights))
    module.configure_gradient_clipping(optimizer, None, None)
    norm = float(torch.cat([p.grad.flatten() for p in weights]).norm())
    assert norm == pytest.approx(clip or before, rel=1e-4)
    assert all((gate.log_alpha.grad == 1).all() for _, gate in module.gate_bank.items())


def test_validation_covers_every_pair_and_agrees_with_torch_and_sacrebleu(
    translator, data, corpus, quiet_trainer
):
    sample = (corpus.valid.sources[:5], corpus.valid.targets[:5])
    module = StageModule(TASK, translator, STAGE, seed=1, sample=sample)
    (found,) = quiet_trainer().validate(module, datamodule=StageData(data), verbose=False)
    pairs = data.split("valid").pairs
    batch = collate(pairs, list(range(len(pairs))), 1)
    with torch.no_grad():
        logits = translator.model.eval()(batch.source, batch.target_in).flatten(0, 1)
    loss = float(F.cross_entropy(logits, batch.target_out.flatten(), ignore_index=PAD))  # no smoothing
    real = batch.target_out.flatten() != PAD
    assert found["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert found["val/perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["val/token_accuracy"] == pytest.approx(
        float((logits.argmax(1) == batch.target_out.flatten())[real].float().mean())
    )
    bleu = sacrebleu.corpus_bleu(translator.translate(sample[0], beam=1), [sample[1]], force=True).score
    assert found["val/bleu"] == pytest.approx(bleu, rel=1e-4)


@pytest.mark.parametrize("epochs", [1, 5], ids=["a short stage", "a long stage"])
def test_a_loss_that_is_not_a_number_stops_with_advice(translator, data, quiet_trainer, epochs):
    translator.model.output.weight.data[5, 3] = float("nan")
    with pytest.raises(NotANumber, match=r"loss is nan.*lower .*lr"):
        quiet_trainer(max_epochs=epochs).fit(ungated(translator).train(), datamodule=StageData(data))
