"""Closed heads leave the weights for good: rows of W_Q, W_K and W_V (and of their biases), columns of W_O.
The bias of W_O stays.

    removed = remove(model, bank)   # in place; the outputs are those of the model with its gates at 0 or 1

Sites may keep different numbers of heads; where none is left, the attention's output is the bias of W_O.
Heads are numbered as the model has them now. Each attention remembers which of its first heads are left, so
`original=True` takes the numbers from before any removal: then a growing set can be removed step by step
(numbers of whole models on models made smaller broke Michel et al.'s code). Letters: H heads, K head width, D
model width.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from .bank import GateBank
from .headmap import KINDS, HeadMap, HeadSite
from .hold import SiteRule, attribute, check_columns, group_of, hold_of, plain_projection
from .position_bias import share_out_bias
from .refit import LEFT
from .rules import rule_of
from .sites import BANK, detach, find_sites, reattach
from .torch_attention import without_nested_tensors


@dataclass(frozen=True)
class Removed:
    """What one call of `remove` took away."""

    heads: HeadMap  # True where a head went, numbered as before any removal
    parameters: int  # numbers in the weights that went


Change = tuple[
    nn.Module, str, Any
]  # a module, its attribute, and the new value; a tensor becomes a parameter


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
        sites = find_sites(model)
        gone, changes, stay = planned(sites, closed, fold, original)
    except ValueError:
        if bank is not None:
            reattach(model, bank)
        raise
    if stay:
        names = ", ".join(f"{site.name} ({type(sites[site]).__name__})" for site in stay)
        warnings.warn(
            f"a head stays at {names}, which cannot run without any; its columns of W_O are zero, so the "
            "outputs "
            "are the same",
            stacklevel=2,
        )
    before = {module: left_of(site, module) for site, module in sites.items()}
    parameters = make(changes)
    without_nested_tensors(model)
    for kind in KINDS:
        stack = [
            (module, rule_of(module))
            for site, module in sites.items()
            if site.kind == kind and rule_of(module).bias
        ]
        if stack:
            parameters += share_out_bias(
                stack, before, {module: vars(module).get(LEFT, before[module]) for module in before}
            )
    return Removed(gone, parameters)


def planned(
    sites: Mapping[HeadSite, nn.Module],
    closed: HeadMap,
    fold: HeadMap | None,
    original: bool,
) -> tuple[HeadMap, list[Change], list[HeadSite]]:
    """True where a head goes, numbered as before any removal; what changes; and the sites that keep a head as
    they cannot run without any. Raises what `remove` does."""
    if any(hold_of(module) is not None for module in sites.values()):
        raise ValueError(
            "a model inside this one has gates; take closed = bank.closed() and detach that model first, "
            "then remove"
        )
    closed_rows = {site: row.bool() for site, row in rows_now(sites, closed, "closed", original).items()}
    for site, row in closed.items():
        if site.heads and row.dtype != torch.bool:
            raise ValueError(
                f"closed must hold bools, True where a head goes; {site.name} has numbers. Scores: "
                "scores.lowest(k). "
                "Gates: xi.map(lambda row: row == 0)"
            )
    xi = {} if fold is None else rows_now(sites, fold, "fold", original)
    changes: list[Change] = []
    gone: dict[HeadSite, Tensor] = {}
    stay: list[HeadSite] = []
    for site, module in sites.items():
        row = closed_rows.get(site, torch.zeros(site.heads, dtype=torch.bool))
        if site in xi:
            check_xi(site, xi[site], row)
        factors = xi.get(site)
        if site.heads and row.all() and not rule_of(module).zero_heads:
            row, factors = row.clone(), torch.zeros(site.heads)
            row[: group_of(module, rule_of(module))] = False
            stay.append(site)
        if site.heads and (row.any() or factors is not None):
            changes += cut(site, module, ~row, factors)
        left = torch.tensor(left_of(site, module), dtype=torch.bool)
        went = torch.zeros_like(left)
        went[left] = row
        if row.any():
            changes.append((module, LEFT, tuple((left & ~went).tolist())))
        gone[HeadSite.at(site.kind, site.layer, len(left))] = went
    check_apart(changes)
    return HeadMap(gone), changes, stay


def make(changes: list[Change]) -> int:
    """Carry the changes out; the number of parameters that went. Nothing here can fail: all checks are
    behind."""
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
    """Tell a model that was built without its removed heads which are left: what `heads_left` said when it
    was saved.

    Raises ValueError at a site that the model lacks, or one with another number of heads left."""
    modules = {site.name: (site, module) for site, module in find_sites(model).items()}
    for was in left:
        if was.name not in modules:
            raise ValueError(unknown_site(was.name, list(modules)))
        site, _ = modules[was.name]
        if int(left[was].sum()) != site.heads:
            raise ValueError(
                f"{site.name} has {site.heads} heads, but {int(left[was].sum())} of {was.heads} are said to "
                "be left"
            )
    for was, row in left.items():
        setattr(modules[was.name][1], LEFT, tuple(bool(there) for there in row))


def left_of(site: HeadSite, module: nn.Module) -> tuple[bool, ...]:
    return getattr(module, LEFT, (True,) * site.heads)


def rows_now(
    sites: Mapping[HeadSite, nn.Module], given: HeadMap, name: str, original: bool
) -> dict[HeadSite, Tensor]:
    """The map's rows for the heads that the model has now."""
    if not isinstance(given, HeadMap):
        raise ValueError(
            f"{name}: expected a HeadMap, got {type(given).__name__}; HeadMap({{site: row}}) makes one"
        )
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
            raise ValueError(
                f"{name} has {site.heads} heads for {site.name}; {cure}the model has {now.heads}{had}"
            )
        rows[now] = row[torch.tensor(left, dtype=torch.bool)] if original else row
    return rows


