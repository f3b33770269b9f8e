"""The hint of an error message at a mistyped name. Importing this needs the standard library alone."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known_names: Iterable[str], *, prefix: str = "") -> str:
    """Return " (did you mean 'X'?)" with the known name most like `name`, or "" if none is like it; `prefix`
    is shown before X."""
    close = get_close_matches(name, list(known_names), n=1)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""
