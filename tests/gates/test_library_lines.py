"""README.md's library lines, as typed, on a BERT, a GPT-2 and a Llama, where a whole layer closes."""

import pytest
import torch

from headgates.gates import attach, find_sites, load_pruned, remove, save_pruned
from tests.gates.families import BY_NAME


@pytest.mark.parametrize(("name", "left"), [("BERT", [2, 1]), ("GPT-2", [2, 1]), ("Llama", [4, 2])])
def test_the_lines_of_the_readme_run_where_a_layer_loses_all_its_heads(name, left, tmp_path):
    model, ids = BY_NAME[name].model(), torch.randint(3, 31, (3, 7))
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
    with pytest.warns(UserWarning, match=r"a head stays at \w+\.1\.\w+-self .*, which cannot run without"):
        remove(model, bank.closed())
    torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)
    save_pruned(model, tmp_path / "pruned")
    loaded = load_pruned(tmp_path / "pruned")
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert [site.heads for site in find_sites(loaded)] == left
