"""The ratio rule of layer-wise relevance propagation (LRP): how the relevance of a sum goes to its terms.
Ding et al. 2017; Voita et al. 2019 (arXiv:1905.09418), appendix A.

With the attention weights and the scales of the layer norms held constant (why: lrp.py), every step of a
Transformer is, for each number y of its output, a sum y = sum_i z_i + b. A term z_i is W_oi x_i in a
projection, a_lj v_j in attention, one of the two in a residual connection. Of y's relevance R,

    R z_i / (y + eps sign(y)),   sign(0) = 1,

goes to z_i; the bias b takes its part as a term would, and keeps it (b and eps as in Bach et al. 2015).
Functions of one number are passed by (Ding et al.): what goes to the output of ReLU, GELU or swish goes to
its input.

With R = c y this is a backward pass: c y / (y + eps sign(y)) times z_i goes to z_i. So `RatioPass` multiplies
the gradient c of every sum by y / (y + eps sign(y)), and relevance is gradient times value. As eps goes to 0,
the linear pass is left (Ancona et al. 2018).

An SSRU's forget gates are constants like attention weights, and its state is a sum of two terms at every
position. Letters: C rows of seeds of a sentence (its generation steps, or one for all of them), B sentences,
T target positions, H heads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import TopLogits, top_logits
from headgates.analysis.linear_pass import LinearPass
from headgates.analysis.lrp import Walk

# modules of a model whose inputs are its embeddings, positions included
EMBEDDED = {"source": "source_norm", "target": "target_norm"}
# torch's functions that add terms up, and which argument is a bias
SUMS = {
    **{"linear": 2, "layer_norm": 3, "matmul": 9, "__matmul__": 9, "sum": 9, "add": 9, "__add__": 9},
    "scaled_dot_product_attention": 9,  # of values: on a GPU, and of long texts
}


class RatioPass(LinearPass):
    """The mode in which the gradient c of every sum y becomes c y / (y + eps sign(y)).

    The gradients to `lost` and `biases`, (B,) zeros, are what the stabiliser and the biases keep."""

    def __init__(self, like: Tensor, sentences: int, eps: float):
        super().__init__()
        self.lost, self.biases = (like.new_zeros(sentences).requires_grad_() for _ in range(2))
        self.eps = eps

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        y = super().__torch_function__(func, types, args, kwargs)
        name = getattr(func, "__name__", "")
        if name not in SUMS or not y.requires_grad:
            return y
        if "add" in name:  # a term without a gradient is a bias
            bias = next((term for term in args[:2] if not getattr(term, "requires_grad", False)), None)
        else:
            bias = (kwargs or {}).get("bias", args[SUMS[name]] if len(args) > SUMS[name] else None)
        # a mask on scores, whose softmax is a constant
        if bias is not None and not torch.isfinite(bias).all():
            return y
        # + 0.0 makes -0.0 the 0.0 whose sign is 1
        kept = torch.full_like(y, self.eps).copysign(y.detach() + 0.0)
        share = y.detach() / (y.detach() + kept)
        per_sentence = (-1, *[1] * (y.dim() - 1))
        y = y + kept * self.lost.view(per_sentence)
        if bias is not None:
            y = y + bias * self.biases.view(per_sentence)
        return y * share + (y * (1 - share)).detach()


class RatioWalk(Walk):
    """A walk by the ratio rule, which says where all relevance went.

    Raises ValueError at a model whose embeddings it does not know, and unless eps > 0."""

    def __init__(self, model: nn.Module, batch: Any, *, eps: float = 1e-5, logits: TopLogits = top_logits):
        if not all(hasattr(model, name) for name in EMBEDDED.values()):
            raise ValueError(
                "the ratio rule ends at the embeddings of our own Transformer, got "
                f"{type(model).__name__}; take the gate's gradient (walk=None)"
            )
        if not eps > 0:
            raise ValueError(
                f"the ratio rule needs eps > 0, got {eps}; its limit at 0 is the gate's gradient"
            )
        self.eps = eps
        super().__init__(model, batch, logits=logits)

    @contextmanager
    def rule(self, model: nn.Module, batch: Any) -> Iterator[LinearPass]:
        factors, hooks = self.factors.factors, []
        for name, module in EMBEDDED.items():
            end = factors[name] = self.factors.like.new_ones(len(batch)).requires_grad_()
            hooks.append(
                getattr(model, module).register_forward_pre_hook(
                    lambda _, inputs, end=end: inputs[0].detach() * end[:, None, None]
                )
            )
        try:
            with RatioPass(self.factors.like, len(batch), self.eps) as sums:
                factors |= {"biases": sums.biases, "eps": sums.lost}
                yield sums
        finally:
            for hook in hooks:
                hook.remove()

    def back(self, seed: Tensor) -> dict[Any, Tensor]:
        """Where the relevance `seed` (C, B, T) of the top-1 logits goes: by site (C, B, H), and by the
        names of lrp.ENDS (C, B) each."""
        found = super().back(seed)
        # of a logit of 0 nothing goes on
        return found | {"eps": found["eps"] + (seed * (self.logits == 0)).sum(2)}
