"""Closed heads leave the weights for good: rows of W_Q, W_K and W_V (and of their biases), columns of W_O. The bias of W_O stays.

    closed = bank.closed()
    detach(model)
    removed = remove(model, closed)          # in place; the outputs are those of the model with these heads closed

Sites may keep different numbers of heads; where none is left, the attention's output is the bias of W_O. Heads are numbered as the model
has them now. Each attention remembers which of its first heads are left, so `original=True` takes the numbers from before any removal:
then a growing set can be removed step by step (numbers of whole models on models made smaller broke Michel et al.'s code).
Letters: H heads, K head width, D model width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from .headmap import HeadMap, HeadSite
from .hold import SiteRule, attribute, hold_of, plain_projection
from .sites import find_sites, rule_of

LEFT = "heads_left"  # attribute of an attention that lost heads: for each head that it had at first, whether it is still there


@dataclass(frozen=True)
class Removed:
    """What one call of `remove` took away."""

    heads: HeadMap  # True where a head went, numbered as before any removal
    parameters: int  # numbers in the weights that went


Change = tuple[nn.Module, str, Any]  # a module, its attribute, and the new value; a tensor becomes a parameter


def remove(model: nn.Module, closed: HeadMap, *, fold: HeadMap | None = None, original: bool = False) -> Removed:
    """Take the heads where `closed` is True out of the model, in place. Sites that a map lacks keep their heads.

    fold: gates xi in (0, 1] of the heads that stay, multiplied into their columns of W_O. original: both maps number the heads as before
    any removal, and heads that are gone already may be named again. The weights are new parameters: make the optimiser afterwards.
    Raises ValueError, and leaves the model as it was, at attached gates, a site or number of heads that the model does not have, `closed`
    that is not bool, `fold` outside (0, 1], or an attention whose weights do not fit its rule."""
    sites = find_sites(model)
    if any(hold_of(module) is not None for module in sites.values()):
        raise ValueError("the model has gates; take closed = bank.closed() and detach(model) first, then remove(model, closed)")
    closed_rows = {site: row.bool() for site, row in rows_now(sites, closed, "closed", original).items()}
    for site, row in closed.items():
        if site.heads and row.dtype != torch.bool:
            raise ValueError(
                f"closed must hold bools, True where a head goes; {site.name} has numbers. Scores: scores.lowest(k). "
                "Gates: xi.map(lambda row: row == 0)"
            )
    xi = {} if fold is None else rows_now(sites, fold, "fold", original)
    changes: list[Change] = []
    gone: dict[HeadSite, Tensor] = {}
    for site, module in sites.items():
        row = closed_rows.get(site, torch.zeros(site.heads, dtype=torch.bool))
        if site in xi:
            check_xi(site, xi[site], row)
        if site.heads and (row.any() or site in xi):
            changes += cut(site, module, ~row, xi.get(site))
        left = torch.tensor(left_of(site, module), dtype=torch.bool)
        went = torch.zeros_like(left)
        went[left] = row
        if row.any():
            changes.append((module, LEFT, tuple((left & ~went).tolist())))
        gone[HeadSite.at(site.kind, site.layer, len(left))] = went
    check_apart(changes)
    return Removed(HeadMap(gone), make(changes))


def make(changes: list[Change]) -> int:
    """Carry the changes out; the number of parameters that went. Nothing here can fail: all checks are behind."""
    gone = 0
    for owner, name, value in changes:
        if isinstance(value, Tensor):
            old = getattr(owner, name)
            gone += old.numel() - value.numel()
            # an empty weight never gets a gradient, which distributed training would wait for
            value = nn.Parameter(value, requires_grad=old.requires_grad and value.numel() > 0)
        setattr(owner, name, value)
    return gone


def heads_left(model: nn.Module) -> HeadMap:
    """True where a head is still there, numbered as before any removal."""
    rows = {}
    for site, module in find_sites(model).items():
        left = left_of(site, module)
        rows[HeadSite.at(site.kind, site.layer, len(left))] = torch.tensor(left, dtype=torch.bool)
    return HeadMap(rows)


def set_heads_left(model: nn.Module, left: HeadMap) -> None:
    """Tell a model that was built without its removed heads which are left: what `heads_left` said when it was saved.

    Raises ValueError at a site that the model lacks, or one with another number of heads left."""
    modules = {site.name: (site, module) for site, module in find_sites(model).items()}
    for was in left:
        if was.name not in modules:
            raise ValueError(unknown_site(was.name, list(modules)))
        site, _ = modules[was.name]
        if int(left[was].sum()) != site.heads:
            raise ValueError(f"{site.name} has {site.heads} heads, but {int(left[was].sum())} of {was.heads} are said to be left")
    for was, row in left.items():
        setattr(modules[was.name][1], LEFT, tuple(bool(there) for there in row))


def left_of(site: HeadSite, module: nn.Module) -> tuple[bool, ...]:
    return getattr(module, LEFT, (True,) * site.heads)


def rows_now(sites: Mapping[HeadSite, nn.Module], given: HeadMap, name: str, original: bool) -> dict[HeadSite, Tensor]:
    """The map's rows for the heads that the model has now."""
    if not isinstance(given, HeadMap):
        raise ValueError(f"{name}: expected a HeadMap, got {type(given).__name__}; HeadMap({{site: row}}) makes one")
    own = {site.name: site for site in sites}
    rows = {}
    for site, row in given.items():
        if site.name not in own:
            raise ValueError(unknown_site(site.name, list(own)))
        now = own[site.name]
        left = left_of(now, sites[now])
        if site.heads != (len(left) if original else now.heads):
            cure = "heads are numbered as before any removal; " if original else ""
            if not original and site.heads == len(left):
                cure = "give original=True where heads are numbered as before any removal; "
            had = f", of {len(left)} at first" if len(left) != now.heads else ""
            raise ValueError(f"{name} has {site.heads} heads for {site.name}; {cure}the model has {now.heads}{had}")
        rows[now] = row[torch.tensor(left, dtype=torch.bool)] if original else row
    return rows


