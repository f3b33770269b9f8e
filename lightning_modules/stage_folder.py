"""What a stage of training needs of the folder that it writes to; a run folder has it."""

from pathlib import Path
from typing import Protocol


class StageFolder(Protocol):
    @property
    def path(self) -> Path: ...

    def __truediv__(self, name: str) -> Path:
        """A file of the folder."""
        ...

    def run_hash(self) -> str | None:
        """The hash of what the run is made from, which its checkpoints carry."""
        ...

    def foreign(self, name: str, why: str) -> ValueError:
        """The error for a file that holds something else than a stage writes."""
        ...
