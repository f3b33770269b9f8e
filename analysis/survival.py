"""Roles against pruning: which heads are left when few are left, and do specialised heads survive longer?   Voita et al. 2019
(arXiv:1905.09418), section 6.3 and figure 8.

Roles are those that heads have in the base, before any gate closed. A run says which heads are open; a run for every lambda (or every step
of a greedy pruning) gives each head a lifetime, the number of runs in which it is open. Heads of kinds that no run gates are left out.

The test: T = mean lifetime of the specialised heads - mean lifetime of the others, against all ways to deal out the label "specialised"
anew among the heads of the same kind (within="kind"), or of the same kind and layer (within="layer", which takes away that some layers
survive longer as a whole). p is the share of these ways whose T is at least as large, one-sided. It is exact: lifetimes are whole numbers,
and T grows with the sum of the specialised lifetimes, whose distribution over all subsets of a size is

    f_m(j, s) = (m - j) / m f_{m-1}(j, s) + j / m f_{m-1}(j - 1, s - lifetime_m)

head by head, for subsets of size j of the first m heads; independent groups are convolved. Letters: R runs, N heads.
"""

from collections.abc import Iterable, Mapping
from math import comb, prod
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gates import HeadMap, HeadSite
from gates.headmap import check_kinds

Within = Literal["kind", "layer"]
NO_ROLE = "no role"


