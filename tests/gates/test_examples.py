"""The worked examples run: a loop of one's own and Hugging Face's Trainer; and gates learn in two processes
at once."""

import gzip
from pathlib import Path

import pytest
import torch

from headgates.gates import find_sites, load_pruned, save_pruned
from tests.worlds.ranks import Command

pytest.importorskip("transformers", reason="the examples need the extra hf")
ROOT = Path(__file__).resolve().parents[2]

SHORT = pytest.mark.filterwarnings(  # a training of some steps leaves gates between 0 and 1
    "ignore:training ended after", "ignore:.*a head stays", "ignore:.*gates that close"
)

# In two processes: gradients of weights and gates are the mean of both, though each process draws its own
# noise and has its own batch.
DISTRIBUTED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from examples.huggingface_loop import make_batch, make_model
from headgates.gates import attach

dist.init_process_group("gloo")
torch.manual_seed(0)
model = make_model().train()
bank = attach(model, gate="l0", log_alpha=0.5, beta=5.0)
runner = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(bank.param_groups(lr=3e-3))
torch.manual_seed(dist.get_rank() + 1)
for step in range(2):
    optimizer.zero_grad()
    (runner(**make_batch(3)).loss + 0.01 * bank.penalty()).backward()
    noise = torch.cat([gate.samples * torch.ones(1) for _, gate in bank.items()])
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert not parameter.requires_grad, name
            continue
        both = [torch.empty_like(parameter.grad) for _ in range(2)]
        dist.all_gather(both, parameter.grad)
        assert torch.equal(*both), name
        assert "log_alpha" not in name or (parameter.grad != 0).all(), name
    optimizer.step()
both = [torch.empty(1) for _ in range(2)]
dist.all_gather(both, torch.rand(1))
assert not torch.equal(*both)  # the processes have noise of their own
dist.destroy_process_group()
print("the same gates")
"""


def test_a_loop_of_one_s_own_saves_a_smaller_model(tmp_path, capsys):
    from examples.huggingface_loop import make_batch, make_model, train

    torch.manual_seed(0)
    model = train(steps=9, lam=0.3)  # enough to close some
    again = load_pruned(save_pruned(model, tmp_path / "pruned"))
    batch = make_batch(3)
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    assert "heads open" in capsys.readouterr().out
    assert sum(site.heads for site in find_sites(again)) <= sum(
        site.heads for site in find_sites(make_model())
    )


@SHORT
def test_the_trainer_trains_gates_and_saves_a_smaller_model(tmp_path):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    from examples.huggingface_trainer import train

    torch.manual_seed(0)
    model = load_pruned(train(tmp_path, steps=5, heads=23))
    assert sum(site.heads for site in find_sites(model)) == 23


@SHORT
def test_a_sentence_encoder_learns_labels_and_is_saved_without_its_closed_heads(tmp_path):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from examples.sst2 import train

    words = ["good", "bad", "film", "plot"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    vocab = {name: number for number, name in enumerate(names)}
    BertTokenizerFast(vocab=vocab).save_pretrained(tmp_path / "base")
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 14}
    BertModel(BertConfig(vocab_size=len(names), **sizes)).save_pretrained(tmp_path / "base")
    lines = [f"{label}\t{word} {what}" for label, word in enumerate(("bad", "good")) for what in words]
    for part in ("train", "dev"):
        (tmp_path / f"{part}.tsv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = train(str(tmp_path), str(tmp_path / "run"), str(tmp_path / "base"), heads=5)
    assert 0 <= found["eval_accuracy"] <= 1
    assert sum(site.heads for site in find_sites(load_pruned(tmp_path / "run/pruned"))) == 5


def test_two_processes_learn_the_same_gates(tmp_path):
    script = tmp_path / "distributed.py"
    script.write_text(DISTRIBUTED, encoding="utf-8")
    for code, out, errors in Command([str(script)], tmp_path / "said", ranks=2).end():
        assert code == 0, errors[-3000:]
        assert out.splitlines()[-1] == "the same gates"
