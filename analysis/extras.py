"""Libraries that ring 1 can do without: imported at their first use."""

import importlib
from typing import Any


class Extra:
    """A library of the extra `all`, by its name. Its use raises ImportError, which says what to install,
    where it is missing."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            return getattr(importlib.import_module(self.name), attribute)
        except ImportError as error:
            raise ImportError(
                f"this needs {self.name} ({error}): pip install '.[all]' in the checkout", name=self.name
            ) from error
