"""A gate stage as it runs: heads close, a collapse stops it, a stall is said, and its files."""

import csv
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from headgates.configs.schema import GateConfig, ModelConfig, StageConfig
from headgates.gates import LambdaBudget, NotANumber, attach
from headgates.lightning_modules.gating import Gating
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage import Machine, freeze_decoder, run_stage
from headgates.models.checkpoint import load_file
from headgates.models.transformer import Transformer
from headgates.tasks.translation import Translation

MACHINE = Machine(devices=1, precision="32", logger="csv")
STAGE = StageConfig(epochs=3, lr=0.003, warmup_steps=3, bleu_sentences=0)


def train(translator, data, folder, *, lam, gates, stage=STAGE, patience=200):
    bank = attach(translator.model, gate="l0")
    gating = Gating(gates, LambdaBudget(lam, gates.lambda_warmup), epochs=stage.epochs)
    gating.watch.patience = patience
    module = StageModule(Translation(), translator, stage, seed=1, gating=gating)
    return run_stage("gates", module, data, folder, MACHINE, stage), bank


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_price_on_heads_closes_some_and_the_files_say_which(translator, data, folder):
    result, bank = train(
        translator, data, folder, lam=0.1, gates=GateConfig(settle=0.0, lr=0.12, lambda_warmup=2)
    )
    assert bank.open().count() < 21
    assert result.stopped is None
    assert (result.epochs, result.steps) == (3, 3 * data.sampler().steps)
    content = load_file(folder / "best.pt")  # weights_only=True
    assert {name.split(".")[0] for name in content["gates"]} == {"head_gates"}
    assert not any(name.startswith("head_gates") for name in content["model"])
    assert content["epoch"] == result.best_epoch
    last = rows(folder)[-1]
    assert float(last["val/objective"]) > float(last["val/loss"])
    looked = [row for row in rows(folder) if row["gates/open_heads"]]
    assert looked
    for row in looked:
        kinds = ("enc-self", "dec-self", "cross")
        assert sum(float(row[f"gates/open_{kind}"]) for kind in kinds) == float(row["gates/open_heads"])
        assert sum(float(row[f"gates/expected_{kind}"]) for kind in kinds) == pytest.approx(
            float(row["gates/penalty"]), rel=1e-5
        )


def test_the_best_checkpoint_is_chosen_by_loss_plus_the_price_of_the_heads(translator, data, folder):
    result, _ = train(
        translator, data, folder, lam=0.1, gates=GateConfig(settle=0.0, lr=0.12, lambda_warmup=2)
    )
    objective = [float(row["val/objective"]) for row in rows(folder) if row["val/objective"]]
    assert len(objective) == 3
    assert result.best_epoch == int(np.argmin(objective))


def test_the_gates_history_begins_open_and_has_a_name_for_every_head(translator, data, folder):
    stage = replace(STAGE, epochs=5)
    _, bank = train(
        translator, data, folder, lam=0.1, gates=GateConfig(settle=0.0, lr=0.04, lambda_warmup=2), stage=stage
    )
    with np.load(folder / "gates_history.npz") as history:
        steps, log_alpha, heads = history["steps"], history["log_alpha"], history["heads"]
    assert steps.tolist() == list(range(0, 5 * data.sampler().steps + 1, 20))
    assert log_alpha.shape == (len(steps), 21)
    assert (log_alpha[0] == 2.5).all()
    assert (log_alpha[-1] != 2.5).all()
    assert heads.tolist() == [f"{site.name}.{head}" for site in bank.sites for head in range(7)]


@pytest.mark.filterwarnings("ignore::UserWarning:torchmetrics")
def test_a_collapse_stops_the_stage_and_says_what_to_change(translator, data, folder):
    stage = replace(STAGE, epochs=31)
    with pytest.warns(
        UserWarning, match=r"all 21 gated heads are shut at step \d+: lambda 50 is too large .* lower lambda"
    ):
        result, bank = train(
            translator,
            data,
            folder,
            lam=50.0,
            gates=GateConfig(settle=0.0, lr=1.0, lambda_warmup=0),
            stage=stage,
        )
    assert result.stopped is not None
    assert result.stopped.startswith("all 21 gated heads are shut")
    assert result.epochs < 31
    assert bank.open().count() == 0


def test_a_stall_is_said_once_and_does_not_stop_the_stage(translator, data, folder):
    stage = replace(STAGE, epochs=9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        still = GateConfig(settle=0.0, lr=1e-7, lambda_warmup=0)
        result, _ = train(translator, data, folder, lam=0.01, gates=still, stage=stage, patience=11)
    stalls = [str(each.message) for each in caught if "no gate has moved" in str(each.message)]
    assert len(stalls) == 1
    assert "raise the gates' learning rate" in stalls[0]
    assert result.epochs == 9


@pytest.mark.filterwarnings("ignore::UserWarning:torchmetrics")
def test_a_loss_that_is_not_a_number_is_named_with_what_to_change(translator, data, folder):
    translator.model.output.weight.data[5, 3] = float("nan")
    with pytest.raises(NotANumber, match="loss is nan"):
        train(translator, data, folder, lam=0.01, gates=GateConfig(settle=0.0))


def test_a_frozen_decoder_leaves_encoder_source_embeddings_and_gates_to_train(data, folder, translator):
    for positions in ("sinusoidal", "learned"):
        size = len(translator.source_vocab)
        config = ModelConfig(
            d_model=14,
            ffn=23,
            heads=7,
            encoder_layers=1,
            decoder_layers=1,
            embeddings="separate",
            positions=positions,
        )
        model = Transformer(config, size, size)
        attach(model, gate="l0")
        freeze_decoder(model)
        trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
        frozen = {name.split(".")[0] for name, p in model.named_parameters() if not p.requires_grad}
        learned = {"source_positions"} if positions == "learned" else set()
        assert trained == {"encoder", "source_embedding", "head_gates"} | learned
        assert frozen == {"decoder", "target_embedding", "output"} | (
            {"target_positions"} if learned else set()
        )
    translator.model = model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gating = Gating(GateConfig(settle=0.0), LambdaBudget(0.1), epochs=1)
    module = StageModule(Translation(), translator, STAGE, seed=1, gating=gating)
    run_stage("gates", module, data, folder, MACHINE, replace(STAGE, epochs=1))
    moved = {
        name.split(".")[0]
        for name, tensor in model.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert moved == {"encoder", "source_embedding", "source_positions", "head_gates"}


def test_gates_that_settle_stand_still_at_0_or_1_and_the_result_is_of_their_time(translator, data, folder):
    stage = replace(STAGE, epochs=4)
    result, bank = train(
        translator, data, folder, lam=0.1, gates=GateConfig(lr=0.12, lambda_warmup=2, settle=0.5), stage=stage
    )
    assert result.best_epoch >= 2
    final = torch.cat([gate.log_alpha.detach() for _, gate in bank.items()])
    assert (final != GateConfig().log_alpha).any()
    state = load_file(folder / "last.pt")["state_dict"]
    last = torch.cat([value for name, value in sorted(state.items()) if name.endswith("log_alpha")])
    assert sorted(final.tolist()) == sorted(
        last.tolist()
    )  # of the best epoch and of the last: nothing moved between
    bank.train()
    for _, gate in bank.items():
        assert torch.equal(gate(), gate.decision().float())
