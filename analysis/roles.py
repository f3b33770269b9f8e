"""The roles of heads: what a head does, with the score that shows it and the baseline that the score has to
beat.

    positional    the largest weight is at one offset at least 90% of the time; its baseline is the mean
                  share of the kind's heads there
    syntactic     a relation at least 10 points more often than the best offset (analysis/syntax.py), one
                  role for each relation
    rare words    one of the two least frequent tokens at least half of the time, and 10 points above picking
                  blindly
    aligned       an aligned source word at least 10 points more often than the best offset; cross attention

A head may have several roles. The first three are from Voita et al. 2019, section 5; thresholds that the
paper does not give are ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import mean
from typing import Any

import torch

from headgates.analysis.positions import THRESHOLD
from headgates.analysis.results import AnalysisResult, head_map_of
from headgates.analysis.syntax import MARGIN
from headgates.gates import HeadMap, HeadSite

FAMILIES = {  # the analysis that looks for it, and the head map that it then has
    "positional": ("positions", "share"),
    "syntactic": ("syntax", "gain"),
    "rare words": ("rare", "two_rarest"),
    "aligned": ("alignment", "agreement"),
}
RARE_SHARE = 0.5  # the paper names none; its heads have 83% (OpenSubtitles) and over 50% (WMT)


@dataclass(frozen=True)
class Role:
    """A role of a head, or a candidate for one. family: one of FAMILIES; role: which of its roles (`position
    -1`, `nsubj head->dependent`); score, baseline and needed (the lowest score that makes it a role): in [0,
    1]; words: the same as a sentence."""

    site: HeadSite
    head: int
    family: str
    role: str
    score: float
    baseline: float
    needed: float
    words: str

    @property
    def gain(self) -> float:
        return self.score - self.baseline

    @property
    def missing(self) -> float:
        """How far the score is below what is needed, at most 0 for a role. A rounding error does not
        count."""
        return self.needed - self.score - 1e-9

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("family", "role", "score", "baseline", "words")}

    def row(self) -> dict[str, Any]:
        """The role as a row of a table."""
        return {**self.site.row(self.head), **self.to_json(), "needed": self.needed}


def candidates(results: Mapping[str, AnalysisResult]) -> list[Role]:
    """Every role that the analyses looked for at every head, whether the head has it or not."""
    readers = dict(zip(FAMILIES, (positional, syntactic, rare, aligned), strict=True))
    asked = families_asked(results)
    return [role for name in asked for role in readers[name](results[FAMILIES[name][0]])]


def find_roles(results: Mapping[str, AnalysisResult], closed: HeadMap | None = None) -> list[Role]:
    """The roles of all heads but those that are `closed`, whose output nothing reads, by site and head; of
    one head, the role farthest above its baseline comes first."""
    roles = [role for role in candidates(results) if role.missing <= 0 and not is_closed(role, closed)]
    return sorted(roles, key=lambda role: (role.site, role.head, -role.gain, role.role))


def is_closed(role: Role, closed: HeadMap | None) -> bool:
    return closed is not None and role.site in closed and bool(closed[role.site][role.head])


def best_of_families(results: Mapping[str, AnalysisResult], closed: HeadMap | None = None) -> list[Role]:
    """For each family that was looked for, the candidate nearest to its threshold, or farthest above it, of
    heads that are not closed."""
    open_candidates = [role for role in candidates(results) if not is_closed(role, closed)]
    by_family = groupby(open_candidates, key=attrgetter("family"))
    return [min(roles, key=attrgetter("missing")) for _, roles in by_family]


def positional(result: AnalysisResult) -> list[Role]:
    shares: dict[tuple[str, int], list[float]] = {}  # (kind, offset) -> the shares of all heads
    for row in result.tables["offsets"]:
        shares.setdefault((row["kind"], row["offset"]), []).append(row["share"])
    roles = []
    for site, head, share in head_values(result.head_maps["share"]):
        offset = int(result.head_maps["offset"][site][head])
        baseline = mean(shares[site.kind, offset])
        names = {-1: "the token before", 0: "the same place", 1: "the token after"}
        words = (
            f"{share:.0%} of its largest weights are at {names.get(offset, f'offset {offset:+d}')}; "
            f"{site.kind} heads have {baseline:.0%} there on average"
        )
        role = f"position {offset:+d}" if offset else "position 0"
        roles.append(Role(site, head, "positional", role, share, baseline, THRESHOLD, words))
    return roles


def syntactic(result: AnalysisResult) -> list[Role]:
    sites = {site.name: site for site in result.head_maps["gain"]}
    roles = []
    for row in result.tables["syntax"]:
        if (score := row["accuracy"]) is None:
            continue
        baseline, name = row["baseline"], f"{row['label']} {row['direction']}"
        query, key = row["direction"].split("->")
        words = (
            f"from the {query} of {row['label']} it looks at the {key} {score:.0%} of the time; the best "
            f"fixed offset ({row['offset']:+d}) is right {baseline:.0%} of the time, on {row['n']:,} words"
        )
        at = sites[row["site"]], row["head"]
        roles.append(Role(*at, "syntactic", name, score, baseline, baseline + MARGIN, words))
    return roles


def rare(result: AnalysisResult) -> list[Role]:
    chance, rarest = result.facts["chance_two_rarest"], result.head_maps["rarest"]
    needed = max(RARE_SHARE, chance + MARGIN)
    return [
        Role(
            *(site, head, "rare words", "rare words", share, chance, needed),
            f"{share:.0%} of its largest weights are on one of the two rarest tokens of the sentence; picked "
            f"blindly {chance:.0%} would be; {rarest[site][head]:.0%} are on the rarest itself (the paper's "
            "head: 66%)",
        )
        for site, head, share in head_values(result.head_maps["two_rarest"])
    ]


def aligned(result: AnalysisResult) -> list[Role]:
    baseline, offset = result.facts["baseline"], result.facts["baseline_offset"]
    return [
        Role(
            *(site, head, "aligned", "aligned", share, baseline, baseline + MARGIN),
            f"{share:.0%} of its largest weights are on a word aligned to the one produced; the best fixed "
            f"offset ({offset:+d}) has {baseline:.0%}",
        )
        for site, head, share in head_values(result.head_maps["agreement"])
    ]


def head_values(head_map: HeadMap) -> list[tuple[HeadSite, int, float]]:
    return [(site, head, value) for site, row in head_map.items() for head, value in enumerate(row.tolist())]


def families_asked(results: Mapping[str, AnalysisResult]) -> dict[str, list[HeadSite]]:
    """For each family that was looked for, the sites whose heads were asked for it."""
    maps = {name: head_map_of(results, *where) for name, where in FAMILIES.items()}
    return {name: list(head_map) for name, head_map in maps.items() if head_map is not None}


def families(
    roles: Sequence[Role], results: Mapping[str, AnalysisResult], sites: list[HeadSite]
) -> dict[str, HeadMap]:
    """For each family that was looked for, a bool map over all `sites`: True where a head has a role of the
    family."""
    have = {(role.family, role.site, role.head) for role in roles}
    return {
        name: HeadMap(
            {
                site: torch.tensor([(name, site, head) in have for head in range(site.heads)]).bool()
                for site in sites  # which may have no head left
            }
        )
        for name in families_asked(results)
    }
