"""What a model is trained for: its data, loss, metrics and evaluation. `task_of` gives the task of a
configuration.

A task is imported when it is asked for: metrics alone, which figures use, need neither torch nor
Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgates.configs.registry import imported

if TYPE_CHECKING:
    from headgates.tasks.base import Task


TASKS: dict[str, str] = {  # name -> "module:class"; configs/tasks.py has the names too
    "translation": "headgates.tasks.translation:Translation",
    "classify": "headgates.tasks.classification:Classification",
}


def task_named(name: str, target_language: str = "") -> Task:
    """The task of this name. Raises ValueError where this version has none such."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; this version has {', '.join(TASKS)}")
    task: Task = imported(TASKS[name])(target_language)
    return task


def task_of(config: Mapping[str, Any]) -> Task:
    """The task of a run by its config.yaml."""
    return task_named(config.get("task", "translation"), config.get("tgt") or "")
