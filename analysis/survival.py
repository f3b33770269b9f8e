"""Which heads stay open when few are left, by their roles, and whether specialised heads survive longer.
Voita et al. 2019 (arXiv:1905.09418), section 6.3 and figure 8.

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

from headgates.analysis.extras import Extra
from headgates.gates import KINDS, HeadMap, HeadSite
from headgates.gates.headmap import check_kinds
from headgates.gates.names import check_name

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
    with_role = {role: flat_bools(role, heads, sites) for role, heads in roles.items()}  # each (N,)
    number = sum(with_role.values(), np.zeros(1, dtype=int))
    with_role[NO_ROLE] = number == 0
    score = 1 / np.maximum(number, 1)
    is_open = {run: flat_bools(run, heads, sites) for run, heads in runs.items()}
    rows = []
    for run, open_heads in sorted(is_open.items(), key=lambda item: -item[1].sum()):
        for kind, in_kind in heads_by_kind(sites).items():
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
                        "score": float((score * left).sum()),
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
    check_name("within", within, get_args(Within))
    sites = common_sites(runs, kinds)
    label = flat_bools("specialised", specialised, sites)  # (N,)
    lifetime = np.sum([flat_bools(run, heads, sites) for run, heads in runs.items()], axis=0)  # (N,)
    group = np.array(
        [(site.kind_order, site.layer * (within == "layer")) for site in sites for _ in range(site.heads)]
    )
    rows = []
    for kind, in_kind in heads_by_kind(sites).items():
        members = [in_kind & (group == each).all(1) for each in np.unique(group[in_kind], axis=0)]
        row = permutation_test([(lifetime[some], label[some]) for some in members])
        rows.append({"kind": kind, "within": within, "runs": len(runs), **row})
    return rows


def any_role(roles: Mapping[str, HeadMap]) -> HeadMap:
    """A bool map over the sites of all maps, True where a head has at least one of the roles."""
    with_role: dict[HeadSite, Any] = {}
    for heads in roles.values():
        for site, row in heads.items():
            with_role[site] = with_role.get(site, False) | row
    return HeadMap(with_role)


def permutation_test(groups: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> dict[str, Any]:
    """Return the numbers of the test, given (lifetimes, labels) of each group within which labels are
    permuted."""
    lifetime, label = (np.concatenate(part) for part in zip(*groups, strict=True))
    row: dict[str, Any] = {"specialised": int(label.sum()), "others": int((~label).sum())}
    row |= dict.fromkeys(("lifetime_specialised", "lifetime_others", "difference", "p_value"))
    row["ways"] = prod(comb(len(labels), int(labels.sum())) for _, labels in groups)
    if row["specialised"] and row["others"]:
        row["lifetime_specialised"] = float(lifetime[label].mean())
        row["lifetime_others"] = float(lifetime[~label].mean())
        row["difference"] = row["lifetime_specialised"] - row["lifetime_others"]
        distribution = np.ones(1)
        for lifetimes, labels in groups:
            distribution = np.convolve(distribution, sum_distribution(lifetimes, int(labels.sum())))
        distance = np.abs(np.arange(len(distribution)) - distribution @ np.arange(len(distribution)))
        # the mean is rounded, the sums are not
        as_far = distance >= distance[lifetime[label].sum()] - 1e-9
        row["p_value"] = min(1.0, float(distribution[as_far].sum()))
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


def heads_by_kind(sites: list[HeadSite]) -> dict[str, NDArray[np.bool_]]:
    """For "all" and each kind that there is, which of the N heads are of it."""
    kind_of = np.array([site.kind for site in sites for _ in range(site.heads)])
    return {"all": kind_of != "", **{kind: kind_of == kind for kind in KINDS if kind in kind_of}}


def common_sites(runs: Mapping[str, HeadMap], kinds: Iterable[str] | None) -> list[HeadSite]:
    """Return the sites of these kinds. Raises ValueError where the runs do not all have the same, and without
    a run or a site."""
    if not runs:
        raise ValueError("survival is counted over runs, got none")
    first, *others = (list(head_map.select(kinds)) for head_map in runs.values())
    if any(sites != first for sites in others):
        raise ValueError(
            f"the runs {', '.join(runs)} do not have the same heads; compare runs on one base with the same "
            "kinds gated"
        )
    if not first:
        raise ValueError(f"the runs have no heads of the kinds {', '.join(check_kinds(kinds))}")
    return first


def flat_bools(name: str, heads: HeadMap, sites: list[HeadSite]) -> NDArray[np.bool_]:
    """(N,) bool over the sites; False where the map has no row. Raises ValueError for numbers, and for the
    sites of another model."""
    known = {site.name: site for site in sites}
    for site, row in heads.items():
        if site.name in known and (site != known[site.name] or row.dtype != torch.bool):
            raise ValueError(
                f"{name!r} must hold one bool for each of the {known[site.name].heads} heads of {site.name}, "
                f"got {site.heads} of {row.dtype}; take the roles of the runs' own base, and of gates xi > 0"
            )
    return np.concatenate([heads[site] if site in heads else np.zeros(site.heads, bool) for site in sites])
