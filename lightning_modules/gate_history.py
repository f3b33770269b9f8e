"""Where every gate stood from step to step, as a file."""

from pathlib import Path

import numpy as np

from headgates.data.atomic_file import atomic_file
from headgates.gates import GateBank
from headgates.gates.bank import by_head
from headgates.lightning_modules.remembers import Remembers


class GateHistory(Remembers):
    """gates_history.npz: steps (n,), log_alpha (n, heads) and the names of the heads (heads,), with a row
    every `every` steps. Another kind of gate than Hard Concrete has its own position in place of
    log_alpha."""

    remembered = ("steps", "values")

    def __init__(self, path: Path, every: int = 20):
        self.path, self.every = path, every
        self.steps: list[int] = []
        self.values: list[list[float]] = []

    def add(self, bank: GateBank, step: int) -> None:
        """Add a row where one is due and not there yet."""
        if step % self.every == 0 and step not in self.steps[-1:]:
            self.steps.append(step)
            rows = (by_head(site, gate.position()) for site, gate in bank.items())
            self.values.append([x for row in rows for x in row.tolist()])

    def write(self, bank: GateBank) -> None:
        heads = [f"{site.name}.{head}" for site in bank.sites for head in range(site.heads)]
        log_alpha = np.array(self.values, dtype=np.float32)
        with atomic_file(self.path) as file:
            np.savez_compressed(file, steps=np.array(self.steps), log_alpha=log_alpha, heads=np.array(heads))
