"""A model in the files of other runtimes: torch.export programs, ONNX, CTranslate2, Hugging Face.   Each
format is a line of `FORMATS`.

    export(translator, "onnx", "exported", lines=..., references=..., facts=...)
    open_exported("exported").translate(["The dog sleeps."])

An exported folder holds the format's files, the vocabularies and export.json, and is all that translating
needs. Closed heads are not in it. It exists only if it passed the parity check, whose numbers stand in
export.json.
"""

import copy
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from headgates.bridges.parity import parity
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.export import ABOUT, EXPORT_FORMATS
from headgates.configs.json_file import Kind, load_json
from headgates.data.atomic_folder import atomic_folder
from headgates.data.file_digest import check_digests, file_digest
from headgates.data.vocab import ABOUT as VOCAB_ABOUT
from headgates.gates import GateBank, detach, remove
from headgates.gates.sites import BANK
from headgates.models.checkpoint import architecture
from headgates.models.line_translator import LineTranslator
from headgates.models.translator import Translator

CURE = "export the run again"


@dataclass(frozen=True)
class Format:
    """How one kind of exported folder is written and opened."""

    write: Callable[[Translator, Path], None]  # a model without gates into an existing folder
    open: Callable[..., LineTranslator]  # open(folder, threads=0, **options)
    about: str
    packages: tuple[str, ...]  # what writing and opening need beside torch
    trusted: bool = True  # False: opening runs what the files say, so only the export itself opens them


def require_packages(packages: Sequence[str]) -> None:
    """Import the packages. Raises ValueError, with the pip line, if one is missing or broken."""
    for package in packages:
        try:
            import_module(package)
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name in (package, None)
            state = "is not installed" if missing else f"cannot be imported ({' '.join(str(error).split())})"
            raise ValueError(
                f"this format needs {', '.join(packages)}; {package} {state}: python -m pip install {package}"
            ) from error


def imported_format(
    name: str,
    module: str,
    *,
    to_write: tuple[str, ...] = (),
    to_open: tuple[str, ...] = (),
    trusted: bool = True,
) -> Format:
    """Return the format of this name, whose `write` and `open` are those of a module in this room.

    The module and the packages that it needs are imported only when one of the two is called."""

    def imported_when_called(function: str, packages: tuple[str, ...]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            require_packages(packages)
            return getattr(import_module(f"headgates.bridges.{module}"), function)(*arguments, **options)

        return call

    return Format(
        imported_when_called("write", to_write),
        imported_when_called("open", to_open),
        EXPORT_FORMATS[name],
        to_write,
        trusted,
    )


ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
HF_PACKAGES = ("transformers", "safetensors", "sentencepiece")
FORMATS: dict[str, Format] = {
    "torch": imported_format("torch", "torch_export", trusted=False),
    "onnx": imported_format("onnx", "onnx", to_write=ONNX_PACKAGES, to_open=("onnxruntime",)),
    "ct2": imported_format("ct2", "ct2", to_write=("ctranslate2",), to_open=("ctranslate2",)),
    "hf": imported_format("hf", "hf", to_write=HF_PACKAGES, to_open=HF_PACKAGES),
    "fairseq": imported_format("fairseq", "fairseq"),
    "marian": imported_format("marian", "marian"),
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
    facts: Mapping[str, Any],
    fresh: bool = False,
) -> dict[str, Any]:
    """Write `folder` and return what its export.json says: the format, `facts` (run, system, provenance), the
    search settings, the architecture, the files' sizes in bytes, and the parity of its scores and
    translations of `lines` and `references` with the model's.

    The folder appears whole or not at all; with `fresh` it takes the place of an exported folder. Raises
    ValueError at an unknown format, a package that is missing, a folder that is there already or cannot be
    made, or a failed parity check;
    OSError when a disk is full."""
    chosen, folder = format_named(format), Path(folder)
    require_packages(chosen.packages)
    check_target_folder(folder, fresh)
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(atomic_folder(folder))
        except OSError as error:
            raise ValueError(
                f"cannot write in {folder.parent} ({error.strerror}); --out takes another folder"
            ) from error
        ungated = without_gates(translator)
        about: dict[str, Any] = {
            "format": format,
            "about": chosen.about,
            **facts,
            "search": asdict(translator.search),
            "architecture": architecture(ungated.model),
            "sha256": {},
        }
        (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        copy_vocabs(ungated, draft)
        chosen.write(ungated, draft)
        files = sorted(path for path in draft.rglob("*") if path.is_file() and path != draft / ABOUT)
        about["sha256"] = {path.relative_to(draft).as_posix(): file_digest(path) for path in files}
        about["files"] = {path.relative_to(draft).as_posix(): path.stat().st_size for path in files}
        about["parity"] = parity(translator, chosen.open(draft), lines, references)
        (draft / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
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
    keys: dict[str, Kind] = {"format": str, "search": dict, "architecture": dict, "sha256": dict}
    try:
        about: dict[str, Any] = load_json(Path(folder) / ABOUT, keys=keys, cure=CURE)
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
    try:
        model = description["model"]
        layers, pieces = (
            model["encoder_layers"] + model["decoder_layers"],
            max(description["source_vocab"], description["target_vocab"]),
        )
        least = (
            layers * 2 * model["d_model"] * model["ffn"] + pieces * model["d_model"]
        )  # in fp32, 4 bytes each
        if not (min(layers, pieces, model["d_model"], model["heads"]) > 0 and 4 * least <= there):
            raise ValueError(
                f"{layers} layers, {pieces} pieces and a width of {model['d_model']} in {there:,} bytes"
            )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"the architecture in {folder / ABOUT} is not that of the files beside it ({error}); {CURE}"
        ) from error
