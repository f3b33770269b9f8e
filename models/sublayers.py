"""The sub-layers of our Transformer as the residual stream passes them, for repairs that aim at the stream
(gates/reconstruct.py).

With norms before the sub-layers the stream x is what a sub-layer's norm reads; with norms after the sums,
what the sub-layer itself reads. The sum x + y is aimed at in both, before any norm.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from headgates.gates import ALL_KINDS, FFN_KINDS, find_sites
from headgates.gates.site_walk import Mixer, Sublayer
from headgates.models.cpu_kernels import attention_weights
from headgates.models.transformer import Residual, Transformer

RESIDUALS = {  # the attribute of a layer that adds the outputs of a site of this kind to the stream
    "enc-self": "self_residual",
    "dec-self": "self_residual",
    "cross": "cross_residual",
    **dict.fromkeys(FFN_KINDS, "feed_residual"),
}


def sublayers(model: nn.Module) -> list[Sublayer]:
    """All attentions with heads and feed-forward layers with neurons. An SSRU has no output projection, and
    passes the stream on as it is.

    Raises ValueError at a model of another class."""
    if not isinstance(model, Transformer):
        raise ValueError(
            f"the residual stream of a {type(model).__name__} is not known, only that of translation models, "
            "so out+ffn+v and distill cannot refit it; --refit out or none can be had"
        )
    found = []
    module: Any
    for site, module in find_sites(model, ALL_KINDS).items():
        if site.heads:
            layer = getattr(model, site.stack).layers[site.layer]
            if layer.skipped:
                continue
            residual: Residual = getattr(layer, RESIDUALS[site.kind])
            mixer = None if site.kind in FFN_KINDS else Mixer(module.v_proj, partial(mixed, module))
            found.append(Sublayer(site, residual.norm if residual.pre else module, mixer))
    return found


def mixed(
    attention: Any,
    inputs: Tensor,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    bias: Tensor | None = None,
    *,
    span: tuple[int, int] | None = None,
    **_: object,
) -> Tensor:
    """What each head takes in before W_V, (B, L, H, D): inputs (B, S, D), those of `keys_values`, by its
    attention weights; W_V's rows of the head, and its bias, make z_h of that. The rest are the arguments of
    the attention's forward."""
    q = attention.split(attention.q_proj(x)) * attention.head_width**-0.5
    bias = attention.score_bias(bias, x.shape[1], keys.shape[2], span)
    return (attention_weights(q, keys, bias) @ inputs[:, None]).transpose(1, 2)
