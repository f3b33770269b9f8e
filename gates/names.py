"""Names and numbers that a user gives: an unknown name is refused with the name that was meant."""

from collections.abc import Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


def check_name(what: str, name: str, names: Sequence[str]) -> None:
    """Raises ValueError, which says the name that was meant or all there are, at one that is not in names."""
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, names)}")


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of an error's sentence: the name that was meant, or all there are."""
    close = get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def check_numeric(what: str, number: Any, *, whole: bool = False, least: float | None = None) -> Any:
    """The number as Python's own, as it may be numpy's. Raises ValueError at what is no number, no whole one,
    or below the least."""
    is_one = isinstance(number, Integral if whole else Real) and not isinstance(number, bool)
    if not is_one or (least is not None and number < least):
        limit = "" if least is None else f" of at least {least}"
        raise ValueError(f"{what}: expected a {'whole ' * whole}number{limit}, got {number!r}")
    return int(number) if isinstance(number, Integral) else float(number)