def survivors(runs: Mapping[str, HeadMap], roles: Mapping[str, HeadMap], *, kinds: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """A row for every run, kind ("all" first) and role ("no role" last), runs with more open heads first:

    run, heads_open (of the kind), kind, role, heads (open with that role), at_first (with that role in the base), score (each open head
    counts 1 / its number of roles, so that a kind's scores add up to heads_open).
    Sites that a role's map lacks have no head of that role. Raises ValueError at maps that are not bool or do not fit each other."""
    sites = common_sites(runs, kinds)
    if NO_ROLE in roles:
        raise ValueError(f"{NO_ROLE!r} is the name of the heads without a role; call that role otherwise")
    has = {role: flat(role, heads, sites) for role, heads in roles.items()}  # each (N,)
    number = torch.stack([*has.values(), torch.zeros(sum(site.heads for site in sites), dtype=torch.bool)]).sum(0)
    has[NO_ROLE] = number == 0
    each = 1 / number.clamp_min(1).double()  # (N,)
    kind_of = [site.kind for site in sites for _ in range(site.heads)]
    found = [kind for kind in check_kinds(kinds) if kind in kind_of]
    members = {kind: torch.tensor([kind in ("all", own) for own in kind_of]) for kind in ["all", *found]}
    opens = {run: flat(run, heads, sites) for run, heads in runs.items()}
    rows = []
    for run, open_ in sorted(opens.items(), key=lambda item: -int(item[1].sum())):
        for kind, member in members.items():
            for role, with_role in has.items():
                left = open_ & member & with_role
                rows.append(
                    {
                        "run": run,
                        "heads_open": int((open_ & member).sum()),
                        "kind": kind,
                        "role": role,
                        "heads": int(left.sum()),
                        "at_first": int((member & with_role).sum()),
                        "score": float(each[left].sum()),
                    }
                )
    return rows


def survive_longer(
    runs: Mapping[str, HeadMap], specialised: HeadMap, *, within: Within = "kind", kinds: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """The permutation test, a row for each kind and one for "all" (labels still stay within their group):

    kind, within, runs, specialised and others (heads), lifetime_specialised and lifetime_others (mean number of runs open), difference,
    p_value, ways (to deal out the labels; 1 / ways is the smallest p there can be). Means, difference and p are None where there are no
    specialised heads or no others. Raises ValueError at maps that are not bool or do not fit each other, and at an unknown `within`."""
    if within not in get_args(Within):
        raise ValueError(f"unknown within {within!r}; known: {', '.join(get_args(Within))}")
    sites = common_sites(runs, kinds)
    label = flat("specialised", specialised, sites).numpy()  # (N,)
    lifetime = torch.stack([flat(run, heads, sites) for run, heads in runs.items()]).sum(0).numpy()  # (N,)
    group_of = [(site.kind, site.layer if within == "layer" else 0) for site in sites for _ in range(site.heads)]
    found = [kind for kind in check_kinds(kinds) if any(kind == own for own, _ in group_of)]
    rows = []
    for kind in ["all", *found]:
        groups = sorted({group for group in group_of if kind in ("all", group[0])})
        parts = [np.array([own == group for own in group_of]) for group in groups]
        rows.append({"kind": kind, "within": within, "runs": len(runs), **tested([(lifetime[part], label[part]) for part in parts])})
    return rows


def any_role(roles: Mapping[str, HeadMap]) -> HeadMap:
    """True where a head has at least one of the roles; over the sites of all maps."""
    found: dict[HeadSite, Tensor] = {}
    for role, heads in roles.items():
        for site, row in heads.items():
            if row.dtype != torch.bool:
                raise ValueError(f"role {role!r} must hold bools, True where a head has it; {site.name} has numbers")
            found[site] = found[site] | row if site in found else row
    return HeadMap(found)


def tested(groups: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> dict[str, Any]:
    """The test's numbers for (lifetimes, labels) of groups within which labels are dealt out."""
    lifetime, label = (np.concatenate(part) for part in zip(*groups, strict=True))
    row: dict[str, Any] = {"specialised": int(label.sum()), "others": int((~label).sum())}
    row |= dict.fromkeys(("lifetime_specialised", "lifetime_others", "difference", "p_value"))
    row["ways"] = prod(comb(len(labels), int(labels.sum())) for _, labels in groups)
    if row["specialised"] and row["others"]:
        means = float(lifetime[label].mean()), float(lifetime[~label].mean())
        distribution = np.ones(1)
        for lifetimes, labels in groups:
            distribution = np.convolve(distribution, sum_distribution(lifetimes, int(labels.sum())))
        p = min(1.0, float(distribution[int(lifetime[label].sum()) :].sum()))
        row |= {"lifetime_specialised": means[0], "lifetime_others": means[1], "difference": means[0] - means[1], "p_value": p}
    return row


def sum_distribution(values: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """P(sum = s) for s = 0, 1, ... of a subset of that size, all subsets alike; values are whole numbers of at least 0."""
    f = np.zeros((size + 1, size * int(values.max(initial=0)) + 1))  # (subset size, sum)
    f[0, 0] = 1.0
    for m, value in enumerate(values.tolist(), start=1):
        j = np.arange(size + 1)[:, None]
        shifted = np.zeros_like(f)
        shifted[1:, value:] = f[:-1, : f.shape[1] - value]
        f = (m - j) / m * f + j / m * shifted
    return f[size]


def common_sites(runs: Mapping[str, HeadMap], kinds: Iterable[str] | None) -> list[HeadSite]:
    """The sites of the kinds, which all runs must share. Raises ValueError otherwise, and where there is no run or no site."""
    if not runs:
        raise ValueError("survival is counted over runs, got none")
    chosen = check_kinds(kinds)
    first, *others = runs
    for other in others:
        if list(runs[other]) != list(runs[first]):
            missing = {site.name for site in set(runs[first]) ^ set(runs[other])}
            raise ValueError(
                f"the runs {first!r} and {other!r} have not the same heads (they differ in {', '.join(sorted(missing))}); compare runs on "
                "one base with the same kinds gated"
            )
    sites = [site for site in runs[first] if site.kind in chosen]
    if not sites:
        raise ValueError(f"the runs have no heads of the kinds {', '.join(chosen)}")
    return sites


def flat(name: str, heads: HeadMap, sites: list[HeadSite]) -> Tensor:
    """(N,) bool over the sites; False at those that the map lacks. Raises ValueError at numbers or another model's sites."""
    named = {site.name: site for site in heads}
    for site in sites:
        own = named.get(site.name)
        if own is not None and own != site:
            raise ValueError(
                f"{site.name} has {own.heads} heads in {name!r}, but {site.heads} in the runs; roles are those of the runs' own base"
            )
        if own is not None and heads[own].dtype != torch.bool:
            raise ValueError(f"{name!r} must hold bools, one a head; {site.name} has numbers. Gates: xi.map(lambda row: row > 0)")
    return torch.cat([heads[site] if site in heads else torch.zeros(site.heads, dtype=torch.bool) for site in sites])
