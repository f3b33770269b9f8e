"""Gates that keep exactly K heads open, in every sample and at test time: differentiable subset pruning,
Li et al. 2021 (arXiv:2108.04657).

Sampling adds Gumbel noise to one score a head, over all sites together, and opens the K highest: a sample of
K heads without replacement. The gradient is that of a soft top-K at a temperature that falls. Theirs adds up
K softmaxes, which can put more than 1 on a head and underflow at low temperatures; here it is a projection on
the hull of all K-subsets (Amos et al. 2019, arXiv:1906.08707): each gate in [0, 1], their sum K, by a
threshold found by bisection.   Letters: N heads of all sites, K open ones.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import HeadGate, as_row, hard_top_k

_BISECTIONS = 60  # halvings of the interval that holds the threshold: below what float64 can tell


def soft_top_k(scores: Tensor, k: int, temperature: float) -> Tensor:
    """x (N,) in [0, 1] with sum k: x = sigmoid((scores - tau) / temperature), tau such that they add up; N
    scores, 0 <= k <= N.

    The gradient is exact: dx_i / dscore_j = (s_i 1[i = j] - s_i s_j / sum s) / temperature with s = x (1 -
    x), and finite at any temperature above 0, as the weights s_j / sum s are formed from logarithms."""
    n = len(scores)
    if k in (0, n):
        return scores * 0 + float(k > 0)
    with torch.no_grad():
        margin = temperature * math.log(k / (n - k))
        low, high = scores.min() - margin, scores.max() - margin
        for _ in range(_BISECTIONS):
            tau = (low + high) / 2
            too_many = torch.sigmoid((scores - tau) / temperature).sum() > k
            low, high = torch.where(too_many, tau, low), torch.where(too_many, high, tau)
        tau = high  # the side on which no more than k are open: between two scores, and on neither of them
        z = (scores - tau) / temperature
        weights = torch.softmax(F.logsigmoid(z) + F.logsigmoid(-z), 0)
    tau = (
        tau + (weights * (scores - scores.detach())).sum()
    )  # its value is tau's, its gradient that of the implicit function
    return torch.sigmoid((scores - tau) / temperature)


class Subset(HeadGate):
    """Learned gates of one site, one `score` (H,) in float32; `target_heads` of all peers are open.

    The temperature falls log-linearly from the first sample to sample `anneal_steps`; the buffer
    `sampled_steps` keeps count in checkpoints."""

    learned = "score"
    keeps_target = True
    sampled_steps: Tensor

    def __init__(
        self,
        heads: int,
        target_heads: int | None = None,
        score: float | Tensor = 0.0,
        temperature: float = 1.0,
        final_temperature: float = 0.1,
        anneal_steps: int = 100,
    ):
        """target_heads: None for all. score: where the gates start, a number or (H,); noise has a standard
        deviation of 1.28.

        Raises ValueError unless both temperatures are above 0 and anneal_steps is at least 0."""
        super().__init__(heads)
        if not (temperature > 0 and final_temperature > 0 and anneal_steps >= 0):
            raise ValueError(
                f"expected temperatures above 0 and at least 0 steps, got {temperature=}, "
                f"{final_temperature=}, {anneal_steps=}"
            )
        self.target_heads, self.anneal_steps = target_heads, anneal_steps
        self.first_temperature, self.final_temperature = temperature, final_temperature
        self.score = nn.Parameter(as_row(score, heads))
        self.register_buffer("sampled_steps", torch.zeros((), dtype=torch.long))

    @property
    def k(self) -> int:
        """Open heads of all peers."""
        return sum(peer.heads for peer in self.peers) if self.target_heads is None else self.target_heads

    @property
    def temperature(self) -> float:
        """Of the next sample."""
        done = min(1.0, int(self.sampled_steps) / self.anneal_steps) if self.anneal_steps else 1.0
        return self.first_temperature * (self.final_temperature / self.first_temperature) ** done

    @classmethod
    def sample_peers(cls, gates: Sequence[HeadGate]) -> list[Tensor]:
        """xi of every gate, (H,) each, exactly 0 or 1: one sample of K heads over all of them."""
        own = [gate for gate in gates if isinstance(gate, Subset)]
        scores = torch.cat([gate.score for gate in own]).double()
        u = torch.rand_like(scores).clamp(1e-12, 1 - 1e-12)
        noisy = scores - (-u.log()).log()
        soft = soft_top_k(noisy, own[0].k, own[0].temperature)
        xi = (hard_top_k(noisy.detach(), own[0].k) + (soft - soft.detach())).float()  # straight through
        return list(xi.split([gate.heads for gate in own]))

    def count(self, steps: int) -> None:
        super().count(steps)
        self.sampled_steps += steps

    def test_value(self) -> Tensor:
        return self.is_among_highest(self.k).float()
