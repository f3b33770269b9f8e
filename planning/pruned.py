"""What `prune` did to a model, as it prints it."""

from dataclasses import dataclass
from statistics import median

from headgates.gates import FFN_KINDS, KINDS, Subnet
from headgates.planning.cost_table import sites_by_layer


@dataclass(frozen=True)
class Pruned:
    """subnet: what stays of the model as it was. loss: of the held-out batches before and after, in nats per
    `unit`. parameters: before and after. asked: such as {"speedup": 2.0}. predicted: the share of parameters
    or multiply-adds that the plan said would stay, or how many times as fast it said the model would be; None
    for numbers of heads and neurons. measured: the same as it is; of a speed, one number for each round, of
    what `timed` says."""

    subnet: Subnet
    loss: tuple[float, float]
    unit: str
    parameters: tuple[int, int]
    asked: dict[str, float]
    predicted: float | None = None
    measured: tuple[float, ...] = ()
    timed: str = ""

    @property
    def speedup(self) -> float | None:
        """How many times as fast the model is, the median of the rounds; None where no speed was asked
        for."""
        return median(self.measured) if "speedup" in self.asked else None

    def __str__(self) -> str:
        lines = [self.subnet.words, "", *self.table(), "", self.wish()]
        lines += [f"timed       {self.timed}"] * bool(self.timed)
        before, after = self.loss
        lines.append(f"loss        {before:.4f} -> {after:.4f} nats per {self.unit}, held-out batches")
        was, now = self.parameters
        lines.append(f"parameters  {was:,} -> {now:,} ({now / was:.0%})")
        return "\n".join(lines)

    def wish(self) -> str:
        """What was asked for, predicted and measured."""
        asked = ", ".join(f"{name}={number:g}" for name, number in self.asked.items())
        if self.speedup is not None:
            spread = f"{min(self.measured):.2f} to {max(self.measured):.2f}"
            return (
                f"{asked}   {self.predicted:.2f} times as fast by the plan, {self.speedup:.2f} measured "
                f"({len(self.measured)} rounds: {spread})"
            )
        if self.predicted is None:
            return asked
        return f"{asked}   {self.predicted:.3f} by the plan, {self.measured[0]:.3f} measured"

    def table(self) -> list[str]:
        """A row for each layer: the heads and neurons that stay, of how many."""
        rows = []
        for (stack, number), sites in sites_by_layer(self.subnet).items():
            row = [f"{stack}.{number}"]
            for kinds in (KINDS, FFN_KINDS):
                own = [(self.subnet.units[site], site) for kind, site in sites.items() if kind in kinds]
                stay = " + ".join(str(int(units.sum())) for units, _ in own)
                row.append(f"{stay} of {' + '.join(str(site.heads) for _, site in own)}" if own else "")
            gone = not all(map(self.subnet.has, sites.values()))
            rows.append([row[0], "dropped", ""] if gone else row)
        rows.insert(0, ["layer", "heads", "neurons"])
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
