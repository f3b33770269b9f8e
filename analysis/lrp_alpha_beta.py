"""The alpha-beta rule of LRP: the positive and the negative terms of a sum each share their own part of its
relevance.

    R_i = sum_o R_o (alpha z_oi+ / Z_o+ + beta z_oi- / Z_o-)     Bach et al. 2015 with alpha + beta = 1

Voita et al. 2021's code, in its version of June 2021 (the-story-of-heads, lib/layers/lrp.py), has alpha =
beta = 1/2: relevance then never turns negative. Where we differ from it, so that every sum is conserved by
itself and the rule is linear in R:
    - a sum whose terms have one sign gives all to them; there, half was lost and all relevances of a sentence
      were scaled up afterwards
    - a bias is one more term and keeps its share; there, it was spread evenly over the inputs
    - a layer norm hands each number's relevance on (as in that code's first version, and in AttnLRP, Achtibat
      et al. 2024); there, the full Jacobian was used, under which the positive and the negative terms cancel
      (y does not change when x is scaled): the rule cannot see that, and spreads the relevance of one number
      over all
    - attention weights are constant (that code's option consider_attn_constant): nothing goes to queries and
      keys
Letters as in lrp_rules.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headgates.analysis.lrp_rules import Account, Back, BackTwo, Rule, booked, to_keys, way_back


@dataclass(frozen=True)
class AlphaBeta(Rule):
    """beta is 1 - alpha. No eps: a part of Z+ or Z- is between 0 and 1 whatever they are."""

    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(
                f"the alpha-beta rule needs alpha in [0, 1] (beta is 1 - alpha), got {self.alpha}"
            )

    def sides(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """alpha / Z+ and beta / Z-, 0 for a side without terms (then the other has all), and 1 where neither
        has any."""
        tiny = torch.finfo(plus.dtype).tiny ** 0.5
        some, other = plus > tiny, minus < -tiny
        p = torch.where(some, torch.where(other, self.alpha / plus, 1 / plus), 0.0)
        q = torch.where(other, torch.where(some, (1 - self.alpha) / minus, 1 / minus), 0.0)
        return p, q, (~(some | other)).to(plus)

    def top(self, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Back:
        (plus, minus), (b_plus, b_minus) = signs(x * weight), signs(bias)
        p, q, none = self.sides(plus.sum(-1) + b_plus, minus.sum(-1) + b_minus)
        part = p.unsqueeze(-1) * plus + q.unsqueeze(-1) * minus  # (B, L, D)
        return way_back(lambda R: R.unsqueeze(-1) * part, lost=none, bias=p * b_plus + q * b_minus)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Back:
        (x_plus, x_minus), (w_plus, w_minus), (b_plus, b_minus) = signs(x), signs(weight), signs(bias)
        plus, minus = x_plus @ w_plus.T + b_plus, x_plus @ w_minus.T + b_minus
        negative = bool(x_minus.any())  # not after ReLU, where half of the work is then saved
        if negative:
            plus, minus = plus.add_(x_minus @ w_minus.T), minus.add_(x_minus @ w_plus.T)
        p, q, none = self.sides(plus, minus)

        def back(R: Tensor, account: Account) -> Tensor:
            account.eps += booked(R, none)
            r_plus, r_minus = R * p, R * q  # (C, B, L, O)
            account.biases += (r_plus @ b_plus + r_minus @ b_minus).sum(2)
            R_x = (
                (r_plus @ w_plus).add_(r_minus @ w_minus).mul_(x_plus)
            )  # W+ x+ is a term of Z+, W- x+ one of Z-
            if negative:
                R_x += (r_plus @ w_minus).add_(r_minus @ w_plus).mul_(x_minus)
            return R_x

        return back

    def mix(self, weights: Tensor, v: Tensor, z: Tensor) -> Back:
        v_plus, v_minus = signs(v)
        p, q, none = self.sides(weights @ v_plus, weights @ v_minus)
        return way_back(
            lambda R: to_keys(weights, R * p).mul_(v_plus).add_(to_keys(weights, R * q).mul_(v_minus)),
            lost=none,
        )

    def add(self, x: Tensor, y: Tensor) -> BackTwo:
        (x_plus, x_minus), (y_plus, y_minus) = signs(x), signs(y)
        p, q, none = self.sides(x_plus + y_plus, x_minus + y_minus)
        part_x, part_y = p * x_plus + q * x_minus, p * y_plus + q * y_minus
        return way_back(lambda R: (R * part_x, R * part_y), lost=none)


def signs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(x, 0) and min(x, 0)."""
    return x.clamp(min=0), x.clamp(max=0)
