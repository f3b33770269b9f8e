"""Closed heads leave the weights for good: rows of W_Q, W_K and W_V (and of their biases), columns of W_O.
The bias of W_O stays.

    removed = remove(model, bank)   # in place; the outputs are those of the model with its gates at 0 or 1

Sites may keep different numbers of heads; where none is left, the attention's output is the bias of W_O.
Heads are numbered as the model has them now. Each attention remembers which of its first heads are left, so
`original=True` takes the numbers from before any removal: then a growing set can be removed step by step
(numbers of unpruned models on models made smaller broke Michel et al.'s code). Letters: H heads, K head
width, D model width.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from .attach_modes import check_ungated, scale_columns
from .bank import GateBank
from .headmap import KINDS, HeadMap, HeadSite
from .names import nearest
from .position_bias import share_out_bias
from .refit import LEFT
from .rules import rule_of
from .site_rule import SiteRule, attribute, check_columns, check_own_weights, group_of, plain_projection
from .sites import BANK, detach, find_sites, reattach
from .torch_attention import without_nested_tensors


@dataclass(frozen=True)
class Removed:
    """What one call of `remove` took away."""

    heads: HeadMap  # True where a head went, numbered as before any removal
    parameters: int  # numbers in the weights that went


# a module, its attribute, and the new value; a tensor becomes a parameter
Change = tuple[nn.Module, str, Any]


def remove(
    model: nn.Module,
    closed: HeadMap | GateBank,
    *,
    fold: HeadMap | None = None,
    original: bool = False,
) -> Removed:
    """Take the heads where `closed` is True, or that the gates of a bank close, out of the model, in place.
    Sites that a map lacks keep their heads.

    fold: gates xi in (0, 1] of the heads that stay, multiplied into their columns of W_O. original: both maps
    number the heads as before any removal, and heads that are gone already may be named again. Where all
    heads of an attention are to go and its class cannot run without any, its first stays, with zeros for its
    columns of W_O: the outputs are the same, and a warning names the site. Heads that share one key head go
    together. Attached gates are taken off. The weights are new parameters: make the optimiser afterwards.
    Raises ValueError, and leaves the model as it was, at gates attached to a part of it, a site or number of
    heads that the model does not have, `closed` that is not bool, `fold` outside (0, 1], or an attention
    whose weights do not fit its rule."""
    if isinstance(closed, GateBank):
        closed = closed.closed()
    bank = getattr(model, BANK, None)
    detach(model)
    try:
        check_ungated(model)
        sites = find_sites(model)
        before = {module: left_of(site, module) for site, module in sites.items()}
        gone, changes = planned(sites, closed, fold, original)
    except ValueError:
        if bank is not None:
            reattach(model, bank)
        raise
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for owner, name, value in changes:  # nothing here can fail: all checks are behind
        if isinstance(value, Tensor):
            # an empty weight never gets a gradient, which distributed training would wait for
            learns = getattr(owner, name).requires_grad and value.numel() > 0
            value = nn.Parameter(value, requires_grad=learns)
        setattr(owner, name, value)
    without_nested_tensors(model)
    after = {module: left_of(site, module) for site, module in sites.items()}
    for kind in KINDS:
        stack = [each for site, each in sites.items() if site.kind == kind and rule_of(each).bias]
        if stack:
            share_out_bias(stack, rule_of(stack[0]).bias, before, after)
    return Removed(gone, parameters - sum(parameter.numel() for parameter in model.parameters()))


def planned(
    sites: Mapping[HeadSite, nn.Module], closed: HeadMap, fold: HeadMap | None, original: bool
) -> tuple[HeadMap, list[Change]]:
    """True where a head goes, numbered as before any removal, and what changes. Raises what `remove` does,
    and warns of sites that keep a head as they cannot run without any."""
    closed_rows = closed_now(sites, closed, original=original)
    xi = {} if fold is None else rows_now(sites, fold, "fold", original=original)
    changes: list[Change] = []
    gone: dict[HeadSite, Tensor] = {}
    stay: list[str] = []
    for site, module in sites.items():
        rule, row, factors = rule_of(module), closed_rows[site], xi.get(site)
        if factors is not None:
            check_xi(site, factors, row)
        if site.heads and row.all() and not rule.zero_heads:
            row, factors = row.clone(), torch.zeros(site.heads)
            row[: group_of(module, rule)] = False
            stay.append(f"{site.name} ({type(module).__name__})")
        if row.any() or (site.heads and factors is not None):
            changes += cut(site, module, rule, ~row, factors)
        left = left_of(site, module)
        went = torch.zeros_like(left)
        went[left] = row
        if row.any():
            changes.append((module, LEFT, tuple((left & ~went).tolist())))
        gone[HeadSite.at(site.kind, site.layer, len(left))] = went
    check_own_weights(getattr(owner, name) for owner, name, value in changes if isinstance(value, Tensor))
    if stay:
        warnings.warn(
            f"a head stays at {', '.join(stay)}, which cannot run without any; its columns of W_O are zero, "
            "so the outputs are the same",
            stacklevel=3,
        )
    return HeadMap(gone), changes


# ---------------------------------------------------------------- one attention


def cut(site: HeadSite, module: nn.Module, rule: SiteRule, keep: Tensor, xi: Tensor | None) -> list[Change]:
    """What one attention changes into. keep: (H,) bool; xi: (H,) or None."""
    class_name, group = type(module).__name__, group_of(module, rule)
    out = plain_projection(module, rule.out)
    if keep.all() and xi is not None:  # the gates are folded, nothing else: its forward stays its own
        check_columns(module, rule, out, site.heads)
        return [(out, "weight", scale_columns(out.weight.detach(), xi, transposed=rule.transposed))]
    names = tuple(dict.fromkeys((rule.q, rule.k, rule.v)))
    if not all(names):
        raise ValueError(
            f"heads of {class_name} can be gated, not removed: its rule names no projections for q, k and "
            "v; add q=, k= and v= to it in SITE_RULES"
        )
    if len(names) == 2:
        raise ValueError(
            f"the rule of {class_name} has two weights for q, k and v; expected three, or one that holds all"
        )
    keep_keys = kept_groups(site, keep, group)
    blocks = 3 // len(names)  # how many of q, k and v a weight holds
    refit = rule.refit(module) if rule.refit else {}
    into = [refit.get(name) or plain_projection(module, name) for name in names]
    side = int(rule.transposed)  # the dimension of a weight that is its outputs
    sizes = [each.weight.shape[side] for each in into]  # blocks * H * K, or H / group * K
    columns = out.weight.shape[1 - side]  # H * K
    # as if each head had its own key head
    own = [size * (1 if place == 0 else group) for place, size in enumerate(sizes)]
    if (
        own[0] != own[1 % len(own)]
        or own[-1] != blocks * columns
        or sizes[0] % (blocks * site.heads)
        or columns % site.heads
    ):
        shown = ", ".join(
            f"{name} {size}" for name, size in zip((*names, rule.out), (*sizes, columns), strict=True)
        )
        shared = f" divided by {group}, the heads of one key head" if group > 1 else ""
        raise ValueError(
            f"the weights of {site.name} do not divide into its {site.heads} heads ({shown}): expected as "
            f"many rows for q as for k, and for v as W_O has columns{shared}; look at the rule of "
            f"{class_name} in SITE_RULES"
        )
    changes: list[Change] = [(module, name, value) for name, value in refit.items()]
    for place, (each, size) in enumerate(zip(into, sizes, strict=True)):
        index = kept_rows(keep if place == 0 else keep_keys, size, blocks).to(each.weight.device)
        changes += resized(each, each.weight.detach().index_select(side, index), side)
        if each.bias is not None:
            changes.append((each, "bias", each.bias.detach().index_select(0, index)))
    index = kept_rows(keep, columns, 1).to(out.weight.device)
    weight = out.weight.detach().index_select(1 - side, index)
    if xi is not None:
        weight = scale_columns(weight, xi[keep], transposed=rule.transposed)
    changes += resized(out, weight, side)
    for name in filter(None, (rule.heads, *rule.widths)):
        owner, _, last = name.rpartition(".")
        size = attribute(module, name, "`heads`" if name == rule.heads else "one of `widths`")
        holder = attrgetter(owner)(module) if owner else module
        changes.append((holder, last, size // site.heads * int(keep.sum())))
    return changes


def kept_groups(site: HeadSite, keep: Tensor, group: int) -> Tensor:
    """(H / group,) bool, which key heads stay. Raises ValueError where a key head would serve some of its
    heads and not others."""
    rows = keep.view(-1, group)
    if parted := (rows.any(1) & ~rows.all(1)).nonzero().flatten().tolist():
        heads = range(parted[0] * group, (parted[0] + 1) * group)
        raise ValueError(
            f"closed parts heads that share one key head: {site.name} has {group} heads to a key head, and "
            f"of {heads[0]} to {heads[-1]} only "
            f"{', '.join(str(head) for head in heads if not keep[head])} would go; close all {group} or "
            "none. Gates learned with attach(model, share='group') do; a score can be summed over each "
            "group first"
        )
    return rows[:, 0]


def kept_rows(keep: Tensor, size: int, blocks: int) -> Tensor:
    """Of `size` rows (blocks times H times K), the numbers of those whose heads stay."""
    return torch.arange(size).view(blocks, len(keep), -1)[:, keep].flatten()


def resized(linear: nn.Module, weight: Tensor, side: int) -> list[Change]:
    """The new weight, whose dimension `side` is its outputs, and its shape where the class keeps that."""
    outputs, inputs = weight.shape[side], weight.shape[1 - side]
    sizes = {"out_features": outputs, "nf": outputs, "in_features": inputs, "nx": inputs}
    return [
        (linear, "weight", weight),
        *((linear, name, size) for name, size in sizes.items() if hasattr(linear, name)),
    ]


# ---------------------------------------------------------------- which heads are left


def heads_left(model: nn.Module) -> HeadMap:
    """True where a head is still there, numbered as before any removal."""
    rows = {site: left_of(site, module) for site, module in find_sites(model).items()}
    return HeadMap({HeadSite.at(site.kind, site.layer, len(row)): row for site, row in rows.items()})


def set_heads_left(model: nn.Module, left: HeadMap) -> None:
    """Tell a model that was built without its removed heads which are left: what `heads_left` said when it
    was saved.

    Raises ValueError at a site that the model lacks, or one with another number of heads left."""
    modules, sites = {}, find_sites(model)
    for was, row in left.items():
        site, modules[was] = named_site(sites, was.name)
        if int(row.sum()) != site.heads:
            raise ValueError(
                f"{site.name} has {site.heads} heads, but {int(row.sum())} of {was.heads} are said to be left"
            )
    for was, row in left.items():
        setattr(modules[was], LEFT, tuple(row.bool().tolist()))


def left_of(site: HeadSite, module: nn.Module) -> Tensor:
    return torch.tensor(getattr(module, LEFT, (True,) * site.heads), dtype=torch.bool)


def named_site(sites: Mapping[HeadSite, nn.Module], name: str) -> tuple[HeadSite, nn.Module]:
    """The model's own site of this name, whose heads may have become fewer. Raises ValueError at none."""
    found = {site.name: (site, module) for site, module in sites.items()}
    if name not in found:
        raise ValueError(f"the model has no attention {name}{nearest(name, list(found))}")
    return found[name]


