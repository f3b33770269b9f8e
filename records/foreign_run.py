"""Models of other libraries become ordinary run folders: read once for each text, found again by the hash of
their files."""

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headgates.bridges.foreign import ForeignModel
from headgates.configs.own_file import own_file
from headgates.data.atomic_folder import atomic_folder
from headgates.data.cache import locked
from headgates.data.file_digest import kept_digest
from headgates.data.shortlist import SHORTLIST_FILE
from headgates.data.text import reworded
from headgates.data.vocab import VOCAB_ABOUT
from headgates.models.checkpoint import architecture, save_beside
from headgates.records.folder import RunFolder, find_runs
from headgates.records.provenance import device_name, provenance

# beside ValueError and OSError, whose words say enough: where files of another shape than expected send a
# reader
STRANGE = (TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, AssertionError, MemoryError)


def foreign_run(
    prefix: str, foreign: ForeignModel, root: str | Path, options: Mapping[str, Any], text: Mapping[str, Any]
) -> RunFolder:
    """The run folder in `root` that a foreign model became: a finished base, made now or by an earlier
    command.

    options: how it was read, by their names in a SOURCE; text: the
    settings that name its text, none for a model that only translates."""
    for file in foreign.files:
        real = file.resolve()  # a file that the user names may be a link
        own_file(real.parent, real.name)
    read_as = {name: value for name, value in {**options, **text}.items() if name != "data_dir"}
    digests = [kept_digest(file) for file in foreign.files]
    run_hash = files_hash(prefix, digests, read_as)
    weights = f"weights-{files_hash(prefix, digests, {})}.pt"

    def finished() -> RunFolder | None:
        same = (folder for folder in find_runs(root) if folder.run_hash() == run_hash)
        return next((folder for folder in same if folder.finished()), None)

    if (found := finished()) is not None:
        return found
    corpus = [Path(str(text["data"]).rpartition(":")[2]).name] if text.get("data") else []
    folder = RunFolder(Path(root) / "-".join([prefix, foreign.name, *corpus, run_hash[:6]]))
    source = f"{prefix}:{foreign.name}"
    lock = hashlib.sha256(f"{Path(root).resolve()} {run_hash}".encode()).hexdigest()[:16]
    with ExitStack() as until:
        until.enter_context(locked(f"foreign-{lock}"))
        if (found := finished()) is not None:  # made by another process in the meantime
            return found
        draft = RunFolder(until.enter_context(atomic_folder(folder.path)))
        with reworded(f"{source} cannot be read", "copy it again", *STRANGE):
            converted = foreign.convert()
        translator, model = converted.translator, converted.translator.model
        for name, file in converted.tokenizer_files.items():
            shutil.copyfile(file, draft / name)
        if converted.tokenizer:
            draft.write_text(
                VOCAB_ABOUT, json.dumps(converted.tokenizer, indent=1, ensure_ascii=False) + "\n"
            )
        if translator.shortlist is not None:
            translator.shortlist.write(draft / SHORTLIST_FILE)
        # one file for all languages and texts that the model is used with
        save_beside(draft / "best.pt", model, next(Path(root).glob(f"*/{weights}"), None), weights)
        limits = {
            "joint": translator.source_vocab is translator.target_vocab,
            "max_length": min(200, model.config.max_positions - 1),
        }
        settings = {"name": folder.path.name, "model": architecture(model)["model"]}
        settings |= {"data": None} | converted.settings | dict(text)
        settings["text"] = limits | converted.settings.get("text", {})
        origin = source + "".join(f",{name}{value}" for name, value in options.items())
        draft.finish_base(settings, run_hash, {"origin": origin, **provenance(device_name(), "32", 0)})
    # what goes to stdout may be translations
    print(f"{folder.path}: a run made of {source}", file=sys.stderr, flush=True)
    return folder


def files_hash(prefix: str, digests: list[str], settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits of the SHA-256 of the files' digests, in their order, and of the settings."""
    sha = hashlib.sha256(prefix.encode())
    for digest in digests:
        sha.update(bytes.fromhex(digest))
    if settings:
        sha.update(json.dumps(settings, sort_keys=True).encode())
    return sha.hexdigest()[:12]
