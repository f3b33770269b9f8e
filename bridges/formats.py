"""A model in the files of other runtimes: ONNX, CTranslate2, Hugging Face, fairseq, Marian.   Each
format is a line of `FORMATS` in exported.py, which opens them again.

    export(translator, "onnx", "exported", lines=..., references=..., provenance=...)

An exported folder holds the format's files, the vocabularies and export.json, and is all that translating
needs. Closed heads are not in it. It exists only if it passed the parity check, whose numbers stand in
export.json.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headgates.bridges.exported import ABOUT, format_named, require_packages
from headgates.bridges.parity import parity
from headgates.configs.own_file import own_files
from headgates.data.atomic_folder import atomic_folder
from headgates.data.file_digest import file_digest
from headgates.data.shortlist import SHORTLIST_FILE
from headgates.data.text import reworded
from headgates.data.vocab import VOCAB_ABOUT
from headgates.gates import GateBank, detach, remove
from headgates.gates.sites import BANK
from headgates.models.checkpoint import architecture
from headgates.models.translator import Translator


def without_gates(translator: Translator) -> Translator:
    """Return the translator with a copy of its model, on the CPU, in fp32 and without gates: closed heads are
    removed, fractional gates are folded into W_O, and the weights need no gradient."""
    model: Any = copy.deepcopy(translator.model).cpu().float().eval().requires_grad_(False)
    bank: GateBank | None = getattr(model, BANK, None)
    if bank is not None:
        xi = bank.values()
        detach(model)
        remove(model, xi.map(lambda row: row == 0), fold=xi)
    return translator.with_model(model)


def export(
    translator: Translator,
    format: str,
    folder: str | Path,
    *,
    lines: Sequence[str],
    references: Sequence[str],
    provenance: Mapping[str, Any],
    aligning: Sequence[tuple[int, int]] = (),
    fresh: bool = False,
) -> dict[str, Any]:
    """Write `folder` and return what its export.json says: the format, `provenance` (run, system, versions),
    the search settings, the architecture, the files' sizes in bytes, and the parity of its scores and
    translations of `lines` and `references` with the model's. aligning: (layer, head) of the cross heads that
    align words, numbered without closed ones, for a format that `aligns`.

    The folder appears whole or not at all; with `fresh` it takes the place of an exported folder. Raises
    ValueError at an unknown format, a package that is missing, a folder that is there already or cannot be
    made, or a failed parity check;
    OSError when a disk is full."""
    chosen, folder = format_named(format), Path(folder)
    require_packages(chosen.packages)
    check_target_folder(folder, fresh)
    with ExitStack() as stack:
        with reworded(f"cannot write in {folder.parent}", "--out takes another folder", OSError):
            draft = stack.enter_context(atomic_folder(folder))
        unlisted = translator.shortlist is not None and not chosen.lists
        if unlisted:
            translator = translator.with_shortlist(None)
        own_type = str(next(translator.model.parameters()).dtype).removeprefix("torch.")
        if own_type != "float32":  # so that what is compared has rounded alike; the caller's stays as it is
            translator = translator.with_model(copy.deepcopy(translator.model).float())
        ungated = without_gates(translator)
        about: dict[str, Any] = {
            "format": format,
            **provenance,
            "search": asdict(translator.search),
            "aligning": [list(each) for each in aligning],
            "architecture": architecture(ungated.model),
            "own_type": own_type,
            "sha256": {},
        }
        about_file = draft / ABOUT
        about_file.write_text(json.dumps(about), encoding="utf-8")  # for opening it
        copy_vocabs(ungated, draft)
        options = {"aligning": aligning} if aligning else {}
        about |= (written := chosen.write(ungated, draft, **options))
        if unlisted:
            about["said"] = f"{format} has no shortlists: it computes all rows of the output layer"
        files = {
            path.relative_to(draft).as_posix(): path
            for path in sorted(draft.rglob("*"))
            if path.is_file() and path != about_file
        }
        about["sha256"] = {name: file_digest(path) for name, path in files.items()}
        about["files"] = {name: path.stat().st_size for name, path in files.items()}
        about["parity"] = parity(
            translator, chosen.open(draft), lines, references, rounded=written.get("rounded", False)
        )
        about_file.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return about


def check_target_folder(folder: Path, fresh: bool) -> None:
    """Raises ValueError if `folder` exists, unless it is an exported one that may be replaced."""
    if not (folder.exists() or folder.is_symlink()):
        return
    if not fresh:
        raise ValueError(f"{folder} exists already; --fresh replaces it, --out takes another folder")
    if not (folder / ABOUT).is_file():
        raise ValueError(
            f"{folder} is not an exported folder (it holds no {ABOUT}), so --fresh leaves it; --out takes "
            "another folder"
        )


def copy_vocabs(translator: Translator, folder: Path) -> None:
    """Copy the vocabularies into `folder` under the names that `load_vocabs` expects, and the shortlist."""
    if translator.shortlist is not None:
        translator.shortlist.write(folder / SHORTLIST_FILE)
    source, target = translator.source_vocab, translator.target_vocab
    if source.path.name == VOCAB_ABOUT:
        for path in own_files(source.path.parent, "vocab*"):
            shutil.copyfile(path, folder / path.name)
        return
    names = (
        {"vocab.model": source}
        if source is target
        else {"vocab.src.model": source, "vocab.tgt.model": target}
    )
    for name, vocab in names.items():
        shutil.copyfile(vocab.path, folder / name)
