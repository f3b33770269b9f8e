"""`generation_config.alignment_heads`, the cross heads from which Whisper reads the times of words, names the
same heads when others leave the model."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from .refit import LEFT
from .sites import find_sites


@contextmanager
def alignment_kept(model: nn.Module) -> Iterator[None]:
    """Around the removal of heads or layers. Heads that leave are no longer listed; where none
    is left the list goes, and transformers says that there are no times of words."""
    config: Any = getattr(model, "generation_config", None)
    listed = getattr(config, "alignment_heads", None)
    if not listed:
        yield
        return
    before = cross_heads(model)
    yield
    after = {head: place for place, head in cross_heads(model).items()}
    places = [list(after[head]) for pair in listed if (head := before.get(tuple(pair))) in after]
    changed = copy.deepcopy(config)  # a removal that is undone puts the old one back
    if places:
        changed.alignment_heads = places
    else:
        del changed.alignment_heads
    vars(model)["generation_config"] = changed


def cross_heads(model: nn.Module) -> dict[tuple[int, int], tuple[nn.Module, int]]:
    """(layer, head) as they are numbered now -> their attention and the head's first number."""
    return {
        (site.layer, number): (module, first)
        for site, module in find_sites(model, ["cross"]).items()
        for number, first in enumerate(
            first for first, stays in enumerate(getattr(module, LEFT, (True,) * site.heads)) if stays
        )
    }
