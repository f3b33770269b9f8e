"""A model whose heads were closed without training becomes a run: a finished base, which translates, exports
and can be trained on."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgates.configs.cli import config_hash, from_dict, to_yaml
from headgates.configs.schema import FitConfig
from headgates.tasks.base import Predictor
from headgates.workbench.folder import RunFolder
from headgates.workbench.row import ResultRow
from headgates.workbench.source import Source


def check_free(path: Path) -> None:
    """Raises ValueError where something lies at the path of a new run."""
    if path.exists():
        raise ValueError(
            f"{path} is there already, and nothing is overwritten; give --save another name, or remove it "
            f"first"
        )


def save_pruned_run(
    path: Path,
    source: Source,
    predictor: Predictor,
    row: ResultRow,
    outputs: Sequence[str],
    *,
    pruned: dict[str, Any],
    facts: dict[str, Any],
) -> RunFolder:
    """Write the run folder of a model without its closed heads, whole or not at all.

    source: the run that it was made of, whose settings, text and tokenizer it has. row, outputs: what it did
    on the test set, as the system `base`. pruned: what it was made of and how, its `run_hash` too; facts:
    provenance. Raises ValueError
    where the path is taken."""
    check_free(path)
    task, draft = source.task, RunFolder(path.with_name(f".{path.name}.{os.getpid()}"))
    settings = {**source.config, "name": path.name, "gate": "none", "base": None, "runs": str(path.parent)}
    try:
        draft.path.mkdir(parents=True)
        for file in source.folder.path.glob(task.tokenizer_files):
            shutil.copyfile(file, draft / file.name)
        task.save_model(draft / "best.pt", predictor)
        draft.add_system("base", draft / "best.pt", None, tokenizer=task.tokenizer_files)
        draft.write_text("config.yaml", to_yaml(from_dict(FitConfig, settings), run_hash=config_hash(pruned)))
        draft.write_text("command.txt", "\n".join(f"{key}: {value}" for key, value in facts.items()) + "\n")
        draft.write_text("hypotheses/base.txt", "".join(line + "\n" for line in outputs))
        result = {
            "rows": [row.to_json()],
            "system": "base",
            "reference": "base",
            "finished": True,
            "pruned": pruned,
            **facts,
        }
        data = (source.folder.result() or {}).get("data")
        draft.write_json("result.json", result | ({"data": data} if data else {}))
        check_free(path)  # by another process meanwhile
        draft.path.rename(path)
    finally:
        shutil.rmtree(draft.path, ignore_errors=True)
    return RunFolder(path)
