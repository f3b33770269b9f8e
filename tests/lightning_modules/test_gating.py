"""A gate stage as it runs: heads close, a collapse stops it, a stall is said, and its files."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from headgates.configs.settings import ModelConfig
from headgates.configs.stages import GateConfig
from headgates.gates import HeadMap, LambdaBudget, attach, find_sites, remove
from headgates.lightning_modules.gate_history import GateHistory
from headgates.lightning_modules.optimizers import freeze_decoder
from headgates.lightning_modules.stage import has_empty
from headgates.models.checkpoint import load_file
from headgates.models.transformer import Transformer
from tests.lightning_modules.stages import STAGE, rows, train

PLAIN = replace(STAGE, lr=0.003, warmup_steps=3, average=0.0)
PENALISED = GateConfig(settle=0.0, lr=0.12, lambda_warmup=2)


def test_a_penalty_closes_some_heads_and_the_files_say_which(translator, data, tmp_path):
    result, module = train(translator, data, tmp_path, gates=PENALISED, stage=PLAIN)
    bank = module.gate_bank
    assert bank.open().count() < 21
    assert result.stopped is None
    content = load_file(tmp_path / "best.pt")  # weights_only=True
    assert {name.split(".")[0] for name in content["gates"]} == {"head_gates"}
    assert not any(name.startswith("head_gates") for name in content["model"])
    logged = rows(tmp_path)
    objective = [float(row["val/objective"]) for row in logged if row["val/objective"]]
    assert len(objective) == 3
    assert content["epoch"] == result.best_epoch == int(np.argmin(objective))
    assert objective[-1] > float(logged[-1]["val/loss"])
    looked = [row for row in logged if row["gates/open_heads"]]
    for row in looked:
        for of_kind, whole in (("gates/open_", "gates/open_heads"), ("gates/expected_", "gates/penalty")):
            kinds = sum(float(row[f"{of_kind}{kind}"]) for kind in ("enc-self", "dec-self", "cross"))
            assert kinds == pytest.approx(float(row[whole]), rel=1e-5)
    with np.load(tmp_path / "gates_history.npz") as history:
        steps, log_alpha, heads = history["steps"], history["log_alpha"], history["heads"]
    assert steps.tolist() == list(range(0, 3 * data.sampler().steps + 1, 20))
    assert log_alpha.shape == (len(steps), 21)
    assert (log_alpha[0] == 2.5).all()
    assert (log_alpha[-1] != 2.5).all()
    assert heads.tolist() == [f"{site.name}.{head}" for site in bank.sites for head in range(7)]


@pytest.mark.filterwarnings("ignore::UserWarning:torchmetrics")
def test_a_collapse_stops_the_stage_and_says_what_to_change(translator, data, tmp_path):
    gates = GateConfig(settle=0.0, lr=1.0, lambda_warmup=0)
    message = r"all 21 gated heads are closed at step \d+: lambda 50 is too large .* lower lambda"
    with pytest.warns(UserWarning, match=message):
        result, module = train(
            translator,
            data,
            tmp_path,
            gates=gates,
            budget=LambdaBudget(50.0, 0),
            stage=replace(PLAIN, epochs=31),
        )
    assert result.stopped.startswith("all 21 gated heads are closed")
    assert result.epochs < 31
    assert module.gate_bank.open().count() == 0


def test_a_stall_is_said_once_and_does_not_stop_the_stage(translator, data, tmp_path):
    still = GateConfig(settle=0.0, lr=1e-7, lambda_warmup=0)
    how = {"budget": LambdaBudget(0.01, 0), "stage": replace(PLAIN, epochs=5), "watch_patience": 11}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result, _ = train(translator, data, tmp_path, gates=still, **how)
    (stall,) = (str(each.message) for each in caught if "no gate has moved" in str(each.message))
    assert "raise the gates' learning rate" in stall
    assert result.epochs == 5


def test_a_frozen_decoder_leaves_encoder_source_embeddings_and_gates_to_train(data, tmp_path, translator):
    size = len(translator.source_vocab)
    layers = {"heads": 7, "encoder_layers": 1, "decoder_layers": 1}
    config = ModelConfig(d_model=14, ffn=23, embeddings="separate", positions="learned", **layers)
    translator.model = model = Transformer(config, size, size)
    freeze_decoder(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    _, module = train(translator, data, tmp_path, gates=PENALISED, stage=replace(PLAIN, epochs=1))
    trained = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    state = module.model.state_dict()
    moved = {name.split(".")[0] for name in before if not torch.equal(state[name], before[name])}
    assert moved == {"encoder", "source_embedding", "source_positions"}
    assert trained == moved | {"head_gates"}


def test_gates_that_settle_stand_still_at_0_or_1_and_the_result_is_of_their_time(translator, data, tmp_path):
    gates, stage = replace(PENALISED, settle=0.4), replace(PLAIN, epochs=5)
    result, module = train(translator, data, tmp_path, gates=gates, stage=stage)
    assert result.best_epoch >= 3
    last = load_file(tmp_path / "last.pt")
    (state,) = (state for state in last["callbacks"].values() if "eligible_losses" in state)
    assert state["eligible_losses"] == pytest.approx(result.losses[3:], abs=1e-4)
    assert result.converged is None  # epochs under the noise of gates say nothing about it
    module.gate_bank.train()
    for site, gate in module.gate_bank.items():
        assert torch.equal(gate(), gate.decision().float())
        kept = [
            value for name, value in last["state_dict"].items() if name.endswith(f"{site.name}.log_alpha")
        ]
        assert not kept or torch.equal(kept[0], gate.log_alpha)  # of the best epoch and of the last


def test_the_history_has_a_number_for_each_head_also_where_several_share_a_gate(tmp_path):
    torch.manual_seed(0)
    sizes = dict(vocab_size=31, hidden_size=16, num_hidden_layers=1, intermediate_size=16)
    config = transformers.LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=2)
    bank = attach(transformers.LlamaForCausalLM(config), heads=4)
    history = GateHistory(tmp_path / "gates_history.npz")
    history.add(bank, 0)
    history.write(bank)
    with np.load(tmp_path / "gates_history.npz") as found:
        assert found["log_alpha"].shape == (1, len(found["heads"])) == (1, 8)


def test_a_stage_after_a_removal_looks_for_parameters_of_a_site_without_heads(make_model):
    model = make_model()
    assert not has_empty(model)
    first, *_ = find_sites(model)
    remove(model, HeadMap({first: torch.ones(first.heads).bool()}))
    assert has_empty(model)
