"""Models of other libraries become ordinary run folders: read once for each text, found again by the hash of
their files."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headgates.bridges.foreign import ForeignModel
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
    read_as = {name: value for name, value in {**options, **text}.items() if name != "data_dir"}
    run_hash = files_hash(prefix, foreign.files, read_as)
    for folder in find_runs(root):
        if folder.run_hash() == run_hash and folder.finished():
            return folder
    corpus = [Path(str(text["data"]).rpartition(":")[2]).name] if text.get("data") else []
    folder = RunFolder(Path(root) / "-".join([prefix, foreign.name, *corpus, run_hash[:6]]))
    source = f"{prefix}:{foreign.name}"
    with atomic_folder(folder.path) as place:  # nothing finished is there, or it would have been found
        draft, converted = RunFolder(place), foreign.convert()
        translator, model = converted.translator, converted.translator.model
        for name, file in converted.tokenizer_files.items():
            shutil.copyfile(file, draft / name)
        if converted.tokenizer:
            draft.write_text(ABOUT, json.dumps(converted.tokenizer, indent=1, ensure_ascii=False) + "\n")
        save_model(draft / "best.pt", model)
        limits = {
            "joint": translator.source_vocab is translator.target_vocab,
            "max_length": min(200, model.config.max_positions - 1),
        }
        settings = {"gate": "none", "name": folder.path.name, "model": architecture(model)["model"]}
        settings |= {"data": None} | converted.settings | dict(text)
        settings["text"] = limits | converted.settings.get("text", {})
        origin = source + "".join(f",{name}{value}" for name, value in options.items())
        draft.finish_base(settings, run_hash, {"origin": origin, **provenance(device_name(), "32", 0)})
    # what goes to stdout may be translations
    print(f"{folder.path}: a run made of {source}", file=sys.stderr, flush=True)
    return folder


def files_hash(prefix: str, files: list[Path], settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of the files' contents, in their order, and of the settings."""
    sha = hashlib.sha256(prefix.encode())
    for file in files:
        with file.open("rb") as stream:
            sha.update(hashlib.file_digest(stream, "sha256").digest())
    if settings:
        sha.update(json.dumps(settings, sort_keys=True).encode())
    return sha.hexdigest()[:12]
