"""How lines are translated: by which model, search and runtime."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import REQUIRED, setting


@dataclass(frozen=True)
class Translating:
    """The model and its search."""

    source: str = setting(REQUIRED, "a run folder, or a folder that `export` wrote", positional=True)
    system: str | None = setting(
        None, "System of the run: base, base-continued or pruned. Default its own; analyze looks at the base."
    )
    beam: int | None = setting(None, "Beam width; 1 is greedy.", at_least=1)
    length_penalty: float | None = setting(
        None,
        "A hypothesis of n tokens scores log p / n**length_penalty. Default the run's own.",
    )
    n_best: int = setting(
        0, "Translations of every line, best first, after its number and a tab; 0: the best.", at_least=0
    )
    scores: bool = setting(False, "Put score and log probability (nats) before every translation.")
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)
    device: str | None = setting(None, "cpu, cuda or cuda:1; without it the first GPU, if any.")
    runtime: Literal["auto", "torch", "bf16", "ct2", "int8"] = setting(
        "auto",
        "What translates: auto, torch, bf16, ct2 or int8. torch is the run's own search, bf16 the same with "
        "rounded weights, ct2 CTranslate2, int8 its form in whole numbers; auto takes the fastest that gives "
        "the same.",
    )
