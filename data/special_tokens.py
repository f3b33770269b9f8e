"""The ids of the tokens that are no text: every vocabulary numbers its own, and every model is told them.
Importing this needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MOST_UNKNOWN = 0.1  # share of unknown pieces above which a text is taken to be in another language or script


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of one vocabulary's special tokens; the defaults are those of the vocabularies that this project
    trains.

    `beginning` is what the decoder reads first. It may be the padding (as in Marian's models) or the end (as
    in fairseq's). `forced` are the first pieces of every translation, such as the language it is in: `encode`
    of a target's vocabulary puts them before a line's own pieces, search takes them without asking the model,
    and a score leaves them out. Without `writes_unknown` no translation holds the unknown piece (as by
    Marian). Raises ValueError at a negative id, or where padding and end are one token."""

    padding: int = 0
    beginning: int = 1
    end: int = 2
    unknown: int = 3
    forced: tuple[int, ...] = ()
    writes_unknown: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "forced", tuple(self.forced))  # files hold lists
        if (
            min(self.padding, self.beginning, self.end, self.unknown, *self.forced) < 0
            or self.padding == self.end
        ):
            raise ValueError(
                f"special tokens need ids from 0 on, and padding another one than the end; got {self}"
            )

    @property
    def never_produced(self) -> tuple[int, ...]:
        """Ids that no translation holds, lowest first: padding and beginning, unless the beginning is the
        end, and the unknown piece where it is not written."""
        never = {self.padding, self.beginning} | (set() if self.writes_unknown else {self.unknown})
        return tuple(sorted(never - {self.end}))

    @property
    def always_known(self) -> tuple[int, ...]:
        """Ids that a search must know, whatever the source: all of these tokens."""
        return (self.padding, self.beginning, self.end, self.unknown, *self.forced)

    def renumbered(self, kept: Sequence[int]) -> "SpecialTokens":
        """The same tokens where the ids `kept`, in their order, are now numbered from 0."""
        place = {old: new for new, old in enumerate(kept)}
        padding, beginning, end, unknown = (
            place[i] for i in (self.padding, self.beginning, self.end, self.unknown)
        )
        forced = tuple(place[i] for i in self.forced)
        return SpecialTokens(padding, beginning, end, unknown, forced, self.writes_unknown)

    def unknown_share(self, lines: Sequence[Sequence[int]]) -> float:
        """The share of the ids of lines that are the unknown piece; 0 without any."""
        return sum(list(ids).count(self.unknown) for ids in lines) / max(1, sum(map(len, lines)))

    def is_piece(self, ids: "Tensor") -> "Tensor":
        """Whether each of `ids` (any shape) stands for text, bool: padding, beginning, end and forced pieces
        do not, the unknown piece does."""
        found = (ids != self.padding) & (ids != self.beginning) & (ids != self.end)
        for token in self.forced:
            found &= ids != token
        return found
