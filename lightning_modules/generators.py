"""The states of the random generators that a training step may draw from, as plain values and tensors that a
checkpoint can hold."""

import random
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Let every generator begin from a seed; numpy's from its last 32 bits."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_states(device: torch.device) -> dict[str, Any]:
    """The states of Python's, numpy's and torch's generators, and of the device's own where it has one."""
    name, keys, *rest = np.random.get_state()
    numpy = (name, [int(key) for key in keys], *rest)
    states = {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_generator_states(states: dict[str, Any], device: torch.device) -> None:
    """Let every generator draw next what it would have drawn when `generator_states` was called. A device
    that the states do not know keeps its own: a run may go on elsewhere, if not bit by bit."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
