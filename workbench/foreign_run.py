"""Models of other libraries become ordinary run folders: read once for each text, found again by the hash of
their files."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgates.bridges.foreign import Converted, ForeignModel
from headgates.data.atomic_folder import atomic_folder
from headgates.data.vocab import ABOUT
from headgates.models.checkpoint import architecture, save_model
from headgates.workbench.folder import RunFolder, find_runs
from headgates.workbench.provenance import device_name, provenance


def foreign_run(
    prefix: str, foreign: ForeignModel, root: str | Path, options: Mapping[str, Any], text: Mapping[str, Any]
) -> RunFolder:
    """The run folder in `root` that a foreign model became: a finished base, made now or by an earlier
    command.

    options: how it was read, by their names in a SOURCE; text: the
    settings that name its text, none for a model that only translates."""
    run_hash = files_hash(
        prefix, foreign.files, {**options, **{name: text[name] for name in text if name != "data_dir"}}
    )
    for folder in find_runs(root):
        if folder.run_hash() == run_hash and folder.finished():
            return folder
    label = (
        f"{foreign.name}-{Path(str(text['data']).rpartition(':')[2]).name}"
        if text.get("data")
        else foreign.name
    )
    folder = RunFolder(Path(root) / f"{prefix}-{label}-{run_hash[:6]}")
    with atomic_folder(folder.path) as draft:  # nothing finished is there, or it would have been found
        write_run(
            RunFolder(draft),
            folder.path.name,
            f"{prefix}:{foreign.name}" + "".join(f",{name}{value}" for name, value in options.items()),
            foreign.convert(),
            run_hash,
            text,
        )
    print(
        f"{folder.path}: a run made of {prefix}:{foreign.name}", file=sys.stderr, flush=True
    )  # what goes to stdout may be translations
    return folder


def write_run(
    folder: RunFolder,
    name: str,
    origin: str,
    converted: Converted,
    run_hash: str,
    text: Mapping[str, Any],
) -> None:
    """Fill an own folder with weights, tokenizer, settings and origin."""
    model, translator = converted.translator.model, converted.translator
    folder.path.mkdir(parents=True, exist_ok=True)
    for file_name, file in converted.tokenizer_files.items():
        shutil.copyfile(file, folder / file_name)
    if converted.tokenizer:
        (folder / ABOUT).write_text(
            json.dumps(converted.tokenizer, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    save_model(folder / "best.pt", model)
    limits = {
        "joint": translator.source_vocab is translator.target_vocab,
        "max_length": min(200, model.config.max_positions - 1),
    }
    settings = {"gate": "none", "name": name, "model": architecture(model)["model"], "data": None}
    settings |= converted.settings | dict(text)
    settings["text"] = limits | converted.settings.get("text", {})
    folder.finish_base(settings, run_hash, {"origin": origin, **provenance(device_name(), "32", 0)})


def files_hash(prefix: str, files: list[Path], settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of the files' contents, in their order, and of the settings."""
    sha = hashlib.sha256(prefix.encode())
    for file in files:
        with file.open("rb") as stream:
            sha.update(hashlib.file_digest(stream, "sha256").digest())
    if settings:
        sha.update(json.dumps(settings, sort_keys=True).encode())
    return sha.hexdigest()[:12]
