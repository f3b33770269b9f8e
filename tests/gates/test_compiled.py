"""Gated models under torch.compile: they say and learn what they do without it, in evaluation and in
training, for each way to hold."""

import pytest
import torch

from headgates.gates import attach
from tests.gates.families import BY_NAME


@pytest.mark.parametrize("name", ["our own Transformer", "BERT", "Llama", "torch.nn.TransformerEncoder"])
def test_a_compiled_model_gives_and_learns_the_same(name):
    family = BY_NAME[name]
    model, batch = family.model(), family.batch(2)
    bank = attach(model, log_alpha=0.5, beta=5.0)
    compiled = torch.compile(
        model, backend="eager"
    )  # traced and guarded as for any backend, without generating code
    try:
        torch.testing.assert_close(family.output(compiled, batch), family.output(model, batch))
        model.train()
        gradients = []
        for runner in (model, compiled):
            torch.manual_seed(7)
            for _ in range(2):  # the second step has a draw and gradients to meet
                bank.zero_grad()
                (family.output(runner, batch).square().mean() + 0.01 * bank.penalty()).backward()
            gradients.append([gate.log_alpha.grad.clone() for _, gate in bank.items()])
        torch.testing.assert_close(*gradients)
    finally:
        torch.compiler.reset()
