"""Training: a Lightning module around any task, gates in it, and what happens at each epoch."""

from headgates.lightning_modules.lean_import import enter_torchmetrics

enter_torchmetrics()  # before a module of this room imports Lightning
