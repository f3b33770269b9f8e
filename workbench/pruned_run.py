"""A model whose heads were closed without training becomes a run: a finished base, which translates, exports
and can be trained on."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgates.configs.cli import config_hash, from_dict, to_yaml
from headgates.configs.schema import FitConfig
from headgates.data.atomic_folder import atomic_folder
from headgates.tasks.base import Predictor
from headgates.workbench.folder import RunFolder
from headgates.workbench.named_paths import check_free
from headgates.workbench.row import ResultRow
from headgates.workbench.source import Source


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
    task = source.task
    settings = {**source.config, "name": path.name, "gate": "none", "base": None, "runs": str(path.parent)}
    data = (source.folder.result() or {}).get("data")
    result = {"rows": [row.to_json()], "system": "base", "reference": "base", "finished": True}
    result |= {"pruned": pruned, **facts} | ({"data": data} if data else {})
    with atomic_folder(path) as place:
        draft = RunFolder(place)
        for file in source.folder.path.glob(task.tokenizer_files):
            shutil.copyfile(file, draft / file.name)
        task.save_model(draft / "best.pt", predictor)
        draft.add_system("base", draft / "best.pt", None, tokenizer=task.tokenizer_files)
        draft.write_text("config.yaml", to_yaml(from_dict(FitConfig, settings), run_hash=config_hash(pruned)))
        draft.write_text("command.txt", "\n".join(f"{key}: {value}" for key, value in facts.items()) + "\n")
        draft.write_text("hypotheses/base.txt", "".join(line + "\n" for line in outputs))
        draft.write_json("result.json", result)
        check_free(path)  # by another process meanwhile
    return RunFolder(path)
