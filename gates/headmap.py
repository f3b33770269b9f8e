"""A `HeadMap` gives every attention head of a model a number or a bool: the one currency of selectors, gates
and reports.

Gate values, importance scores, masks and roles are all HeadMaps, so every selector meets the same curve,
removal and report. A feed-forward layer is a site too: a neuron is one column of its output projection as a
head is K columns of W_O. Wherever this room says head, a neuron may stand, a head of width 1. Letters: H
heads of a site.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from .blocks import lowest_in_blocks
from .names import check_name

KINDS = ("enc-self", "dec-self", "cross")  # of attention
FFN_KINDS = ("enc-ffn", "dec-ffn")  # of feed-forward layers
ALL_KINDS = KINDS + FFN_KINDS
KIND_GROUPS = {"heads": KINDS, "ffn": FFN_KINDS, "all": ALL_KINDS}  # words for several kinds
_SITE_NAME = re.compile(rf"(?:(.+)\.)?(encoder|decoder)\.(\d+)\.({'|'.join(ALL_KINDS)})")


@dataclass(frozen=True, order=True)
class HeadSite:
    """One attention or feed-forward layer, written `encoder.0.enc-self`, `decoder.2.cross` or
    `decoder.2.dec-ffn`; layers count from 0. heads: of an attention, or neurons of a feed-forward layer.
    tower: where a model has several encoders, or decoders, the path of this one, written before the rest:
    `vision_model.encoder.0.enc-self`."""

    kind_order: int
    tower: str = field(default="", kw_only=True)
    layer: int
    heads: int

    @classmethod
    def at(cls, kind: str, layer: int, heads: int, *, tower: str = "") -> "HeadSite":
        return cls(ALL_KINDS.index(check_kinds([kind])[0]), layer, heads, tower=tower)

    @classmethod
    def parse(cls, name: str, heads: int) -> "HeadSite":
        match = _SITE_NAME.fullmatch(name)
        if not match or (match[2] == "encoder") != match[4].startswith("enc-"):
            raise ValueError(
                f"expected a site such as 'encoder.0.enc-self' or 'decoder.2.cross', got {name!r}"
            )
        return cls.at(match[4], int(match[3]), heads, tower=match[1] or "")

    @property
    def kind(self) -> str:
        return ALL_KINDS[self.kind_order]

    @property
    def stack(self) -> str:
        """encoder or decoder, after its tower."""
        name = "decoder" if self.in_decoder else "encoder"
        return f"{self.tower}.{name}" if self.tower else name

    @property
    def in_decoder(self) -> bool:
        return not self.kind.startswith("enc-")

    @property
    def name(self) -> str:
        return f"{self.stack}.{self.layer}.{self.kind}"

    def row(self, head: int) -> dict[str, Any]:
        """The columns of a table that say which head it is."""
        return {"site": self.name, "kind": self.kind, "layer": self.layer, "head": head}


Head = tuple[HeadSite, int]


def head_name(head: Head) -> str:
    """Such as encoder.0.enc-self.3."""
    return f"{head[0].name}.{head[1]}"


def is_of(kind: str, word: str) -> bool:
    """Whether a kind is one that the word stands for: "" for all, "heads", "ffn", "all", or itself."""
    return word == "" or kind in KIND_GROUPS.get(word, (word,))


def check_kinds(kinds: Iterable[str] | None) -> tuple[str, ...]:
    """`kinds` in the house's order, those of heads for None; the words "heads", "ffn" and "all" stand for
    several. Raises ValueError at an unknown or empty list."""
    named = KINDS if kinds is None else kinds.split(",") if isinstance(kinds, str) else kinds
    chosen = {kind for name in named for kind in KIND_GROUPS.get(name, (name,))}
    for kind in sorted(chosen):
        check_name("kind of attention", kind, ALL_KINDS)
    if not chosen:
        raise ValueError(f"expected at least one kind of attention of {KINDS}, got none")
    return tuple(kind for kind in ALL_KINDS if kind in chosen)


class HeadMap(Mapping[HeadSite, Tensor]):
    """(site, head) -> number or bool: for every site a tensor (H,) on the CPU, float64 or bool, in the order
    enc-self, dec-self, cross, enc-ffn, dec-ffn. Sites may be given by their names, such as
    `encoder.0.enc-self`."""

    def __init__(self, values: Mapping[HeadSite, Any] | Mapping[str, Any]):
        self._values: dict[HeadSite, Tensor] = {}
        rows = {
            site if isinstance(site, HeadSite) else HeadSite.parse(site, len(row)): row
            for site, row in values.items()
        }
        for site in sorted(rows):
            given = rows[site]
            row = torch.as_tensor(given).detach().cpu()  # before it is float64, which a Mac's GPU lacks
            if row.dtype != torch.bool:
                # from the list itself: by way of its float32 tensor a score would not come back from its file
                whole = isinstance(given, Tensor)
                row = row.double() if whole else torch.as_tensor(given, dtype=torch.float64)
            if row.shape != (site.heads,):
                raise ValueError(
                    f"{site.name} has {site.heads} heads: expected a tensor of shape ({site.heads},), got "
                    f"{tuple(row.shape)}"
                )
            self._values[site] = row

    def __getitem__(self, site: HeadSite | str) -> Tensor:
        if isinstance(site, HeadSite):
            return self._values[site]
        rows = {own.name: row for own, row in self.items()}
        if site not in rows:
            raise KeyError(f"no site {site!r}; known: {list(rows)}")
        return rows[site]

    def __iter__(self) -> Iterator[HeadSite]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "HeadMap(" + ", ".join(f"{site.name}: {row.tolist()}" for site, row in self.items()) + ")"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HeadMap)
            and list(self) == list(other)
            and all(torch.equal(row, other[site]) for site, row in self.items())
        )

    def __invert__(self) -> "HeadMap":
        return self.map(lambda row: ~row)

    @property
    def heads_total(self) -> int:
        return sum(site.heads for site in self)

    def flat(self) -> Tensor:
        """All values as one tensor, site after site."""
        return torch.cat(list(self.values())) if self._values else torch.zeros(0, dtype=torch.float64)

    def sum(self) -> float:
        return float(self.flat().double().sum())

    def count(self) -> int:
        """The number of true (or non-zero) heads, or neurons."""
        return int((self.flat() != 0).sum())

    @property
    def words(self) -> str:
        """How many are true, such as "24 of 48 heads, 512 of 1,536 neurons"."""
        named = ((self.select(kinds), what) for kinds, what in ((KINDS, "heads"), (FFN_KINDS, "neurons")))
        return ", ".join(f"{own.count():,} of {own.heads_total:,} {what}" for own, what in named if own)

    @property
    def kinds(self) -> list[str]:
        """The kinds of its sites."""
        return list(dict.fromkeys(site.kind for site in self))

    def by_kind(self) -> dict[str, float]:
        """The sum over each kind's heads; kinds without a site are left out."""
        return {kind: self.select([kind]).sum() for kind in self.kinds}

    def map(self, change: Callable[[Tensor], Any]) -> "HeadMap":
        return HeadMap({site: change(row) for site, row in self.items()})

    def select(self, kinds: Iterable[str] | None) -> "HeadMap":
        """The rows of these kinds, all unless named."""
        chosen = check_kinds(ALL_KINDS if kinds is None else kinds)
        return HeadMap({site: row for site, row in self.items() if site.kind in chosen})

    def l2_per_layer(self) -> "HeadMap":
        """Each site's values divided by their l2 norm (Michel et al. 2019, section 4.1); a site of zeros
        stays zeros."""
        return self.map(lambda row: row.double() / row.double().norm().clamp_min(1e-300))

    def lowest(self, k: int, *, at_least: int = 0, even: bool = False) -> "HeadMap":
        """True at the k heads of least value, equal ones in the order of sites and heads. Each site keeps
        `at_least` heads, so they may be fewer than asked for. even: each site loses the same share of its
        heads, its own lowest, so that layers stay alike.

        Raises ValueError unless 0 <= k <= heads, when a value is not finite, or where k is no such share."""
        if not 0 <= k <= self.heads_total:
            raise ValueError(
                f"cannot choose {k} heads of {self.heads_total}; expected 0 to {self.heads_total}"
            )
        if not even:
            rows = lowest_in_blocks(list(self.values()), k, [1] * len(self), at_least=at_least)
            return HeadMap(dict(zip(self, rows, strict=True)))
        if uneven := next((site for site in self if k * site.heads % self.heads_total), None):
            raise ValueError(
                f"{k} of {self.heads_total} heads, even, would be {k * uneven.heads / self.heads_total:.2f} "
                f"of the {uneven.heads} of {uneven.name}; give a number that all sites can share"
            )
        return HeadMap(
            {
                site: lowest_in_blocks([row], k * site.heads // self.heads_total, [1], at_least=at_least)[0]
                for site, row in self.items()
            }
        )

    def like(self, flat: Tensor) -> "HeadMap":
        """A HeadMap over the same sites from one flat tensor."""
        rows = flat.split([site.heads for site in self])
        return HeadMap(dict(zip(self, rows, strict=True)))

    def to_json(self) -> dict[str, list[Any]]:
        return {site.name: row.tolist() for site, row in self.items()}

    @classmethod
    def from_json(cls, mapping: Mapping[str, list[Any]]) -> "HeadMap":
        rows = list(mapping.values()) if isinstance(mapping, Mapping) else [None]
        if not all(
            isinstance(row, list) and all(isinstance(value, (int, float)) for value in row) for row in rows
        ):
            raise ValueError(
                "expected a mapping from site names to lists of numbers, such as {'encoder.0.enc-self': "
                "[1.0, 0.0]}"
            )
        return cls(mapping)

    def save(self, path: str | Path) -> None:
        """Write JSON: version, and site name -> list of H values."""
        write_json(path, {"version": 1, **self.to_json()})

    @classmethod
    def load(cls, path: str | Path) -> "HeadMap":
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError(f"expected sites with their numbers, got a {type(content).__name__}")
            if content.pop("version", None) != 1:
                raise ValueError("expected version 1")
            return cls.from_json(content.get("heads", content))
        except (ValueError, RecursionError) as error:  # no JSON or UTF-8, too deep, or no sites and numbers
            raise ValueError(f"{path} is not a HeadMap: {error}; --fresh makes it anew") from error


def is_rising(row: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of numbers of heads, neurons or layers in order, none twice."""
    return (
        isinstance(row, list)
        and all(type(number) is int and number >= 0 for number in row)
        and row == sorted(set(row))
    )


def write_json(path: str | Path, content: Any) -> None:
    """Write JSON under a temporary name, then rename it: after a crash the old file is whole."""
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")  # parallel runs write scores of one base
    partial.unlink(missing_ok=True)
    try:
        with partial.open("x", encoding="utf-8") as file:  # x: a symbolic link of this name is not followed
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
