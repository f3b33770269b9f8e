"""Names that a user gives: an unknown one is refused with the name that was meant."""

from collections.abc import Sequence
from difflib import get_close_matches


def check_name(what: str, name: str, names: Sequence[str]) -> None:
    """Raises ValueError, which says the name that was meant or all there are, at one that is not in names."""
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, names)}")


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error's sentence: the name that was meant, or all there are."""
    close = get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"
