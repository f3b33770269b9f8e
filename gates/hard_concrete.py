"""Hard Concrete gates.   Louizos et al. 2018 (arXiv:1712.01312); on attention heads: Voita et al. 2019
(arXiv:1905.09418).

Pure functions of (log_alpha, u) first, then the module that holds log_alpha. Our names are the papers':
log_alpha, beta (temperature),
gamma and zeta (the stretched interval), u (uniform noise), s, s_bar; xi is their z or g.   Letters: H heads.
"""

import math

import torch
from torch import Tensor, nn

from .base import HeadGate, as_row

_U_MIN = 1e-6  # keeps logit(u) finite


def sample_gate(log_alpha: Tensor, u: Tensor, *, beta: float, gamma: float, zeta: float) -> Tensor:
    """xi in [0, 1] from noise u ~ U(0, 1), shape of log_alpha.

    Louizos eqs. 10-11: s = sigmoid((logit(u) + log_alpha) / beta), s_bar = s (zeta - gamma) + gamma, xi =
    clip(s_bar, 0, 1)."""
    s = torch.sigmoid((torch.logit(u) + log_alpha) / beta)
    return (s * (zeta - gamma) + gamma).clamp(0, 1)


def test_gate(log_alpha: Tensor, *, gamma: float, zeta: float) -> Tensor:
    """xi in [0, 1] at test time: clip(sigmoid(log_alpha) (zeta - gamma) + gamma, 0, 1) (Louizos eq. 13,
    without the temperature).

    With -0.1 and 1.1 it is exactly 0 up to log_alpha = -2.398 and exactly 1 from 2.398."""
    return (torch.sigmoid(log_alpha) * (zeta - gamma) + gamma).clamp(0, 1)


test_gate.__test__ = False  # type: ignore[attr-defined]  # not a test, whatever its name says to pytest


def open_prob(log_alpha: Tensor, *, beta: float, gamma: float, zeta: float) -> Tensor:
    """P(xi > 0) per head, in (0, 1): sigmoid(log_alpha - beta log(-gamma / zeta)) (Louizos eq. 12).

    Summed over heads it is the expected number of open heads: the L0 penalty, in heads."""
    return torch.sigmoid(log_alpha - beta * math.log(-gamma / zeta))


def full_prob(log_alpha: Tensor, *, beta: float, gamma: float, zeta: float) -> Tensor:
    """P(xi = 1) per head, in (0, 1): sigmoid(log_alpha - beta log((1 - gamma) / (zeta - 1)))."""
    return torch.sigmoid(log_alpha - beta * math.log((1 - gamma) / (zeta - 1)))


class HardConcrete(HeadGate):
    """Learned gates of one site, one `log_alpha` (H,) in float32.

    Gates start open: from log_alpha = 2.4 the test gate is exactly 1, so a converged model is not disturbed
    (the papers' code starts near 0, where every head is halved at step 0)."""

    learned = "log_alpha"

    def __init__(
        self,
        heads: int,
        log_alpha: float | Tensor = 2.5,
        beta: float = 0.33,
        gamma: float = -0.1,
        zeta: float = 1.1,
        target_heads: int | None = None,
    ):
        """log_alpha: where the gates start, a number or (H,). target_heads: how many of all peers stay open,
        None where the penalty decides."""
        super().__init__(heads)
        if not gamma < 0 < 1 < zeta:
            raise ValueError(
                f"need gamma < 0 < 1 < zeta, got {gamma=}, {zeta=}: otherwise xi cannot be exactly 0 and 1; "
                "Louizos et al. use -0.1, 1.1"
            )
        if not beta > 0:
            raise ValueError(
                f"need a temperature beta > 0, got {beta=}; Louizos et al. use 2/3, Voita et al. 0.33"
            )
        self.beta, self.gamma, self.zeta, self.target_heads = beta, gamma, zeta, target_heads
        self.log_alpha = nn.Parameter(as_row(log_alpha, heads))

    def sample(self) -> Tensor:
        """xi (H,) in [0, 1] with fresh noise."""
        # fp32 whatever autocast says: in bf16 u rounds to 1 and logit(u) is infinite
        with torch.autocast(self.log_alpha.device.type, enabled=False):
            u = torch.rand_like(self.log_alpha, dtype=torch.float32).clamp(_U_MIN, 1 - _U_MIN)
            return sample_gate(self.log_alpha.float(), u, beta=self.beta, gamma=self.gamma, zeta=self.zeta)

    def test_value(self) -> Tensor:
        return test_gate(self.log_alpha.float(), gamma=self.gamma, zeta=self.zeta)

    def open_prob(self) -> Tensor:
        return open_prob(self.log_alpha.float(), beta=self.beta, gamma=self.gamma, zeta=self.zeta)

    def full_prob(self) -> Tensor:
        """P(xi = 1), (H,)."""
        return full_prob(self.log_alpha.float(), beta=self.beta, gamma=self.gamma, zeta=self.zeta)

    def decision(self) -> Tensor:
        """P(xi = 1) against P(xi = 0) (Voita et al., footnote 7), which for a symmetric stretch is log_alpha
        > 0; with `target_heads` the largest log_alpha of all peers."""
        if self.target_heads is not None:
            return self.is_among_highest(self.target_heads)
        return self.full_prob() > 1 - self.open_prob()
