"""From numbers to roles: what a head is said to do, with the score that says so and the baseline that it has to beat.

    positional    the largest weight is at one offset at least 90% of the time; beside it the mean share of the kind's heads there
    syntactic     a relation at least 10 points more often than the best offset (analysis/syntax.py), one role for each relation
    rare words    one of the two least frequent tokens at least half of the time, and 10 points above picking blindly
    aligned       an aligned source word at least 10 points more often than the best offset; cross attention

A head may have several. Voita et al. 2019, section 5, has the first three; thresholds that it does not give are ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.analyses import Found
from analysis.positions import THRESHOLD
from analysis.syntax import MARGIN
from gates import HeadMap, HeadSite

FAMILIES = ("positional", "syntactic", "rare words", "aligned")
RARE_SHARE = 0.5


@dataclass(frozen=True)
class Role:
    """One role of one head, or what comes nearest. family: of FAMILIES; role: in particular (`position -1`, `nsubj head->dependent`);
    score, baseline, needed (the least score that makes a role): in [0, 1]; words: the same in words."""

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
        """How far the score is below what is needed, at most 0 for a role; a rounding is let pass."""
        return self.needed - self.score - 1e-9

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("family", "role", "score", "baseline", "words")}

    def row(self) -> dict[str, Any]:
        """Of a table."""
        place = {"site": self.site.name, "kind": self.site.kind, "layer": self.site.layer, "head": self.head}
        return {**place, **self.to_json(), "needed": self.needed}


def candidates(found: Mapping[str, Found]) -> list[Role]:
    """What every analysis says of every head, roles or not."""
    readers = (("positions", positional), ("syntax", syntactic), ("rare", rare), ("alignment", aligned))
    return [role for name, read in readers if name in found for role in read(found[name])]


def find_roles(found: Mapping[str, Found]) -> list[Role]:
    """The roles that the analyses give, a head's farthest above its baseline first."""
    roles = [role for role in candidates(found) if role.missing <= 0]
    return sorted(roles, key=lambda role: (role.site, role.head, -role.gain, role.role))


def nearest(found: Mapping[str, Found]) -> list[Role]:
    """Of each family that was looked for what is nearest to its threshold, or farthest above it."""
    everything = candidates(found)
    by_family = ([role for role in everything if role.family == family] for family in FAMILIES)
    return [min(mine, key=lambda role: role.missing) for mine in by_family if mine]


def positional(found: Found) -> list[Role]:
    shares: dict[tuple[str, int], list[float]] = {}  # (kind, offset) -> those of all heads
    for row in found.tables["offsets"]:
        shares.setdefault((row["kind"], row["offset"]), []).append(row["share"])
    roles = []
    for site, head, share in heads_of(found.head_maps["share"]):
        offset = int(found.head_maps["offset"][site][head])
        here = shares[site.kind, offset]
        baseline = sum(here) / len(here)
        place = {-1: "the token before", 0: "the same place", 1: "the token after"}.get(offset, f"offset {offset:+d}")
        words = f"{share:.0%} of its largest weights are at {place}; {site.kind} heads have {baseline:.0%} there on average"
        role = f"position {offset:+d}" if offset else "position 0"
        roles.append(Role(site, head, "positional", role, share, baseline, THRESHOLD, words))
    return roles


def syntactic(found: Found) -> list[Role]:
    sites = {site.name: site for site in found.head_maps["gain"]}
    roles = []
    for row in found.tables["syntax"]:
        score, baseline = row["accuracy"], row["baseline"]
        if score is None:
            continue
        of, to = row["direction"].split("->")
        words = (
            f"from the {of} of {row['label']} it looks at the {to} {score:.0%} of the time; the best fixed offset ({row['offset']:+d}) is "
            f"right {baseline:.0%} of the time, on {row['n']:,} words"
        )
        name = f"{row['label']} {row['direction']}"
        roles.append(Role(sites[row["site"]], row["head"], "syntactic", name, score, baseline, baseline + MARGIN, words))
    return roles


def rare(found: Found) -> list[Role]:
    chance = found.facts["chance_two_rarest"]
    needed = max(RARE_SHARE, chance + MARGIN)
    words = "of its largest weights are on one of the two rarest tokens of the sentence; picked blindly {:.0%} would be"
    return [
        Role(site, head, "rare words", "rare words", share, chance, needed, f"{share:.0%} {words.format(chance)}")
        for site, head, share in heads_of(found.head_maps["two_rarest"])
    ]


def aligned(found: Found) -> list[Role]:
    if "agreement" not in found.head_maps:
        return []
    baseline, offset = found.facts["baseline"], found.facts["baseline_offset"]
    words = f"of its largest weights are on a word aligned to the one produced; the best fixed offset ({offset:+d}) has {baseline:.0%}"
    return [
        Role(site, head, "aligned", "aligned", share, baseline, baseline + MARGIN, f"{share:.0%} {words}")
        for site, head, share in heads_of(found.head_maps["agreement"])
    ]


def heads_of(head_map: HeadMap) -> list[tuple[HeadSite, int, float]]:
    return [(site, head, value) for site, row in head_map.items() for head, value in enumerate(row.tolist())]


def families(roles: list[Role], found: Mapping[str, Found], sites: list[HeadSite]) -> dict[str, HeadMap]:
    """For each family that was looked for, True at the heads that have one of its roles; over all `sites`."""
    looked = {"positional": "positions", "syntactic": "syntax", "rare words": "rare"}
    names = [family for family in FAMILIES if family in looked and looked[family] in found]
    if "alignment" in found and "agreement" in found["alignment"].head_maps:
        names.append("aligned")
    has = {(role.family, role.site, role.head) for role in roles}
    return {name: HeadMap({site: [(name, site, head) in has for head in range(site.heads)] for site in sites}) for name in names}
