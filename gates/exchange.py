"""Put other outputs in the place of the heads' own, at the input of W_O, for a while.

A hook does it, so it reaches the heads of every attention whose forward calls its output projection. Where
heads have gates, a hook sees z times xi; our own attention calls W_O under gates of shape (B, H) or
(B, H, L), not under (H,). Letters: H heads, K head width; first axes as the model has them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from .headmap import HeadSite
from .rules import rule_of
from .site_rule import projection

Exchange = Callable[[HeadSite, Tensor], Tensor]  # (site, z (..., H, K)) -> what W_O gets in its place


@contextmanager
def exchanged(sites: Mapping[HeadSite, nn.Module], exchange: Exchange) -> Iterator[None]:
    """Meanwhile W_O of every one of these sites gets what `exchange` makes of the heads' outputs. It must not
    change the tensor that it is given."""

    def before(_: nn.Module, inputs: tuple[Any, ...], *, site: HeadSite) -> tuple[Any, ...]:
        z, *others = inputs
        return exchange(site, z.unflatten(-1, (site.heads, -1))).flatten(-2), *others

    handles = []
    try:
        for site, module in sites.items():
            out = projection(module, rule_of(module).out)
            handles.append(out.register_forward_pre_hook(partial(before, site=site)))
        yield
    finally:
        for handle in handles:
            handle.remove()
