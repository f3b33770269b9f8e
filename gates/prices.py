"""What an open head or neuron costs, so that one lambda means one thing."""

from collections.abc import Mapping
from math import prod

from torch import nn

from .headmap import FFN_KINDS, HeadSite
from .rules import rule_of
from .site_rule import SiteRule, projection, sizes_of


def unit_prices(sites: Mapping[HeadSite, nn.Module]) -> dict[HeadSite, float]:
    """Site -> the price of one of its heads or neurons, in heads.

    A head costs 1, whatever its width. A neuron costs its numbers in the weights over those of a head, the
    mean of all sites; biases do not count. For head width K and model width D that is 2 D / (4 D K) =
    1 / (2 K). sites: all of the model; where none has heads, a neuron costs 1."""
    heads = {site: each for site, each in sites.items() if site.kind not in FFN_KINDS and site.heads}
    numbers = {
        site: weights_of(each, rule_of(each)) for site, each in sites.items() if site.kind in FFN_KINDS
    }
    if not heads or not numbers:
        return dict.fromkeys(sites, 1.0)
    of_heads = sum(weights_of(each, rule_of(each)) for each in heads.values())
    head = of_heads / sum(site.heads for site in heads)
    return {site: numbers[site] / max(1, site.heads) / head if site in numbers else 1.0 for site in sites}


def weights_of(module: nn.Module, rule: SiteRule) -> int:
    """The numbers in the weights that hold a site's heads or neurons. Projections that are no modules, as in
    nn.MultiheadAttention, count as three as large as W_O."""
    out, parts = prod(sizes_of(projection(module, rule.out), rule)), dict(module.named_modules())
    inputs = [prod(sizes_of(parts[name], rule)) for name in rule.inputs if name in parts]
    return out + (sum(inputs) if len(inputs) == len(rule.inputs) else 3 * out)
