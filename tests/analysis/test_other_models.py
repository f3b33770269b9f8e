"""Scores of models that are not ours, whose batches are mappings; and ring 1 with torch alone."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from headgates.analysis.batches import batch_loss, query_tokens, sampled_targets
from headgates.analysis.lrp import relevance
from headgates.analysis.scores.fisher import fisher
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import importance
from headgates.analysis.scores.obs import obs
from headgates.gates import attach, detach, find_sites

transformers = pytest.importorskip("transformers")
LENGTHS = (7, 5, 3)
SIZES = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 11,
    "vocab_size": 31,
}


def bert(kind: str = "BertForMaskedLM"):
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES))


def gpt2():
    config = transformers.GPT2Config(n_embd=20, n_layer=2, n_head=5, vocab_size=31, n_positions=16)
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        d_model=20, d_kv=4, d_ff=11, num_layers=2, num_heads=5, vocab_size=31, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, 31, (3, 7))
    mask = (torch.arange(7) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.mark.parametrize("make", [bert, gpt2, t5])
def test_every_score_takes_a_model_with_batches_as_mappings(make, batch):
    torch.manual_seed(0)
    model = make()
    sites = list(find_sites(model))
    for score in (importance, fisher, fluctuation, obs):
        found = score(model, [batch])
        assert list(found) == sites
        assert torch.isfinite(found.flat()).all()
        assert len(found.flat().unique()) > 1
    assert all(float(row.sum()) == pytest.approx(1) for row in relevance(model, [batch]).share.values())


def test_importance_of_a_causal_model_is_that_of_its_sentences_one_by_one(batch):
    torch.manual_seed(0)
    model = gpt2().eval()
    found, total = importance(model, [batch]), torch.zeros(5)
    for ids, length in zip(batch["input_ids"], LENGTHS, strict=True):
        bank = attach(model, gate="mask")
        gate, xi = next(iter(bank.gates.values())), torch.ones(5, requires_grad=True)
        gate.forward = lambda xi=xi: xi
        logits = model(input_ids=ids[None, :length]).logits[0]
        loss = F.cross_entropy(logits[:-1], ids[1:length], reduction="sum")
        total += torch.autograd.grad(loss, xi)[0].abs() / len(LENGTHS)
        detach(model)
    torch.testing.assert_close(next(iter(found.values())).float(), total, rtol=1e-4, atol=1e-7)


def test_the_loss_of_a_batch_is_a_sum_over_its_labels(batch):
    classes = {**batch, "labels": torch.tensor([0, 1, 1])}
    model = bert("BertForSequenceClassification").eval()
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = F.cross_entropy(logits, classes["labels"], reduction="sum")
    torch.testing.assert_close(batch_loss(model, classes), expected)


def test_sampled_labels_stand_where_a_causal_model_predicts_them(batch):
    model = gpt2().eval()  # made to predict the token that it reads
    for name, parameter in model.named_parameters():
        if "c_proj" in name or "wpe" in name:
            parameter.data.zero_()
    model.transformer.wte.weight.data = 50 * torch.eye(31, 20)
    ids = batch["input_ids"].clamp_max(19)
    found = sampled_targets(model, {**batch, "input_ids": ids}, torch.Generator().manual_seed(0))["labels"]
    real = batch["labels"] != -100
    assert torch.equal(found[:, 1:][real[:, 1:]], ids[:, :-1][real[:, 1:]])
    assert torch.equal(found == -100, ~real)


def test_positions_and_losses_that_a_batch_does_not_give_are_asked_for(batch):
    model, site = bert(), next(iter(find_sites(bert())))
    assert query_tokens(model, site, batch).sum(1).tolist() == list(LENGTHS)
    assert query_tokens(model, site, {"input_ids": batch["input_ids"]}).all()
    with pytest.raises(ValueError, match="expected attention_mask or input_ids, or give queries="):
        query_tokens(model, site, {"pixels": torch.ones(2)})
    with pytest.raises(ValueError, match="add labels to the batch, or give loss="):
        batch_loss(model, {"input_ids": batch["input_ids"]})


ALONE = """
import importlib, pkgutil, sys
class Only:
    def find_spec(self, name, path=None, target=None):
        room = (name.split(".") + [""])[1] if name.startswith("headgates.") else ""
        if room not in ("", "gates", "analysis") or name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Only())
import headgates.analysis, headgates.gates
for room in (headgates.gates, headgates.analysis):
    for each in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(each.name)
from headgates.analysis.significance import score
try:
    score(["a"], ["a"])
except ImportError as error:
    assert "pip install 'headgates[all]'" in str(error), error
else:
    raise AssertionError("sacrebleu is blocked")
"""


def test_gates_and_analysis_import_with_torch_alone_and_name_the_extra_that_is_missing():
    blocked = {"numpy", "scipy", "sacrebleu", "spacy", "yaml", "transformers", "pytorch_lightning", "pyarrow"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE.replace("{blocked}", repr(blocked))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
