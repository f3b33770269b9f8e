"""The numbers of heads or neurons that a plan may leave at a site.

Heads that share a key head go together, neurons in blocks that processors multiply at once, and an attention
that cannot run without heads keeps some.
"""

from dataclasses import dataclass

from torch import nn

from headgates.gates import FFN_KINDS, WIDTH, HeadSite
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of
from headgates.gates.targets import least_of

NEURON_SHARES = tuple(share / 10 for share in range(11))  # of a layer's neurons that a plan may keep
MEASURED_NUMBERS = 5  # of many numbers, those that are measured beside the first


def measured_numbers(most: int) -> list[int]:
    """Of the numbers from 0 up to the most, those whose loss is measured: all, or of many a few, more of the
    small ones, where losses change most."""
    if most <= MEASURED_NUMBERS:
        return [*range(most + 1)]
    return sorted({round(most * (i / MEASURED_NUMBERS) ** 1.5) for i in range(MEASURED_NUMBERS + 1)})


@dataclass(frozen=True)
class Widths:
    """step: units that close together, but for those beyond its multiples; least: units that always stay."""

    site: HeadSite
    step: int
    least: int

    @classmethod
    def of(cls, site: HeadSite, module: nn.Module, multiple: int = WIDTH) -> "Widths":
        """multiple: of neurons."""
        step = multiple if site.kind in FFN_KINDS else group_of(module, rule_of(module))
        return cls(site, step, least_of(site, module, step))

    @property
    def all(self) -> list[int]:
        """Rising, from the least to all."""
        heads, step = self.site.heads, self.step
        if self.site.kind in FFN_KINDS:
            found = {min(heads, step * round(heads * share / step)) for share in NEURON_SHARES}
        else:
            found = {*range(heads, -1, -step)}
        return sorted({self.least, heads} | {width for width in found if width > self.least})

    @property
    def measured(self) -> list[int]:
        """Of them those whose loss is measured; between, it is on a straight line."""
        return [self.all[place] for place in measured_numbers(len(self.all) - 1)]

    def below(self, width: int) -> int:
        """The next smaller number, in single steps; the same at the least."""
        return max(self.least, (width - 1) // self.step * self.step) if width > self.least else width

    def above(self, width: int) -> int:
        """The next larger number, in single steps; the same at all."""
        return min(self.site.heads, (width // self.step + 1) * self.step)

    def share(self, share: float) -> int:
        """So large a share of the units, rounded to steps."""
        kept = round(self.site.heads * share)
        if kept == self.site.heads:
            return kept
        return min(self.site.heads, max(self.least, self.step * round(kept / self.step)))
