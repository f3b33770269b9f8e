"""Settings of `translate.py`: which model, how it searches, where lines come from and go to."""

from dataclasses import dataclass
from typing import Literal

from headgates.configs.fields import REQUIRED, check_ranges, setting


@dataclass(frozen=True)
class TranslateConfig:
    """`translate.py`: lines in, lines out, in order, from any run.

    echo "The old dog sleeps." | python translate.py runs/toy-en-de-l0-0.01-s1
    python translate.py runs/toy-en-de-l0-0.01-s1 --input lines.en --output lines.de --beam 5
    """

    source: str = setting(REQUIRED, "a run folder, or a folder that export wrote", positional=True)
    system: str | None = setting(
        None, "system of the run: base, l0, l0-removed, importance, ...; default the run's own"
    )
    beam: int | None = setting(None, "beam width; 1 is greedy; default the run's own", at_least=1)
    length_penalty: float | None = setting(
        None, "a hypothesis of n tokens scores log p / n**length_penalty; default the run's own", at_least=0
    )
    batch_tokens: int = setting(
        0, "source pieces, padding counted, times beam, translated at once; 0 for the run's own", at_least=0
    )
    window: int = setting(
        1000,
        "lines read ahead at most, to be sorted by length; the first windows are smaller",
        at_least=1,
        rare=True,
    )
    n_best: int = setting(
        0,
        "write so many translations of every line, best first, each after the line's number and a tab; "
        "0: the best alone",
        at_least=0,
    )
    scores: bool = setting(
        False, "put the score and the log probability (nats) before every translation, each followed by a tab"
    )
    max_length: int = setting(
        1000, "pieces a line may have; never more than the model has positions for", at_least=1
    )
    too_long: Literal["stop", "empty"] = setting(
        "stop",
        "a line of more pieces: stop with an error that names it, or leave its translation empty, say "
        "so, and go on",
    )
    input: str | None = setting(None, "file to translate; default standard input")
    output: str | None = setting(
        None, "file to write, which appears whole at the end or not at all; default standard output"
    )
    threads: int = setting(0, "CPU threads, 0 for all", at_least=0)
    device: str | None = setting(None, "cpu, cuda, cuda:1, ...; default the first GPU if there is one")
    runtime: Literal["auto", "torch", "ct2", "int8"] = setting(
        "auto",
        "what translates: the run's own search (torch); CTranslate2 (ct2, or int8 of it), exported into "
        "the run's folder on first use; or auto, CTranslate2 on a CPU where it is faster and gives the same "
        "lines",
    )
    quiet: bool = setting(False, "no progress on standard error")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.beam:
            self.check_beam(self.beam)

    def check_beam(self, beam: int) -> None:
        """Raises ValueError where more translations of a line are wanted than a beam of this width finds."""
        if self.n_best > beam:
            raise ValueError(
                f"--n-best: expected at most the beam width, {beam}, got {self.n_best}; give --beam "
                f"{self.n_best} too"
            )
