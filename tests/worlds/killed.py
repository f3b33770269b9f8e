"""fit.py in processes that are killed (kill -9) at a counted moment, and what is left of a run once its times
are taken out.

Moments: a training step, a validation batch, and of every file that is written whole: half of it, all of it,
its two renames.
"""

import io
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgates.configs.recipe import Recipe
from tests.worlds.ranks import forks

PLANNED = -signal.SIGKILL  # the exit code of a process that was killed as planned
TIMES = ("seconds", "compute", "tokens_per_second", "train_tokens_per_second", "train_seconds")
FACTS = ("command", "commit", "date", "versions", "device")


class Moments:
    """Counts the moments, and kills its own process at one of them (from 1; 0: never)."""

    def __init__(self, deadly: int):
        self.deadly, self.seen = deadly, 0

    def pass_one(self) -> None:
        self.seen += 1
        if self.seen == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self) -> None:
        """Count from here on. For a process of its own: nothing is put back."""
        import torch

        from headgates.lightning_modules.module import StageModule

        replace, save = os.replace, torch.save

        def replace_counted(source: Any, target: Any) -> None:
            self.pass_one()
            replace(source, target)
            self.pass_one()

        def save_in_halves(content: Any, file: Any) -> Any:
            if not hasattr(file, "write"):  # a file of no run
                return save(content, file)
            whole = io.BytesIO()
            save(content, whole)
            half = len(whole.getvalue()) // 2
            file.write(whole.getvalue()[:half])
            file.flush()
            self.pass_one()
            file.write(whole.getvalue()[half:])
            return None

        os.replace, torch.save = replace_counted, save_in_halves
        for name in ("training_step", "validation_step"):
            setattr(StageModule, name, self.before(getattr(StageModule, name)))

    def before(self, step: Any) -> Any:
        def counted(*rest: Any) -> Any:
            self.pass_one()
            return step(*rest)

        return counted


def fit(flags: Sequence[str], recipe: Recipe, deadly: int, count: Any) -> None:
    """The run of a recipe with these settings, in a process of its own. count: a shared number, how many
    moments there were."""
    import torch

    from headgates.configs.cli import read_command
    from headgates.configs.settings import Settings
    from tests.worlds.finished_runs import made

    torch.set_num_threads(1)
    moments = Moments(deadly)
    moments.count()
    made(read_command(Settings, list(flags)), recipe)
    count.value = moments.seen


class Fork:
    """Starts `fit` in processes that begin where all modules are imported."""

    def __init__(self) -> None:
        self.context = forks()

    def fit(self, flags: Sequence[str], recipe: Recipe, *, deadly: int = 0) -> tuple[int, int]:
        """The exit code of the run, and how many moments it had where it ended by itself."""
        count = self.context.Value("i", 0)
        process = self.context.Process(target=fit, args=(list(flags), recipe, deadly, count))
        process.start()
        process.join(240)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError("the run did not end")
        return process.exitcode, count.value


def without(content: Any, names: Sequence[str]) -> Any:
    """JSON without the keys of these names."""
    if isinstance(content, dict):
        return {name: without(value, names) for name, value in content.items() if name not in names}
    return [without(value, names) for value in content] if isinstance(content, list) else content


def left_of(folder: Path) -> dict[str, Any]:
    """Every file of a folder of runs by its path: bytes, and of JSON what is no time and no fact about the
    machine. Left out are the files that say how often a command was repeated, the checkpoint of a finished
    stage, and what is drawn."""
    left_out = ("*.png", "*.html", "*.svg", "command.txt", "config.yaml", "*last.pt")
    return {
        path.relative_to(folder).as_posix(): without(json.loads(path.read_text()), (*TIMES, *FACTS))
        if path.suffix == ".json"
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(path.match(pattern) for pattern in left_out)
    }
