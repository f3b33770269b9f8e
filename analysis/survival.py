"""Which heads stay open when few are left, by their roles, and whether specialised heads survive longer.
Voita et al. 2019
(arXiv:1905.09418), section 6.3 and figure 8.

Heads have their roles in the base, before any gate closed. Each run says which heads are open, and the
lifetime of a head is the number of runs in which it is open: one run for each lambda, or for each step of a
greedy pruning. Heads of kinds that no run gates are left out.

The permutation test compares T = mean lifetime of the specialised heads - mean lifetime of the others with T
under all permutations of the label "specialised" among the heads of the same kind (within="kind"), or of the
same kind and layer (within="layer", so that layers that survive longer as a whole do not count). p is
two-sided: the share of permutations whose T is at least as far from the mean T of all permutations. It is
exact: lifetimes are whole numbers, and T is linear in the sum of the specialised lifetimes, whose
distribution over all subsets of a size is

    f_m(j, s) = (m - j) / m f_{m-1}(j, s) + j / m f_{m-1}(j - 1, s - lifetime_m)

head by head, for subsets of size j of the first m heads; independent groups are convolved. Letters: R runs, N
heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import comb, prod
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from headgates.analysis.extras import Extra
from headgates.gates import HeadMap, HeadSite
from headgates.gates.headmap import check_kinds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = Extra("numpy")

Within = Literal["kind", "layer"]
NO_ROLE = "no role"


def survivors(
    runs: Mapping[str, HeadMap], roles: Mapping[str, HeadMap], *, kinds: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """A row for every run, kind ("all" first) and role ("no role" last); runs with more open heads come
    first. Columns:

    run, heads_open (of the kind), kind, role, heads (open and with that role), at_first (with that role in
    the base), score (each open head counts 1 / its number of roles, so that a kind's scores add up to
    heads_open). runs: True where a head is open. roles: True where a head has the role; a site without a row
    has no such head. Raises ValueError for maps that are not bool or do not fit each other."""
    sites = common_sites(runs, kinds)
    if NO_ROLE in roles:
        raise ValueError(f"{NO_ROLE!r} stands for heads without a role; give that role another name")
    with_role = {role: flat_bools(role, heads, sites) for role, heads in roles.items()}  # each (N,)
    kind_of = [site.kind for site in sites for _ in range(site.heads)]  # N
    roles_of_head = sum(with_role.values(), torch.zeros(len(kind_of), dtype=torch.int64))  # (N,)
    with_role[NO_ROLE] = roles_of_head == 0
    score = 1 / roles_of_head.clamp_min(1).double()  # (N,)
    kinds_present = [kind for kind in check_kinds(kinds) if kind in kind_of]
    of_kind = {
        kind: torch.tensor([kind in ("all", own) for own in kind_of]) for kind in ["all", *kinds_present]
    }
    is_open = {run: flat_bools(run, heads, sites) for run, heads in runs.items()}
    rows = []
    for run, open_heads in sorted(is_open.items(), key=lambda item: -int(item[1].sum())):
        for kind, in_kind in of_kind.items():
            for role, has_role in with_role.items():
                left = open_heads & in_kind & has_role
                rows.append(
                    {
                        "run": run,
                        "heads_open": int((open_heads & in_kind).sum()),
                        "kind": kind,
                        "role": role,
                        "heads": int(left.sum()),
                        "at_first": int((in_kind & has_role).sum()),
                        "score": float(score[left].sum()),
                    }
                )
    return rows


def survive_longer(
    runs: Mapping[str, HeadMap],
    specialised: HeadMap,
    *,
    within: Within = "kind",
    kinds: Iterable[str] | None = None,
) -> list[dict[str, Any]]:
    """The permutation test: a row for "all", whose labels also stay within their group, and one for each
    kind. Columns:

    kind, within, runs, specialised and others (numbers of heads), lifetime_specialised and lifetime_others
    (mean number of runs in which a head is open), difference, p_value, ways (the number of permutations; 1 /
    ways is the smallest possible p). Means, difference and p are None without specialised heads or without
    others. Raises ValueError for maps that are not bool or do not fit each other, and for an unknown
    `within`."""
    if within not in get_args(Within):
        raise ValueError(f"unknown within {within!r}; known: {', '.join(get_args(Within))}")
    sites = common_sites(runs, kinds)
    label = flat_bools("specialised", specialised, sites).numpy()  # (N,)
    lifetime = (
        torch.stack([flat_bools(run, heads, sites) for run, heads in runs.items()]).sum(0).numpy()
    )  # (N,)
    group_of = [
        (site.kind, site.layer if within == "layer" else 0) for site in sites for _ in range(site.heads)
    ]
    kinds_present = [kind for kind in check_kinds(kinds) if any(kind == own for own, _ in group_of)]
    rows = []
    for kind in ["all", *kinds_present]:
        groups = sorted({group for group in group_of if kind in ("all", group[0])})
        members = [np.array([own == group for own in group_of]) for group in groups]
        row = permutation_test([(lifetime[in_group], label[in_group]) for in_group in members])
        rows.append({"kind": kind, "within": within, "runs": len(runs), **row})
    return rows


def any_role(roles: Mapping[str, HeadMap]) -> HeadMap:
    """A bool map over the sites of all maps, True where a head has at least one of the roles. Raises
    ValueError for maps of numbers."""
    heads_with_role: dict[HeadSite, Tensor] = {}
    for role, heads in roles.items():
        for site, row in heads.items():
            if row.dtype != torch.bool:
                raise ValueError(f"role {role!r} must hold one bool for each head; {site.name} has numbers")
            heads_with_role[site] = heads_with_role[site] | row if site in heads_with_role else row
    return HeadMap(heads_with_role)


def permutation_test(groups: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> dict[str, Any]:
    """Return the numbers of the test, given (lifetimes, labels) of each group within which labels are
    permuted."""
    lifetime, label = (np.concatenate(part) for part in zip(*groups, strict=True))
    row: dict[str, Any] = {"specialised": int(label.sum()), "others": int((~label).sum())}
    row |= dict.fromkeys(("lifetime_specialised", "lifetime_others", "difference", "p_value"))
    row["ways"] = prod(comb(len(labels), int(labels.sum())) for _, labels in groups)
    if row["specialised"] and row["others"]:
        means = float(lifetime[label].mean()), float(lifetime[~label].mean())
        distribution = np.ones(1)
        for lifetimes, labels in groups:
            distribution = np.convolve(distribution, sum_distribution(lifetimes, int(labels.sum())))
        sums = np.arange(len(distribution))
        middle = float(distribution @ sums)
        as_far = (
            np.abs(sums - middle) >= abs(int(lifetime[label].sum()) - middle) - 1e-9
        )  # the mean is rounded, the sums are not
        p = min(1.0, float(distribution[as_far].sum()))
        row |= {
            "lifetime_specialised": means[0],
            "lifetime_others": means[1],
            "difference": means[0] - means[1],
            "p_value": p,
        }
    return row


def sum_distribution(values: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """P(sum = s) for s = 0, 1, ..., where the sum is that of a random subset of that size. Values are whole
    numbers of at least 0."""
    f = np.zeros((size + 1, size * int(values.max(initial=0)) + 1))  # (subset size, sum)
    f[0, 0] = 1.0
    for m, value in enumerate(values.tolist(), start=1):
        j = np.arange(size + 1)[:, None]
        shifted = np.zeros_like(f)
        shifted[1:, value:] = f[:-1, : f.shape[1] - value]
        f = (m - j) / m * f + j / m * shifted
    return f[size]


def common_sites(runs: Mapping[str, HeadMap], kinds: Iterable[str] | None) -> list[HeadSite]:
    """Return the sites of these kinds. Raises ValueError where the runs do not all have them, and without a
    run or a site."""
    if not runs:
        raise ValueError("survival is counted over runs, got none")
    chosen = check_kinds(kinds)
    first, *others = runs
    for other in others:
        if list(runs[other]) != list(runs[first]):
            missing = {site.name for site in set(runs[first]) ^ set(runs[other])}
            raise ValueError(
                f"the runs {first!r} and {other!r} do not have the same heads (they differ in "
                f"{', '.join(sorted(missing))}); compare runs "
                "on one base with the same kinds gated"
            )
    sites = [site for site in runs[first] if site.kind in chosen]
    if not sites:
        raise ValueError(f"the runs have no heads of the kinds {', '.join(chosen)}")
    return sites


def flat_bools(name: str, heads: HeadMap, sites: list[HeadSite]) -> Tensor:
    """(N,) bool over the sites; False where the map has no row. Raises ValueError for numbers, and for the
    sites of another model."""
    named = {site.name: site for site in heads}
    for site in sites:
        own = named.get(site.name)
        if own is not None and own != site:
            raise ValueError(
                f"{site.name} has {own.heads} heads in {name!r}, but {site.heads} in the runs; take the "
                "roles of the runs' own base"
            )
        if own is not None and heads[own].dtype != torch.bool:
            raise ValueError(
                f"{name!r} must hold one bool for each head; {site.name} has numbers. Gates: xi.map(lambda "
                "row: row > 0)"
            )
    return torch.cat(
        [heads[site] if site in heads else torch.zeros(site.heads, dtype=torch.bool) for site in sites]
    )
