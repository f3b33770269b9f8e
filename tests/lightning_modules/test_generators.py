"""Random generators go on from a checkpoint as if nothing had been."""

import random

import numpy as np
import torch

from headgates.lightning_modules.generators import generator_states, set_generator_states
from headgates.models.checkpoint import load_file, save_file

CPU = torch.device("cpu")


def draws() -> list[float]:
    return [random.gauss(0, 1), np.random.normal(), float(torch.randn(()))]


def test_every_generator_draws_what_it_would_have_drawn(tmp_path):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    draws()  # the first of a pair of normal numbers: the second is part of the state
    save_file(tmp_path / "states.pt", generator_states(CPU))
    expected = [draws() for _ in range(5)]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(4)
    set_generator_states(load_file(tmp_path / "states.pt"), CPU)
    assert [draws() for _ in range(5)] == expected