def rows_now(
    sites: Mapping[HeadSite, nn.Module], given: HeadMap, name: str, *, original: bool = False
) -> dict[HeadSite, Tensor]:
    """The map's rows for the heads that the model has now."""
    if not isinstance(given, HeadMap):
        raise ValueError(
            f"{name}: expected a HeadMap, got {type(given).__name__}; HeadMap({{site: row}}) makes one"
        )
    rows = {}
    for site, row in given.items():
        now, module = named_site(sites, site.name)
        left = left_of(now, module)
        if site.heads != (len(left) if original else now.heads):
            cure = "heads are numbered as before any removal; " if original else ""
            if not original and site.heads == len(left):
                cure = "give original=True where heads are numbered as before any removal; "
            had = f", of {len(left)} at first" if len(left) != now.heads else ""
            raise ValueError(
                f"{name} has {site.heads} heads for {site.name}; {cure}the model has {now.heads}{had}"
            )
        rows[now] = row[left] if original else row
    return rows


def closed_now(
    sites: Mapping[HeadSite, nn.Module], closed: HeadMap, *, original: bool = False
) -> dict[HeadSite, Tensor]:
    """For every site the heads that close, (H,) bool; sites that the map lacks close none."""
    rows = rows_now(sites, closed, "closed", original=original)
    for site, row in rows.items():
        if site.heads and row.dtype != torch.bool:
            raise ValueError(
                f"closed must hold bools, True where a head is closed; {site.name} has numbers. Scores: "
                "scores.lowest(k). Gates: xi.map(lambda row: row == 0)"
            )
    return {site: rows.get(site, torch.zeros(site.heads)).bool() for site in sites}


def check_xi(site: HeadSite, xi: Tensor, closed: Tensor) -> None:
    if xi.dtype == torch.bool:
        raise ValueError(
            f"fold must hold gates in (0, 1], {site.name} has bools; bank.values() gives the gates"
        )
    for head in (~closed).nonzero().flatten().tolist():
        if not 0 < float(xi[head]) <= 1:
            raise ValueError(
                f"fold must be in (0, 1] where a head stays, {site.name}.{head} has {float(xi[head])}; a "
                "head whose gate is 0 belongs in closed: xi.map(lambda row: row == 0)"
            )
