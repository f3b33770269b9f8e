"""What a model is trained for: its data, loss, metrics and evaluation. `task_of` gives the task of a configuration."""

from collections.abc import Mapping
from typing import Any

from configs.registry import imported
from configs.tasks import TASKS
from tasks.base import Predictor, Task

__all__ = ["Predictor", "Task", "task_named", "task_of"]


def task_named(name: str) -> Task:
    """The task of this name. Raises ValueError where this version has none such."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; this version has {', '.join(TASKS)}")
    return imported(TASKS[name])()


def task_of(config: Mapping[str, Any]) -> Task:
    """The task of a run by its config.yaml; runs from before there were tasks translate."""
    return task_named(config.get("task", "translation"))
