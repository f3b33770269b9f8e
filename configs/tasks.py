"""What a model may be trained for. To add a task: one file with its data, loss, metrics and evaluation
(tasks/base.py says what it has to offer), and a line here. Nothing here imports torch, so that --help answers
at once."""

TASKS: dict[str, str] = {  # name -> "module:class"
    "translation": "headgates.tasks.translation:Translation",
    "classify": "headgates.tasks.classification:Classification",
}
