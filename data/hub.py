"""Data sets of Hugging Face's hub, by the package `datasets`."""

from collections.abc import Mapping
from typing import Any

from headgates.data.text import reworded

HUB = "hf:"  # before the name of a data set, and after it maybe :CONFIG


def hub_name(place: str) -> str:
    """What a data set is called in the names of files and runs."""
    return place.rstrip("/").replace("/", "-").replace(":", "-").lstrip("-.")


def load_hub(name: str, config: str) -> Mapping[str, Any]:
    """Split -> data set. Raises DataError where the package `datasets` is not installed or cannot read it."""
    whole = f"{HUB}{name}{':' * bool(config)}{config}"
    with reworded(f"{whole} needs the package datasets", "pip install datasets; or give a folder of files"):
        import datasets
    with reworded(f"{whole} cannot be read", "is the name right, or is the network down?"):
        splits: Mapping[str, Any] = datasets.load_dataset(name, config or None)
    return splits
