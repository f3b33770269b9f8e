"""Libraries that ring 1 can do without: imported at their first use."""

import importlib
from typing import Any


class Extra:
    """A library of the extra `all`, by its name. Its use raises ImportError, which says what to install,
    where it is missing."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(extra(self.name), attribute)


def extra(name: str) -> Any:
    """The module of this name. Raises ImportError, which says what to install, where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"this needs {name} ({error}): pip install '.[all]' in the checkout", name=name
        ) from error
