"""Closed heads leave the weights for good: rows of W_Q, W_K and W_V (and of their biases), columns of W_O.
The bias of W_O stays. Neurons of feed-forward layers leave the same way: rows of the first weight, columns of
the last.

    removed = remove(model, bank)   # in place; the outputs are those of the model with its gates at 0 or 1

Sites may keep different numbers of heads; where none is left, the attention's output is the bias of W_O.
Heads are numbered as the model has them now. Each attention remembers which of its first heads are left, so
`original=True` takes the numbers from before any removal: then a growing set can be removed step by step
(numbers of unpruned models on models made smaller broke Michel et al.'s code). Letters: H heads, K head
width, D model width.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from .alignment_list import alignment_kept
from .attach_modes import check_model, check_ungated, scale_columns
from .bank import GateBank, by_head
from .headmap import ALL_KINDS, FFN_KINDS, KINDS, HeadMap, HeadSite
from .names import nearest
from .own_heads import OwnConfig, take_own_heads
from .position_bias import share_out_bias
from .proof import proved
from .refit import LEFT, Refitted
from .rules import rule_of
from .short_example import Inputs
from .site_rule import (
    SiteRule,
    attribute,
    check_columns,
    check_own_weights,
    group_of,
    heads_per_key,
    plain_projection,
    rows_of,
    sizes_of,
)
from .sites import BANK, detach, find_sites, reattach
from .torch_attention import without_nested_tensors


@dataclass(frozen=True)
class Removed:
    """What one call of `remove` took away."""

    heads: HeadMap  # True where a head went, numbered as before any removal
    parameters: int  # numbers in the weights that went


# a module, its attribute, and the new value; a tensor becomes a parameter
AttributeChange = tuple[nn.Module, str, Any]


def remove(
    model: nn.Module,
    closed: HeadMap | GateBank,
    *,
    fold: HeadMap | None = None,
    original: bool = False,
    inputs: Inputs | None = None,
) -> Removed:
    """Take the heads where `closed` is True, or that the gates of a bank close, out of the model, in place.
    Sites that a map lacks keep their heads.

    fold: gates xi in (0, 1] of the heads that stay, multiplied into their columns of W_O. original: both maps
    number the heads as before any removal, and heads that are gone already may be named again. Where all
    heads of an attention are to go and its class cannot run without any, its first stays, with zeros for its
    columns of W_O: the outputs are the same, and a warning names the site. Heads that share one key head go
    together. Attached gates are taken off; a warning says how many of them close a head that they still let
    through in part, as its part goes too. The weights are new parameters: make the optimiser afterwards.
    Raises ValueError, and leaves the model as it was, at gates attached to a part of it, a site or number of
    heads that the model does not have, `closed` that is not bool, `fold` outside (0, 1], or an attention
    whose weights do not fit its rule. A rule that no test of headgates covers is proved by a forward pass
    before and after (proof.py). inputs: (args, options) of a forward pass, for a model that does not take
    a short sentence, an image or a sound alone; ValueError where none can be run."""
    given, closed = (closed, closed.closed()) if isinstance(closed, GateBank) else (None, closed)
    check_model(model)
    bank = getattr(model, BANK, None)
    detach(model)
    try:
        check_ungated(model)
        sites = find_sites(model, kinds_with(closed, fold))
        gone, xi, changes = planned(sites, closed, fold, original)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        changed = [each for site, each in sites.items() if not (xi[site] == 1).all()]
        saw = bank if given is None else given
        seen = None if saw is None else saw.inputs
        with proved(model, changed, xi, inputs, seen), alignment_kept(model):
            apply(model, sites, changes)
        warn_of_open(saw, closed)
    except ValueError:
        if bank is not None:
            reattach(model, bank)
        raise
    return Removed(gone, parameters - sum(parameter.numel() for parameter in model.parameters()))


def warn_of_open(bank: GateBank | None, closed: HeadMap) -> None:
    """Warn where gates above 0 at test time close heads: outputs change by what they let through."""
    gates = [] if bank is None else [(site, gate) for site, gate in bank.items() if site in closed]
    open_still = [
        by_head(site, gate.test_value().detach().cpu())[closed[site].bool()]
        for site, gate in gates
        if not gate.binarised and not gate.given
    ]
    values = torch.cat([*open_still, torch.zeros(1)])
    if count := int((values > 0).sum()):
        warnings.warn(
            f"{count} of the gates that close are above 0 at test time, the largest at "
            f"{float(values.max()):.2f}: without their heads the outputs change. Train longer, at last with "
            "bank.binarise(), so that the model gets used to it",
            stacklevel=3,
        )


def cut_heads(model: nn.Module, closed: HeadMap) -> None:
    """`remove` without its proof and what it says, of a model without gates."""
    if not any(row.any() for row in closed.values()):
        return  # of a model that may have no attention left
    sites = find_sites(model, ALL_KINDS)
    apply(model, sites, planned(sites, closed, None, False)[2])


def kinds_with(*maps: Mapping[HeadSite, Any] | None) -> set[str]:
    """The kinds of attention, and those of the maps' sites."""
    named = (site for each in maps if isinstance(each, Mapping) for site in each)
    return {*KINDS, *(site.kind for site in named if isinstance(site, HeadSite))}


