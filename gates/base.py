"""What every gate is: a module that gives xi, the factor on each head's output.   Letters: B batch, H heads, L query positions."""

import torch
from torch import Tensor, nn


class HeadGate(nn.Module):
    """A gate on the H heads of one site.

    xi: Michel's name for the factor; Louizos writes z, Voita g; z here is a head's output.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, rows: Tensor | None = None, span: tuple[int, int] | None = None) -> Tensor:
        """xi, of shape (H,), (B, H) or (B, H, L).

        A gate that differs by sentence is asked for `rows` (N,), the sentence of each row of the batch (beams of one sentence share its
        gate); one that differs by position for those of `span` (start, length). Gates of shape (H,) need none of it."""
        raise NotImplementedError(f"{type(self).__name__} must say what xi is")

    def test_value(self) -> Tensor:
        """xi at test time, (H,), in [0, 1], without noise."""
        raise NotImplementedError(f"{type(self).__name__} must say what xi is at test time")

    def open_prob(self) -> Tensor:
        """P(xi > 0), (H,)."""
        return (self.test_value() > 0).float()

    def penalty(self) -> Tensor:
        """Expected number of open heads, a scalar in [0, H]."""
        return self.open_prob().sum()

    def decision(self) -> Tensor:
        """True where the head stays when the gate is made exactly 0 or 1, (H,) bool."""
        return self.test_value() > 0.5

    def numbers(self) -> dict[str, Tensor]:
        """What `gates.json` holds of this gate, each (H,)."""
        with torch.no_grad():
            return {"open_prob": self.open_prob(), "value": self.test_value(), "open": self.decision()}
