"""Models of other libraries become ordinary run folders: read once, found again by the hash of their files."""

import hashlib
import shutil
import sys
from pathlib import Path

from configs.cli import from_dict, to_yaml
from configs.schema import FitConfig
from models.checkpoint import architecture, save_model
from models.foreign import ForeignModel
from runfolder.folder import RunFolder, find_runs
from runfolder.provenance import device_name, provenance


def foreign_run(prefix: str, foreign: ForeignModel, root: str | Path) -> RunFolder:
    """The run folder in `root` that a foreign model became: a finished base, made now or by an earlier command."""
    run_hash = files_hash(prefix, foreign.files)
    for folder in find_runs(root):
        if folder.run_hash() == run_hash and folder.finished():
            return folder
    folder = RunFolder(Path(root) / f"{prefix}-{foreign.name}-{run_hash[:6]}")
    print(f"{folder.path}: a run made of {prefix}:{foreign.name}", file=sys.stderr, flush=True)  # what goes to stdout may be translations
    model = foreign.translator.model
    folder.path.mkdir(parents=True, exist_ok=True)
    for name, file in foreign.tokenizer_files.items():
        shutil.copyfile(file, folder / name)
    save_model(folder / "best.pt", model)
    folder.add_system("base", folder / "best.pt", None)
    translator = foreign.translator
    text = {"joint": translator.source_vocab is translator.target_vocab, "max_length": min(200, model.config.max_positions - 1)}
    settings = {"gate": "none", "name": folder.path.name, "model": architecture(model)["model"]} | foreign.settings
    settings["text"] = text | foreign.settings.get("text", {})
    folder.write_text("config.yaml", to_yaml(from_dict(FitConfig, settings), run_hash=run_hash))
    facts = {"origin": f"{prefix}:{foreign.name}", **provenance(device_name(), "32", 0)}
    folder.write_json("result.json", {"rows": [], "system": "base", "reference": "base", "finished": True, **facts})
    return folder


def files_hash(prefix: str, files: list[Path]) -> str:
    """12 hexadecimal digits of the SHA-256 of the files' contents, in their order."""
    sha = hashlib.sha256(prefix.encode())
    for file in files:
        with file.open("rb") as stream:
            sha.update(hashlib.file_digest(stream, "sha256").digest())
    return sha.hexdigest()[:12]
