"""A model in the files of other runtimes: torch.export programs, ONNX, CTranslate2, Hugging Face.   Each
format is a line of `FORMATS`.

    export(translator, "onnx", "exported", lines=..., references=..., provenance=...)
    open_exported("exported").translate(["The dog sleeps."])

An exported folder holds the format's files, the vocabularies and export.json, and is all that translating
needs. Closed heads are not in it. It exists only if it passed the parity check, whose numbers stand in
export.json.
"""

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch

from headgates.bridges.parity import parity
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.export import ABOUT
from headgates.configs.fields import one_line
from headgates.configs.json_file import load_json
from headgates.configs.schema import read_search
from headgates.data.atomic_folder import atomic_folder
from headgates.data.file_digest import check_digests, file_digest
from headgates.data.text import reworded
from headgates.data.vocab import ABOUT as VOCAB_ABOUT
from headgates.data.vocab import Vocabulary, load_vocabs
from headgates.gates import GateBank, detach, remove
from headgates.gates.sites import BANK
from headgates.models.checkpoint import architecture, build
from headgates.models.line_translator import LineTranslator
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator, check_size

CURE = "export the run again"


@dataclass(frozen=True)
class Format:
    """How one kind of exported folder is written and opened: by `write(translator, folder)`, a model without
    gates into an existing folder, and `open(folder, shape, **options)` of a module in this room, which is
    imported when one of the two is called. shape: a model without weights, of the folder's architecture."""

    module: str
    packages: tuple[str, ...] = ()  # what writing needs beside torch
    to_open: tuple[str, ...] = ()  # and opening
    trusted: bool = True  # False: opening runs what the files say, so only the export itself opens them

    def write(self, translator: Translator, folder: Path) -> None:
        require_packages(self.packages)
        import_module(f"headgates.bridges.{self.module}").write(translator, folder)

    def open(self, folder: Path, threads: int = 0, **options: Any) -> LineTranslator:
        """threads: of torch and of what else runs the model, so of the whole process; 0 leaves them."""
        require_packages(self.to_open)
        about = read_about(folder)
        if threads:
            torch.set_num_threads(threads)
        shape = build(about["architecture"], "meta")
        module = import_module(f"headgates.bridges.{self.module}")
        found: LineTranslator = module.open(folder, shape, **options)
        found.search = read_search(about["search"], folder)
        return found


def require_packages(packages: Sequence[str]) -> None:
    """Import the packages. Raises ValueError, with the pip line, if one is missing or broken."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name in (package, None)
            state = "is not installed" if missing else f"cannot be imported ({one_line(error)})"
            raise ValueError(
                f"this format needs {', '.join(packages)}; {package} {state}: python -m pip install {package}"
            ) from error


ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
HF_PACKAGES = ("transformers", "safetensors", "sentencepiece")
FORMATS = {
    "torch": Format("torch_export", trusted=False),
    "onnx": Format("onnx", ONNX_PACKAGES, ("onnxruntime",)),
    "ct2": Format("ct2", ("ctranslate2",), ("ctranslate2",)),
    "hf": Format("hf", HF_PACKAGES, HF_PACKAGES),
    "fairseq": Format("fairseq"),
    "marian": Format("marian"),
}


def format_named(name: str) -> Format:
    """Return the format of this name. Raises ValueError at an unknown name."""
    if name not in FORMATS:
        raise ValueError(
            f"unknown format {name!r}{did_you_mean(name, FORMATS)}; expected one of {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def without_gates(translator: Translator) -> Translator:
    """Return the translator with a copy of its model, on the CPU and without gates: closed heads are removed,
    fractional gates are folded into W_O, and the weights need no gradient."""
    model = copy.deepcopy(translator.model).cpu().eval()
    bank = cast("GateBank | None", getattr(model, BANK, None))
    if bank is not None:
        xi = bank.values()
        detach(model)
        remove(model, xi.map(lambda row: row == 0), fold=xi)
    return Translator(
        model.requires_grad_(False), translator.source_vocab, translator.target_vocab, translator.search
    )


def export(
    translator: Translator,
    format: str,
    folder: str | Path,
    *,
    lines: Sequence[str],
    references: Sequence[str],
    provenance: Mapping[str, Any],
    fresh: bool = False,
) -> dict[str, Any]:
    """Write `folder` and return what its export.json says: the format, `provenance` (run, system, versions),
    the search settings, the architecture, the files' sizes in bytes, and the parity of its scores and
    translations of `lines` and `references` with the model's.

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
        ungated = without_gates(translator)
        about: dict[str, Any] = {
            "format": format,
            **provenance,
            "search": asdict(translator.search),
            "architecture": architecture(ungated.model),
            "sha256": {},
        }
        about_file = draft / ABOUT
        about_file.write_text(json.dumps(about), encoding="utf-8")  # for opening it
        copy_vocabs(ungated, draft)
        chosen.write(ungated, draft)
        files = {
            path.relative_to(draft).as_posix(): path
            for path in sorted(draft.rglob("*"))
            if path.is_file() and path != about_file
        }
        about["sha256"] = {name: file_digest(path) for name, path in files.items()}
        about["files"] = {name: path.stat().st_size for name, path in files.items()}
        about["parity"] = parity(translator, chosen.open(draft), lines, references)
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
    """Copy the vocabularies into `folder` under the names that `load_vocabs` expects."""
    source, target = translator.source_vocab, translator.target_vocab
    if source.path.name == VOCAB_ABOUT:
        for path in source.path.parent.glob("vocab*"):
            shutil.copyfile(path, folder / path.name)
        return
    names = (
        {"vocab.model": source}
        if source is target
        else {"vocab.src.model": source, "vocab.tgt.model": target}
    )
    for name, vocab in names.items():
        shutil.copyfile(vocab.path, folder / name)