def apply(model: nn.Module, sites: Mapping[HeadSite, nn.Module], changes: list[AttributeChange]) -> None:
    """Make the changes: nothing here can fail, all checks are behind."""
    before = {module: left_of(site, module) for site, module in sites.items()}
    for owner, name, value in changes:
        if isinstance(value, Tensor):
            # an empty weight never gets a gradient, which distributed training would wait for
            learns = getattr(owner, name).requires_grad and value.numel() > 0
            value = nn.Parameter(value, requires_grad=learns)
        setattr(owner, name, value)
    without_nested_tensors(model)
    for module in sites.values():
        take_own_heads(module, rule_of(module))
    after = {module: left_of(site, module) for site, module in sites.items()}
    for kind in KINDS:
        stack = [each for site, each in sites.items() if site.kind == kind and rule_of(each).bias]
        if stack:
            rows = ({module: left[module] for module in stack} for left in (before, after))
            share_out_bias(rule_of(stack[0]).bias, *rows)


def planned(
    sites: Mapping[HeadSite, nn.Module], closed: HeadMap, fold: HeadMap | None, original: bool
) -> tuple[HeadMap, HeadMap, list[AttributeChange]]:
    """True where a head goes, numbered as before any removal; the gates of the heads that there are now, 0
    where one closes; and what changes. Raises what `remove` does, and warns of sites that keep a head as they
    cannot run without any."""
    closed_rows = closed_now(sites, closed, original=original)
    xi = {} if fold is None else rows_now(sites, fold, "fold", original=original)
    changes: list[AttributeChange] = []
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
        gone[replace(site, heads=len(left))] = went
    check_own_weights(getattr(owner, name) for owner, name, value in changes if isinstance(value, Tensor))
    if stay:
        warnings.warn(
            f"a head stays at {', '.join(stay)}, which cannot run without any; its columns of W_O are zero, "
            "so the outputs are the same",
            stacklevel=3,
        )
    gates = {site: ~row * xi.get(site, torch.ones(site.heads)) for site, row in closed_rows.items()}
    return HeadMap(gone), HeadMap(gates), changes


# ---------------------------------------------------------------- one attention


