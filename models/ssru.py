"""The SSRU, a recurrent unit in the place of a decoder's self-attention, without heads.   Kim et al. 2019
(aclanthology.org/D19-5632).

f_t = sigmoid(W_f x_t + b_f),   c_t = f_t c_{t-1} + (1 - f_t) (W x_t) with c_0 = 0,   out_t = relu(c_t)

Its state takes the place of an attention's keys, one for every position, and its values have no width: so
what keeps, copies and continues keys and values does the same for it, though a step reads the newest state
alone. Letters: B batch, D model width, L positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headgates.models.cpu_kernels import Linear


class SSRU(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        self.forget, self.update = Linear(d_model, d_model), Linear(d_model, d_model, bias=False)
        # W_f and b_f, W

    def keys_values(self, x: Tensor, newest: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states (B, 1, L, D) of x (B, L, D), and values (B, 1, L, 0). newest (B, 1, 1, D): the state
        before them, 0 unless given."""
        f, w = torch.sigmoid(self.forget(x)), self.update(x)  # (B, L, D)
        c = torch.zeros_like(w[:, 0]) if newest is None else newest[:, 0, 0]
        states = []
        # on a CPU 5 to 150 times as fast as the sum that `decays` makes of it (25 positions, D 256, with and
        # without gradients)
        for forget, new in zip(f.unbind(1), ((1 - f) * w).unbind(1), strict=True):
            c = forget * c + new
            states.append(c)
        keys = torch.stack(states, 1)[:, None]
        return keys, keys[..., :0]

    def forward(self, x: Tensor, keys: Tensor, *_: object, **__: object) -> Tensor:
        """relu of the last L states (B, L, D). What an attention gets besides is not needed."""
        return F.relu(keys[:, 0, -x.shape[1] :])


def decays(log_f: Tensor) -> Tensor:
    """What is left of position s at position t, f_{s+1} ... f_t: (B, L, L, D) of log f (B, L, D), 0 where s
    is after t.

    So c_t = sum_s decays_ts (1 - f_s) (W x_s). No exponent is above 0, and nothing overflows."""
    total = log_f.cumsum(1)
    later = torch.ones(log_f.shape[1], log_f.shape[1], dtype=torch.bool, device=log_f.device).triu(1)[
        :, :, None
    ]
    return (total[:, :, None] - total[:, None]).masked_fill(later, -torch.inf).exp()