def is_exported(folder: str | Path) -> bool:
    """Whether `export` wrote this folder."""
    return (Path(folder) / ABOUT).is_file()


def read_about(folder: str | Path) -> dict[str, Any]:
    """Return the content of export.json. Raises ValueError if the file is missing or broken."""
    try:
        about: dict[str, Any] = load_json(
            Path(folder) / ABOUT,
            keys={"format": str, "search": dict, "architecture": dict, "sha256": dict},
            cure=CURE,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} is not an exported folder (it holds no {ABOUT}); python export.py RUN --to FORMAT "
            "makes one"
        ) from None
    return about


def open_exported(folder: str | Path, **options: Any) -> LineTranslator:
    """The model of an exported folder, ready to translate. options: threads (0 for as many as torch has), and
    those of its format, such as compute_type of ct2. Raises ValueError if it is not an exported folder, a
    file is missing, broken or not the one that was written, or a package is missing."""
    folder, about = Path(folder), read_about(folder)
    chosen = format_named(about["format"])
    if not chosen.trusted:
        raise ValueError(
            f"{folder} holds a torch program, and opening one can run code; translate with the run, or "
            "export it --to onnx or ct2"
        )
    check_digests(folder, about["sha256"], cure=CURE)
    check_sizes(about["architecture"], folder)
    return chosen.open(folder, **options)


def check_sizes(description: dict[str, Any], folder: Path) -> None:
    """Raises ValueError where the architecture in export.json has more layers or pieces than the bytes beside
    it can be weights of."""
    there = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    what = f"the architecture in {folder / ABOUT} is not that of the files beside it"
    with reworded(what, CURE, KeyError, TypeError, ValueError):
        model = description["model"]
        layers = model["encoder_layers"] + model["decoder_layers"]
        pieces = max(description["source_vocab"], description["target_vocab"])
        least = layers * 2 * model["d_model"] * model["ffn"] + pieces * model["d_model"]  # of 4 bytes each
        if not (min(layers, pieces, model["d_model"], model["heads"]) > 0 and 4 * least <= there):
            raise ValueError(
                f"{layers} layers, {pieces} pieces and a width of {model['d_model']} in {there:,} bytes"
            )


def sized_vocabs(folder: Path, shape: Transformer) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of an exported folder, as large as the model's embeddings. Raises ValueError where
    they are not, or are broken."""
    source, target = load_vocabs(folder, shape.source_specials, shape.target_specials)
    check_size("source", shape.source_vocab, source)
    check_size("target", shape.target_vocab, target)
    return source, target