def cut(
    site: HeadSite, module: nn.Module, rule: SiteRule, keep: Tensor, xi: Tensor | None
) -> list[AttributeChange]:
    """What one attention changes into. keep: (H,) bool; xi: (H,) or None."""
    class_name, group = type(module).__name__, group_of(module, rule)
    out = plain_projection(module, rule.out)
    if keep.all() and xi is not None:  # the gates are folded, nothing else: its forward stays its own
        check_columns(module, rule, out, site.heads)
        return [(out, "weight", scale_columns(out.weight.detach(), xi, transposed=rule.transposed))]
    names = rule.inputs
    if not all(names):
        raise ValueError(
            f"heads of {class_name} can be gated, not removed: its rule names no projections for q, k and "
            "v; add q=, k= and v= to it in SITE_RULES"
        )
    stays = {"q": keep, "k": kept_keys(site, keep, module, rule)}
    stays["v"] = stays["k"]
    refit = rule.refit(module) if rule.refit and not isinstance(module, Refitted) else {}
    into = {name: refit.get(name) or plain_projection(module, name) for name in names}
    side = int(rule.transposed)  # the dimension of a weight that is its outputs
    sizes = {name: each.weight.shape[side] for name, each in into.items()}
    columns = out.weight.shape[1 - side]  # H * K
    changes: list[AttributeChange] = []
    for path, value in refit.items():
        owner, _, last = path.rpartition(".")
        changes.append((module.get_submodule(owner), last, value))
    norms, whole = cut_norms(module, rule, into, stays)
    width = columns // site.heads
    rows = {
        name: rows_of(module, rule, name, site.heads, rows=sizes[name], width=width)
        for name in names
        if name not in whole
    }
    number = {name: Counter(part for part, _ in labels) for name, labels in rows.items()}
    shared_by = heads_per_key(module, rule)
    if (
        columns % site.heads
        or not all(rows.values())
        or any(
            number[name]["v"] * shared_by != columns * max(1, rule.inner.count(name))
            for name in rule.inner or [rule.v]
        )
        or (
            not (rule.inner or rule.own_widths or whole)
            and number[rule.q]["q"] != number[rule.k]["k"] * shared_by
        )
    ):
        shown = ", ".join(f"{name} {size}" for name, size in {**sizes, rule.out: columns}.items())
        shared = f" divided by {group}, the heads of one key head" if group > 1 else ""
        raise ValueError(
            f"the weights of {site.name} do not divide into its {site.heads} heads ({shown}): expected as "
            f"many rows for q as for k, and for v as W_O has columns{shared}; look at the rule of "
            f"{class_name} in SITE_RULES"
        )
    for name, labels in rows.items():
        left = torch.tensor([bool(stays[part][head]) for part, head in labels])
        changes += cut_rows(into[name], left, side)
    changes += norms
    for name in rule.also:
        changes += cut_beside(module, name, keep)
    index = kept_rows(keep, columns).to(out.weight.device)
    weight = out.weight.detach().index_select(1 - side, index)
    if xi is not None:
        weight = scale_columns(weight, xi[keep], transposed=rule.transposed)
    changes += resized(out, weight, side)
    heads = int(keep.sum())
    for name in filter(None, (rule.heads, *rule.widths)):
        size = attribute(module, name, "`heads`" if name == rule.heads else "one of `widths`")
        changes.append(size_change(module, name, size // site.heads * heads))
    if rule.keys:
        changes.append(size_change(module, rule.keys, int(stays["k"].sum())))
    if rule.group and len(stays["k"]) == 1:  # the only key head serves those that are left
        changes.append(size_change(module, rule.group, heads))
    return changes


def size_change(module: nn.Module, path: str, value: int) -> AttributeChange:
    """A size that the forward asks for, set; in a config that others share, for this attention alone."""
    owner, _, last = path.rpartition(".")
    holder = attrgetter(owner)(module) if owner else module
    if isinstance(holder, nn.Module):
        return holder, last, value
    return module, owner, OwnConfig(holder, **{last: value})


def cut_norms(
    module: nn.Module, rule: SiteRule, into: Mapping[str, nn.Module], stays: Mapping[str, Tensor]
) -> tuple[list[AttributeChange], set[str]]:
    """What the norms of q and k change into, and the projections that stay whole, as a norm over all heads
    needs all their outputs."""
    changes: list[AttributeChange] = []
    whole = set()
    parts = dict(module.named_modules())
    for part, name in zip("qk", rule.norms, strict=False):
        norm, before = parts.get(name), getattr(rule, part)
        weight = getattr(norm, "weight", None)
        if norm is None or weight is None:
            continue
        left = torch.tensor(getattr(norm, LEFT, (True,) * len(stays[part])))
        if weight.dim() == 2:  # (H, K)
            changes += cut_rows(norm, stays[part], 0)
        elif LEFT in vars(norm) or (len(left) > 1 and len(weight) == sizes_of(into[before], rule)[0]):
            left[left.clone()] = stays[part]
            changes.append((norm, LEFT, tuple(left.tolist())))
            whole.add(before)
    return changes, whole


def cut_rows(linear: nn.Module, keep: Tensor, side: int) -> list[AttributeChange]:
    """A linear layer or norm without some blocks of its outputs."""
    weight, bias = cast(Tensor, linear.weight), getattr(linear, "bias", None)
    index = kept_rows(keep, weight.shape[side]).to(weight.device)
    changes = resized(linear, weight.detach().index_select(side, index), side)
    return changes + ([] if bias is None else [(linear, "bias", bias.detach().index_select(0, index))])


def cut_beside(module: nn.Module, path: str, keep: Tensor) -> list[AttributeChange]:
    """What else has numbers for each head, where the module has it."""
    owner, _, last = path.rpartition(".")
    holder = dict(module.named_modules()).get(owner)
    found = getattr(holder, last, None)
    if holder is None or found is None:
        return []
    if isinstance(found, nn.Embedding):  # (buckets, H)
        index = kept_rows(keep, found.weight.shape[1]).to(found.weight.device)
        weight = found.weight.detach().index_select(1, index)
        return [(found, "weight", weight), (found, "embedding_dim", weight.shape[1])]
    if isinstance(found, nn.Module):
        return cut_rows(found, keep, 0)
    side = found.dim() - 1 if found.shape[-1] == len(keep) else 0  # a table's columns, as an embedding's
    index = kept_rows(keep, found.shape[side]).to(found.device)
    return [(holder, last, found.detach().index_select(side, index))]


def kept_keys(site: HeadSite, keep: Tensor, module: nn.Module, rule: SiteRule) -> Tensor:
    """(key heads,) bool, which stay. Raises ValueError where a key head, unless it is the only one, would
    serve some of its heads and not others."""
    group = group_of(module, rule)
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
    return keep.view(-1, heads_per_key(module, rule)).any(1)


def kept_rows(keep: Tensor, size: int) -> Tensor:
    """Of `size` rows in equal blocks, the numbers of those whose blocks stay."""
    return torch.arange(size).view(len(keep), -1)[keep].flatten()


def resized(linear: nn.Module, weight: Tensor, side: int) -> list[AttributeChange]:
    """The new weight, whose dimension `side` is its outputs, and its shape where the class keeps that."""
    outputs, inputs = weight.shape[side], weight.shape[1 - side]
    sizes = {"out_features": outputs, "nf": outputs, "in_features": inputs, "nx": inputs}
    return [
        (linear, "weight", weight),
        *((linear, name, size) for name, size in sizes.items() if hasattr(linear, name)),
    ]


# ---------------------------------------------------------------- which heads are left


def heads_left(model: nn.Module, kinds: Iterable[str] | None = None) -> HeadMap:
    """True where a head of these kinds (of attention unless named) is still there, numbered as before any
    removal."""
    rows = {site: left_of(site, module) for site, module in find_sites(model, kinds).items()}
    return HeadMap({replace(site, heads=len(row)): row for site, row in rows.items()})


def set_heads_left(model: nn.Module, left: HeadMap) -> None:
    """Tell a model that was built without its removed heads which are left: what `heads_left` said when it
    was saved.

    Raises ValueError at a site that the model lacks, or one with another number of heads left."""
    modules, sites = {}, find_sites(model, ALL_KINDS)
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
        layer = "feed-forward layer" if name.endswith(FFN_KINDS) else "attention"
        raise ValueError(f"the model has no {layer} {name}{nearest(name, list(found))}")
    return found[name]


def rows_now(
    sites: Mapping[HeadSite, nn.Module], given: HeadMap, name: str, *, original: bool = False
) -> dict[HeadSite, Tensor]:
    """The map's rows for the heads that the model has now."""
    if not isinstance(given, HeadMap):
        raise ValueError(
            f"{name}: expected a HeadMap, got {type(given).__name__}; "
            + ("call it, as in bank.closed()" if callable(given) else "HeadMap({site: row}) makes one")
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
