"""What a model is trained for: its data, loss, metrics and evaluation. `task_of` gives the task of a
configuration.

A task is imported when it is asked for: metrics alone, which figures use, need neither torch nor
Lightning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgates.configs.registry import imported
from headgates.tasks.own_metric import own_metric

if TYPE_CHECKING:
    from headgates.tasks.base import Task


TASKS: dict[str, str] = {  # name -> "module:class"; configs/tasks.py has the names too
    "translation": "headgates.tasks.translation:Translation",
    "classify": "headgates.tasks.classification:Classification",
}


def task_named(name: str, target_language: str = "", metrics: Sequence[str] = ()) -> Task:
    """The task of this name. metrics: module:function of each further one. Raises ValueError where this
    version has none such, or a metric is not there."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; this version has {', '.join(TASKS)}")
    task: Task = imported(TASKS[name])(target_language, [*map(own_metric, metrics)])
    return task


def task_of(config: Mapping[str, Any]) -> Task:
    """The task of a run by its config.yaml, with the metrics of the task alone: code that a file names is not
    run."""
    return task_named(config.get("task", "translation"), config.get("tgt") or "")
