"""A configuration from which transformers alone builds a model that lost heads or neurons.

It can say one number for all layers of a stack, or for those of both. So there is one where all of them keep
equally many, and, for heads, where the class takes the width of a head apart from the model's.
"""

import copy
from typing import Any

from .headmap import ALL_KINDS, FFN_KINDS, HeadSite
from .position_bias import OwnColumns
from .proof import built_from
from .remove import left_of
from .rules import rule_of
from .site_rule import heads_per_key
from .sites import find_sites

# fields with the number of units of all layers; those of a stack go first
HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")
NEURONS = ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "hidden_dim", "ffn_hidden_size")


def plain_config(model: Any) -> Any | None:
    """A copy of the model's configuration that says what is left, proved by the shapes of a model that its
    class builds from it; None where no configuration does."""
    config, said = copy.deepcopy(model.config), model.config.to_dict()
    numbers: dict[str, set[int]] = {}
    lost: set[str] = set()
    for site, module in find_sites(model, ALL_KINDS).items():
        name = field_of(site, said)
        numbers.setdefault(name, set()).add(site.heads)
        if left_of(site, module).all():
            continue
        lost.add(name)
        if site.kind in FFN_KINDS:
            continue
        rule = rule_of(module)
        if rule.arguments or isinstance(vars(module).get("compute_bias"), OwnColumns):
            return None  # made by the number of heads, or for other heads in each layer
        for keys in ("num_key_value_heads", "num_kv_heads"):
            if keys in said:
                setattr(config, keys, site.heads // heads_per_key(module, rule))
        if hasattr(module, "head_dim"):
            config.head_dim = module.head_dim
    for name in lost:
        if not name or len(numbers[name]) > 1:
            return None
        setattr(config, name, next(iter(numbers[name])))
    try:
        built_from(model, config)
        type(config).from_dict(config.to_dict()).validate()
    except (
        Exception
    ):  # of whatever kind: a width that does not divide into so many heads, a class of one's own
        return None
    return config


def field_of(site: HeadSite, said: dict[str, Any]) -> str:
    """The field of a configuration with the number of units of such sites, "" where there is none."""
    own, general = ("ffn_dim", NEURONS) if site.kind in FFN_KINDS else ("attention_heads", HEADS)
    names = f"{site.stack}_{own}", *general
    # None stands for the usual number, a list is of stages
    return next((name for name in names if isinstance(said.get(name, ""), int | None)), "")
