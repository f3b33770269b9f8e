"""The SSRU against its equations, one position after the other, and a decoder of them step by step against
whole sequences."""

import pytest
import torch

from headgates.models.ssru import SSRU, decays
from tests.worlds.small_model import stirred

B, L, D = 3, 7, 5


@pytest.fixture
def unit() -> SSRU:
    torch.manual_seed(1)
    return stirred(SSRU(D), 0.5)


def by_the_equations(unit: SSRU, x: torch.Tensor) -> torch.Tensor:
    """c (L, D) of one sequence x (L, D)."""
    c, states = torch.zeros(D), []
    for x_t in x:
        f = 1 / (1 + (-(unit.forget.weight @ x_t + unit.forget.bias)).exp())
        c = f * c + (1 - f) * (unit.update.weight @ x_t)
        states.append(c)
    return torch.stack(states)


@torch.no_grad()
def test_it_is_its_equations(unit):
    x = torch.randn(B, L, D)
    keys, values = unit.keys_values(x)
    assert (keys.shape, values.shape) == ((B, 1, L, D), (B, 1, L, 0))
    for row, states in zip(x, keys[:, 0], strict=True):
        torch.testing.assert_close(states, by_the_equations(unit, row))
    torch.testing.assert_close(unit(x, keys, values), keys[:, 0].clamp(min=0))


@torch.no_grad()
def test_a_state_is_the_sum_that_its_decays_say(unit):
    x = 30 * torch.randn(B, L, D)  # gates so far to 0 and 1 that a product of them underflows
    forget = unit.forget(x)
    left = decays(torch.nn.functional.logsigmoid(forget))
    states = torch.einsum("btsd,bsd->btd", left, torch.sigmoid(-forget) * unit.update(x))
    torch.testing.assert_close(states, unit.keys_values(x)[0][:, 0], rtol=1e-4, atol=1e-4)
    assert not left.transpose(1, 2).tril(-1).transpose(1, 2)[:, 0, 1:].any()
