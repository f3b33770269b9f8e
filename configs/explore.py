"""Settings of `explore.py`: which models, and where their page is served."""

from dataclasses import dataclass

from headgates.configs.fields import REQUIRED, check_ranges, setting
from headgates.configs.source import is_foreign


@dataclass(frozen=True)
class ExploreConfig:
    """`explore.py`: type a sentence, shut heads, and see what a model does then, on a page of this machine
    alone.

    python explore.py runs/toy-en-de-none-s1
    python explore.py runs/toy-en-de-none-s1 --against runs/toy-en-de-l0-0.01-s1
    python explore.py hf:Helsinki-NLP/opus-mt-en-de --port 0
    """

    source: str = setting(REQUIRED, "a run folder, or a model such as hf:NAME, fairseq:FILE", positional=True)
    system: str | None = setting(
        None, "system of the run: base, l0, l0-removed, importance, ...; default the run's own"
    )
    against: str | None = setting(
        None, "a second model, shown beside the first: RUN, RUN:SYSTEM, or a model such as hf:NAME"
    )
    port: int = setting(8765, "port on 127.0.0.1; 0 for any that is free", at_least=0)
    max_length: int = setting(64, "pieces that a sentence may have", at_least=1)
    threads: int = setting(0, "CPU threads, 0 for all", at_least=0)
    device: str | None = setting(None, "cpu, cuda, cuda:1, ...; default the first GPU if there is one")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.port > 65535:
            raise ValueError(f"--port: expected at most 65535, got {self.port}")

    @property
    def second(self) -> tuple[str, str | None] | None:
        """SOURCE and system of --against."""
        if self.against is None:
            return None
        source, colon, system = self.against.rpartition(":")
        return (self.against, None) if is_foreign(self.against) or not colon else (source, system)
