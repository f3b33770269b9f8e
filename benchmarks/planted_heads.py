"""Attention heads that are set by hand, so that what each does is known.

Position and token are one-hot parts of the residual vector, and each head writes into a part of its own. A
layer norm then only scales: every row that reads a vector is made to sum to 0 (at a coordinate that is always
0), so that it does not see the mean that the norm takes off. A large ballast in every vector, beside which
what heads write hardly counts, makes all vectors about as long. Letters: D model width.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn


class Stream:
    """The residual vector: named parts, and a last coordinate that is always 0."""

    def __init__(self, parts: Mapping[str, int], d_model: int, width: int, *, ballast: float, ones: int):
        """parts: name -> coordinates; one is `ballast`, of 2. width: of a head. ballast: its size. ones: how
        many ones a vector has beside it, about."""
        assert sum(parts.values()) < d_model
        self.parts, self.d_model, self.width, self.ballast = dict(parts), d_model, width, ballast
        self.first = dict(zip(parts, accumulate([0, *parts.values()]), strict=False))
        self.empty = d_model - 1
        self.factor = (d_model / (2 * ballast**2 + ones)) ** 0.5  # by which a layer norm scales

    def at(self, part: str) -> slice:
        return slice(self.first[part], self.first[part] + self.parts[part])

    def set_rows(self, linear: nn.Linear, start: int, rows: Tensor) -> None:
        """Put `rows` (n, D) into the weight from row `start` on, made to sum to 0."""
        rows[:, self.empty] -= rows.sum(1)
        linear.weight[start : start + len(rows)] = rows

    def embed(self, embedding: nn.Embedding, tokens: Tensor, part: str) -> None:
        """Each token's one in the part, at the place that `tokens` (V,) says; none below 0. Embeddings are
        scaled by sqrt(D)."""
        known = tokens >= 0
        embedding.weight[known, self.first[part] + tokens[known]] = self.d_model**-0.5
        ballast = torch.tensor([self.ballast, -self.ballast])
        embedding.weight[:, self.at("ballast")] = ballast * self.d_model**-0.5

    def look_at(self, attention: Any, head: int, key_of: Sequence[int], sharp: float) -> None:
        """From query position i to key position key_of[i]; all alike where there is no such key. sharp: what
        the query has in the place of a one."""
        positions = self.parts["position"]
        query, key = torch.zeros(positions, self.d_model), torch.zeros(positions, self.d_model)
        key[:, self.at("position")] = torch.eye(positions)
        for i, j in enumerate(key_of):
            if 0 <= j < positions:
                query[j, self.first["position"] + i] = sharp
        self.set_rows(attention.q_proj, head * self.width, query)
        self.set_rows(attention.k_proj, head * self.width, key)

    def write(
        self,
        attention: Any,
        head: int,
        parts: Mapping[str, str],
        scale: float = 1.0,
        known: Tensor | None = None,
    ) -> None:
        """The head carries these parts of its keys' vectors, as they were before the layer norm, to these
        parts of its queries', `scale` times. known: bool, the coordinates that it carries, all unless
        named."""
        start = head * self.width
        for read, written in parts.items():
            size = self.parts[read]
            carried = torch.eye(size) if known is None else known.float().diag()
            rows = torch.zeros(size, self.d_model)
            rows[:, self.at(read)] = carried
            self.set_rows(attention.v_proj, start, rows)
            columns = slice(start, start + size)
            attention.out_proj.weight[self.at(written), columns] = scale * torch.eye(size) / self.factor
            start += size
