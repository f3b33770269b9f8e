"""Training here is bit by bit repeatable."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_number_of_threads() -> None:
    """Sums are the same on every machine only with the same number of threads."""
    torch.set_num_threads(1)
