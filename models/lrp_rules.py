"""The ratio rule of layer-wise relevance propagation (LRP): how the relevance of a sum goes to its terms.
Ding et al. 2017; Voita et al. 2019 (arXiv:1905.09418), appendix A.

With the attention weights and the scales of the layer norms held constant (why: analysis/lrp.py), every step
of a Transformer is, for each number y of its output, a sum y = sum_i z_i + b. A term z_i is W_oi x_i in a
projection, a_lj v_j in attention, one of the two in a residual connection. Of y's relevance R,

    R z_i / (y + eps sign(y))

goes to z_i; the bias b takes its part as a term would, and keeps it (b and eps as in Bach et al. 2015).
Functions of one number are passed by (Ding et al.): what goes to the output of ReLU, GELU or swish goes
to its input. An SSRU's forget gates are constants like attention weights, so its state is a sum over
positions, c_t = sum_s a_ts v_s for every number of it alone: attention of D heads of width 1. Letters: C rows
of seeds of a sentence (its generation steps, or one for all of them), B sentences, L positions of queries, S
of keys, I inputs, O outputs, H heads, K head width, D model width. What is carried back has the shape of the
values, with C in
front.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn


@dataclass
class Account:
    """Where the relevance of the seeds went, for every row of seeds: (C, B) float64 each; source + target +
    biases + eps = seed."""

    seed: Tensor
    source: Tensor = field(init=False)  # the source's embeddings, positions included
    target: Tensor = field(init=False)
    biases: Tensor = field(init=False)  # of projections and layer norms
    eps: Tensor = field(
        init=False
    )  # what the stabiliser took; of a sum without any term (0 = 0), all its relevance
    heads: dict[str, Tensor] = field(
        default_factory=dict
    )  # site name -> relevance of the heads' outputs (C, B, H)

    def __post_init__(self) -> None:
        self.seed = self.seed.double()
        self.source, self.target, self.biases, self.eps = (torch.zeros_like(self.seed) for _ in range(4))


Carried = TypeVar("Carried", Tensor, tuple[Tensor, Tensor])
Back = Callable[
    [Tensor, Account], Tensor
]  # what a step's output carries (C, B, ..) -> what its input carries
BackTwo = Callable[[Tensor, Account], tuple[Tensor, Tensor]]  # the same for a step with two inputs


def way_back(
    terms: Callable[[Tensor], Carried],
    *,
    factor: Tensor | None = None,
    lost: Tensor | None = None,
    bias: Tensor | None = None,
) -> Callable[[Tensor, Account], Carried]:
    """Return the way back through a sum of terms, for the relevance R (C, B, ..) of its values (B, ..).

    With s = R * factor (R where there is none), terms(s) is what the inputs carry. The account gets s * lost
    under eps, and s * bias under biases: (O,) of a sum over the last dimension's outputs (B, L, O), or (B, L)
    of one number a position."""

    def back(R: Tensor, account: Account) -> Carried:
        s = R if factor is None else R * factor
        if lost is not None:
            account.eps += booked(s, lost)
        if bias is not None:
            account.biases += (s @ bias).sum(2) if bias.dim() == 1 else booked(s, bias)
        return terms(s)

    return back


def booked(carried: Tensor, share: Tensor) -> Tensor:
    """Return the sum of carried (C, B, ..) times share (B, ..) over all dimensions but C and B."""
    return torch.einsum("cbn,bn->cb", carried.flatten(2), share.flatten(1))


def passed(carried: Tensor, account: Account) -> Tensor:
    """The identity as a way back: each number's relevance goes to the one number that it was computed
    from."""
    return carried


def to_keys(weights: Tensor, s: Tensor) -> Tensor:
    """Return the sum over queries of weights (B, H, L, S) times s (C, B, H, L, K): (C, B, H, S, K)."""
    return torch.einsum("bhls,cbhlk->cbhsk", weights, s)


def norm_scale(module: nn.LayerNorm, x: Tensor) -> Tensor:
    """Return gamma / sigma, (B, L, D)."""
    return module.weight.to(x.dtype) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + module.eps)


def minus_mean(s: Tensor) -> Tensor:
    """Take the mean over the last dimension off s, in place: the transpose of what a layer norm does to its
    input first."""
    return s.sub_(s.mean(-1, keepdim=True))


@dataclass(frozen=True)
class Ratio:
    """Each method takes the values of one step and returns the way back through it. Activations hand
    relevance on; what is carried back is the relevance itself.

    R_i = sum_o R_o z_oi / (y_o + eps sign(y_o)), with sign(0) = 1.

    As eps goes to 0 the relevance of a number becomes its gradient times itself over the logit (Ancona et al.
    2018). A layer norm is the sum that it is once sigma is constant, y_o = gamma_o / sigma
    (x_o - sum_i x_i / D) + beta_o. Handing R_o on to x_o, as the first version of Voita et al.'s later code
    did, gave heads up to 3e6
    for a seed of 1 on a trained
    model of 3 + 3 layers."""

    eps: float = 1e-5

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise ValueError(
                f"the ratio rule needs eps > 0, got {self.eps}; its limit at 0 is the gate's gradient"
            )

    def stabilised(self, y: Tensor) -> dict[str, Tensor]:
        """Return 1 / (y + eps sign(y)) as the factor of `way_back`, and eps sign(y) as what is lost."""
        lost = torch.full_like(y, self.eps).copysign_(y + 0.0)  # + 0.0 makes -0.0 the 0.0 whose sign is 1
        return {"factor": (y + lost).reciprocal_(), "lost": lost}

    def top(self, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Back:
        """y (B, L) = sum over D of x weight, (B, L, D) each, + bias (B, L): one number a position.

        The way back begins with relevance (C, B, L)."""
        return way_back(lambda s: s.unsqueeze(-1) * (x * weight), bias=bias, **self.stabilised(y))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Back:
        """y (B, L, O) = weight (O, I) x (B, L, I) + bias (O,)."""
        return way_back(lambda s: (s @ weight).mul_(x), bias=bias, **self.stabilised(y))

    def mix(self, weights: Tensor, v: Tensor, z: Tensor) -> Back:
        """z (B, H, L, K) = weights (B, H, L, S) v (B, H, S, K), weights >= 0."""
        return way_back(lambda s: to_keys(weights, s).mul_(v), **self.stabilised(z))

    def add(self, x: Tensor, y: Tensor) -> BackTwo:
        """x + y, (B, L, D) each."""
        return way_back(lambda s: (s * x, s * y), **self.stabilised(x + y))

    def norm(self, module: nn.LayerNorm, x: Tensor, y: Tensor) -> Back:
        """y = module(x), (B, L, D) each."""
        scale = norm_scale(module, x)
        return way_back(
            lambda s: minus_mean(s.mul_(scale)).mul_(x), bias=module.bias.to(x.dtype), **self.stabilised(y)
        )

    def activation(self, slope: Tensor) -> Back:
        """y = slope x, (B, L, O) each, where the slope is a function of x: ReLU, GELU, swish."""
        return passed

    def relevance(self, carried: Tensor, x: Tensor) -> Tensor:
        """The relevance of the values x, where the way back carries `carried`."""
        return carried