def unknown_site(name: str, sites: list[str]) -> str:
    nearest = get_close_matches(name, sites, n=1)
    return f"the model has no attention {name}" + (f"; did you mean {nearest[0]}?" if nearest else ".") + f" It has {', '.join(sites)}"


def check_xi(site: HeadSite, xi: Tensor, closed: Tensor) -> None:
    if xi.dtype == torch.bool:
        raise ValueError(f"fold must hold gates in (0, 1], {site.name} has bools; bank.values() gives the gates")
    for head in (~closed).nonzero().flatten().tolist():
        if not 0 < float(xi[head]) <= 1:
            raise ValueError(
                f"fold must be in (0, 1] where a head stays, {site.name}.{head} has {float(xi[head])}; a head whose gate is 0 belongs in "
                "closed: xi.map(lambda row: row == 0)"
            )


def cut(site: HeadSite, module: nn.Module, keep: Tensor, xi: Tensor | None) -> list[Change]:
    """What one attention changes into. keep: (H,) bool; xi: (H,) or None."""
    rule, class_name = rule_of(module), type(module).__name__
    if not keep.any() and not rule.zero_heads:
        raise ValueError(
            f"closed takes all heads of {site.name}, and the rule of {class_name} does not say that its forward works without any: "
            "leave one, or set zero_heads in its SiteRule"
        )
    names = tuple(dict.fromkeys((rule.q, rule.k, rule.v)))
    if not all(names):
        raise ValueError(f"heads of {class_name} can be gated, not removed: its rule names no projections for q, k and v")
    if len(names) == 2:
        raise ValueError(f"the rule of {class_name} has two weights for q, k and v; expected three, or one that holds all")
    blocks = 3 // len(names)  # how many of q, k and v a weight holds
    into, out = [plain_projection(module, name) for name in names], plain_projection(module, rule.out)
    outputs, inputs = (1, 0) if rule.transposed else (0, 1)  # the dimensions of a weight
    sizes = [each.weight.shape[outputs] for each in into]  # blocks * H * K
    columns = out.weight.shape[inputs]  # H * K
    # attention that shares keys among heads has fewer rows for k than for q
    if sizes[0] != sizes[1 % len(sizes)] or sizes[-1] != blocks * columns or sizes[0] % (blocks * site.heads) or columns % site.heads:
        shown = ", ".join(f"{name} {size}" for name, size in zip((*names, rule.out), (*sizes, columns), strict=True))
        raise ValueError(
            f"the weights of {site.name} do not divide into its {site.heads} heads ({shown}): expected as many rows for q as for k, and "
            f"for v as W_O has columns; look at the rule of {class_name} in SITE_RULES"
        )
    changes: list[Change] = []
    for each, size in zip(into, sizes, strict=True):
        index = kept_rows(keep, size, blocks).to(each.weight.device)
        changes += resized(each, each.weight.detach().index_select(outputs, index), rule)
        if each.bias is not None:
            changes.append((each, "bias", each.bias.detach().index_select(0, index)))
    weight = out.weight.detach().index_select(inputs, kept_rows(keep, columns, 1).to(out.weight.device))
    if xi is not None:
        scale = xi[keep].repeat_interleave(columns // site.heads).to(weight)
        weight = weight * (scale[:, None] if rule.transposed else scale)
    changes += resized(out, weight, rule)
    for name in (rule.heads, *rule.widths):
        owner, _, last = name.rpartition(".")
        size = attribute(module, name, "`heads`" if name == rule.heads else "one of `widths`")
        changes.append((attrgetter(owner)(module) if owner else module, last, size // site.heads * int(keep.sum())))
    return changes


def kept_rows(keep: Tensor, size: int, blocks: int) -> Tensor:
    """Of `size` rows (blocks times H times K), the numbers of those whose heads stay."""
    return torch.arange(size).view(blocks, len(keep), -1)[:, keep].flatten()


def resized(linear: nn.Linear, weight: Tensor, rule: SiteRule) -> list[Change]:
    """The new weight, and its shape where the class keeps that in attributes."""
    names = ("nx", "nf") if rule.transposed else ("out_features", "in_features")
    sizes = [(linear, name, size) for name, size in zip(names, weight.shape, strict=True) if hasattr(linear, name)]
    return [(linear, "weight", weight), *sizes]


def check_apart(changes: list[Change]) -> None:
    weights = [id(getattr(owner, name)) for owner, name, value in changes if isinstance(value, Tensor)]
    if len(set(weights)) < len(weights):
        raise ValueError("two projections share one weight, so heads cannot be removed from one alone; give each its own copy first")
