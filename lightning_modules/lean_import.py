"""Lightning without what torchmetrics imports for metrics that nobody asks for.

Lightning takes two classes of torchmetrics, whose own __init__ imports transformers, scipy.signal and
matplotlib: more than two seconds of each process that trains. Here the package stands in `sys.modules` before
its __init__ has run; it runs when a name beside those two is first asked for."""

import logging
import sys
from importlib import import_module, metadata, util
from typing import Any

NAME = "torchmetrics"
PLACES = {"Metric": "metric", "MetricCollection": "collections"}  # class -> module


def enter_torchmetrics() -> None:
    """Let `import torchmetrics` take the package without its __init__, unless it is imported already."""
    spec = util.find_spec(NAME) if NAME not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, util.module_from_spec(spec)

    def found(name: str) -> Any:
        if name in PLACES:
            import_module(f"{NAME}.utilities")  # first: it and `metric` import each other
            return getattr(import_module(f"{NAME}.{PLACES[name]}"), name)
        if name.startswith("__"):
            raise AttributeError(f"module {NAME!r} has no attribute {name!r}")
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(
        __getattr__=found, __version__=metadata.version(NAME), _logger=logging.getLogger(NAME)
    )
    sys.modules[NAME] = package