def unknown_site(name: str, sites: list[str]) -> str:
    nearest = get_close_matches(name, sites, n=1)
    return (
        f"the model has no attention {name}"
        + (f"; did you mean {nearest[0]}?" if nearest else ".")
        + f" It has {', '.join(sites)}"
    )


def check_xi(site: HeadSite, xi: Tensor, closed: Tensor) -> None:
    if xi.dtype == torch.bool:
        raise ValueError(
            f"fold must hold gates in (0, 1], {site.name} has bools; bank.values() gives the gates"
        )
    for head in (~closed).nonzero().flatten().tolist():
        if not 0 < float(xi[head]) <= 1:
            raise ValueError(
                f"fold must be in (0, 1] where a head stays, {site.name}.{head} has {float(xi[head])}; a "
                "head whose gate is 0 belongs in "
                "closed: xi.map(lambda row: row == 0)"
            )


def cut(site: HeadSite, module: nn.Module, keep: Tensor, xi: Tensor | None) -> list[Change]:
    """What one attention changes into. keep: (H,) bool; xi: (H,) or None."""
    rule, class_name, group = rule_of(module), type(module).__name__, group_of(module, rule_of(module))
    if keep.all() and xi is not None:  # the gates are folded, nothing else: its forward stays its own
        out = plain_projection(module, rule.out)
        check_columns(module, rule, out, site.heads)
        return [(out, "weight", folded(out.weight.detach(), xi, rule))]
    names = tuple(dict.fromkeys((rule.q, rule.k, rule.v)))
    if not all(names):
        raise ValueError(
            f"heads of {class_name} can be gated, not removed: its rule names no projections for q, k and "
            "v; add q=, k= and v= to it in "
            "SITE_RULES"
        )
    if len(names) == 2:
        raise ValueError(
            f"the rule of {class_name} has two weights for q, k and v; expected three, or one that holds all"
        )
    keep_keys = kept_groups(site, keep, group)
    blocks = 3 // len(names)  # how many of q, k and v a weight holds
    refit = rule.refit(module) if rule.refit else {}
    into, out = (
        [refit.get(name) or plain_projection(module, name) for name in names],
        plain_projection(module, rule.out),
    )
    outputs, inputs = (1, 0) if rule.transposed else (0, 1)  # the dimensions of a weight
    sizes = [each.weight.shape[outputs] for each in into]  # blocks * H * K, or H / group * K
    columns = out.weight.shape[inputs]  # H * K
    whole = [
        size * (1 if place == 0 else group) for place, size in enumerate(sizes)
    ]  # as if each head had its own key head
    if (
        whole[0] != whole[1 % len(sizes)]
        or whole[-1] != blocks * columns
        or sizes[0] % (blocks * site.heads)
        or columns % site.heads
    ):
        shown = ", ".join(
            f"{name} {size}" for name, size in zip((*names, rule.out), (*sizes, columns), strict=True)
        )
        shared = f" divided by {group}, the heads of one key head" if group > 1 else ""
        raise ValueError(
            f"the weights of {site.name} do not divide into its {site.heads} heads ({shown}): expected as "
            "many rows for q as for k, and "
            f"for v as W_O has columns{shared}; look at the rule of {class_name} in SITE_RULES"
        )
    changes: list[Change] = [(module, name, value) for name, value in refit.items()]
    for place, (each, size) in enumerate(zip(into, sizes, strict=True)):
        index = kept_rows(keep if place == 0 else keep_keys, size, blocks).to(each.weight.device)
        changes += resized(each, each.weight.detach().index_select(outputs, index), rule)
        if each.bias is not None:
            changes.append((each, "bias", each.bias.detach().index_select(0, index)))
    weight = out.weight.detach().index_select(inputs, kept_rows(keep, columns, 1).to(out.weight.device))
    if xi is not None:
        weight = folded(weight, xi[keep], rule)
    changes += resized(out, weight, rule)
    for name in (*([rule.heads] if rule.heads else []), *rule.widths):
        owner, _, last = name.rpartition(".")
        size = attribute(module, name, "`heads`" if name == rule.heads else "one of `widths`")
        changes.append(
            (attrgetter(owner)(module) if owner else module, last, size // site.heads * int(keep.sum()))
        )
    return changes


def folded(weight: Tensor, xi: Tensor, rule: SiteRule) -> Tensor:
    """W_O with the columns of head h times xi_h."""
    if len(xi) == 0:  # no head is left, nor any column
        return weight
    scale = xi.repeat_interleave(weight.shape[0 if rule.transposed else 1] // len(xi)).to(weight)
    return weight * (scale[:, None] if rule.transposed else scale)


def kept_groups(site: HeadSite, keep: Tensor, group: int) -> Tensor:
    """(H / group,) bool, which key heads stay. Raises ValueError where a key head would serve some of its
    heads and not others."""
    rows = keep.view(-1, group)
    if parted := (rows.any(1) & ~rows.all(1)).nonzero().flatten().tolist():
        heads = range(parted[0] * group, (parted[0] + 1) * group)
        raise ValueError(
            f"closed parts heads that share one key head: {site.name} has {group} heads to a key head, and "
            f"of {heads[0]} to {heads[-1]} "
            f"only {', '.join(str(head) for head in heads if not keep[head])} would go; close all {group} "
            "or none. Gates learned with "
            "attach(model, share='group') do; a score can be summed over each group first"
        )
    return rows[:, 0]


def kept_rows(keep: Tensor, size: int, blocks: int) -> Tensor:
    """Of `size` rows (blocks times H times K), the numbers of those whose heads stay."""
    return torch.arange(size).view(blocks, len(keep), -1)[:, keep].flatten()


def resized(linear: nn.Linear, weight: Tensor, rule: SiteRule) -> list[Change]:
    """The new weight, and its shape where the class keeps that in attributes."""
    names = ("nx", "nf") if rule.transposed else ("out_features", "in_features")
    sizes = [
        (linear, name, size) for name, size in zip(names, weight.shape, strict=True) if hasattr(linear, name)
    ]
    return [(linear, "weight", weight), *sizes]


def check_apart(changes: list[Change]) -> None:
    weights = [id(getattr(owner, name)) for owner, name, value in changes if isinstance(value, Tensor)]
    if len(set(weights)) < len(weights):
        raise ValueError(
            "two projections share one weight, so heads cannot be removed from one alone; give each its own "
            "copy first"
        )
