"""README.md's library lines, as typed, on a BERT, a GPT-2 and a Llama, where a whole layer closes."""

import pytest
import torch

from headgates.gates import attach, find_sites, load_pruned, remove, save_pruned

transformers = pytest.importorskip("transformers")


def bert() -> torch.nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=20, num_hidden_layers=2, num_attention_heads=5, intermediate_size=11, vocab_size=31
        )
    )


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=20, n_layer=2, n_head=5, vocab_size=31, n_positions=16)
    )


def llama() -> torch.nn.Module:  # two heads to a key head
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=3,
            intermediate_size=11,
            vocab_size=31,
        )
    )


@pytest.mark.parametrize("given", ["closed", "bank"])
@pytest.mark.parametrize("make", [bert, gpt2, llama])
def test_the_lines_of_the_readme_run_where_a_layer_loses_all_its_heads(make, given, tmp_path):
    torch.manual_seed(0)
    model, ids = make(), torch.randint(3, 31, (3, 7))
    bank = attach(model, gate="l0")
    optimizer = torch.optim.AdamW(bank.param_groups(lr=3e-5))
    loss = model(input_ids=ids, labels=ids).loss
    loss = loss + 0.01 * bank.penalty()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for site, gate in bank.items():
            gate.log_alpha[:] = -9.0 if site.layer == 1 else 9.0
            gate.log_alpha[1] = -9.0
    expected = model.eval()(input_ids=ids).logits
    with pytest.warns(
        UserWarning, match=r"a head stays at \w+\.1\.\w+-self .*, which cannot run without any"
    ):
        remove(model, bank.closed() if given == "closed" else bank)
    torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-6)
    heads = [site.heads for site in find_sites(model)]
    assert heads == ([4, 2] if make is llama else [4, 1])
    save_pruned(model, tmp_path / "pruned")
    loaded = load_pruned(tmp_path / "pruned")
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert [site.heads for site in find_sites(loaded)] == heads
