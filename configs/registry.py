"""What the tables of methods, scores and tasks name is imported when it is used, so that --help needs no
torch."""

from importlib import import_module
from typing import Any

from headgates.configs.fields import one_line


def imported(path: str) -> Any:
    """The object at "module:name". Raises ValueError where there is none: a table's line is wrong."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"expected module:function, got {path!r}")
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(
            f"{path!r} is not there ({error}); expected 'module:name' of a function or class"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise ValueError(f"{module} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
