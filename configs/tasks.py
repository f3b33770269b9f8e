"""What a model may be trained for, by name; tasks/__init__.py has the classes. Nothing here imports torch."""

TASK_NAMES = ("translation", "classify")
