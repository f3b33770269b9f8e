"""An exported folder, opened: what export.json says, and the model in it, ready to translate.

Each format is a line of `FORMATS`. Importing this needs no torch.

    open_exported("exported").translate(["The dog sleeps."])
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import one_line
from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_file, own_files
from headgates.configs.printable import printable
from headgates.configs.program import program
from headgates.configs.settings import read_search
from headgates.data.file_digest import check_digests
from headgates.data.ranks import cpu_threads
from headgates.data.text import reworded
from headgates.data.vocab import Vocabulary, load_vocabs
from headgates.models.description import Description, check_size, read_description
from headgates.models.line_translator import LineTranslator

if TYPE_CHECKING:
    from headgates.models.translator import Translator

ABOUT = "export.json"  # the file that makes a folder an exported one
EXPORT_CURE = "export the run again"
FIRST_CALL = 60  # seconds for opening a model and translating a word, and one more for so many bytes of it
BYTES = 2**23


class ExportRecord(TypedDict):
    """What every export.json has."""

    format: str
    search: dict[str, Any]
    architecture: dict[str, Any]
    sha256: dict[str, str]


@dataclass(frozen=True)
class Format:
    """How one kind of exported folder is written and opened: by `write(translator, folder)`, a model without
    gates into an existing folder, and `open(folder, description, threads, **options)`, of modules in this
    room that are imported when they are called. The one that opens needs no torch where the runtime has
    none."""

    module: str
    about: str  # what is written, and who opens it
    opener: str = ""  # where it is another module
    packages: tuple[str, ...] = ()  # what writing needs beside torch
    to_open: tuple[str, ...] = ()  # and opening
    lists: bool = True  # whether it has shortlists
    aligns: bool = False  # whether `write` takes `aligning`, (layer, head) of cross heads that align words

    def write(self, translator: "Translator", folder: Path, **options: Any) -> dict[str, Any]:
        """What the format says of what it wrote: "rounded", whether weights were, and "said", a line for
        users."""
        return import_module(f"headgates.bridges.{self.module}").write(translator, folder, **options) or {}

    def open(self, folder: Path, threads: int = 0, **options: Any) -> LineTranslator:
        """threads: of torch and of what else runs the model, so of the whole process; 0 leaves them."""
        require_packages(self.to_open)
        about = read_export(folder)
        module = import_module(f"headgates.bridges.{self.opener or self.module}")
        torch = sys.modules.get("torch")
        if threads and torch is not None:
            torch.set_num_threads(threads)
        what = f"the architecture in {folder / ABOUT} is not that of the files beside it"
        with reworded(what, EXPORT_CURE, ValueError):
            description = read_description(about["architecture"])
            check_sizes(description, folder)
        found: LineTranslator = module.open(folder, description, cpu_threads(threads), **options)
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
    "onnx": Format("onnx", "ONNX graphs, for onnxruntime", "onnx_steps", ONNX_PACKAGES, ("onnxruntime",)),
    "ct2": Format(
        "ct2", "a CTranslate2 model", "ct2_search", ("ctranslate2",), ("ctranslate2",), aligns=True
    ),
    "hf": Format(
        "hf",
        "a folder for from_pretrained, or for load_pruned if it is uneven",
        "",
        HF_PACKAGES,
        HF_PACKAGES,
        lists=False,
    ),
    "fairseq": Format("fairseq", "a checkpoint of fairseq with its dictionaries", lists=False),
    "marian": Format("marian", "Marian's .npz, where closed heads are zeros"),
}


def format_named(name: str) -> Format:
    """Return the format of this name. Raises ValueError at an unknown name."""
    if name not in FORMATS:
        raise ValueError(
            f"unknown format {name!r}{did_you_mean(name, FORMATS)}; expected one of {', '.join(FORMATS)}"
        )
    return FORMATS[name]


def is_exported(folder: str | Path) -> bool:
    """Whether `export` wrote this folder."""
    return (Path(folder) / ABOUT).is_file()


def read_export(folder: str | Path) -> dict[str, Any]:
    """Return the content of export.json. Raises ValueError if the file is missing or broken."""
    try:
        about: Any = load_json(own_file(folder, ABOUT), ExportRecord, cure=EXPORT_CURE)
        return dict(about)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{folder} is not an exported folder (it holds no {ABOUT}); {program('export')} RUN "
            "--to FORMAT makes one"
        ) from None


def open_exported(folder: str | Path, **options: Any) -> LineTranslator:
    """The model of an exported folder, ready to translate. options: threads (0 for as many as torch has), and
    those of its format, such as compute_type of ct2. Raises ValueError if it is not an exported folder, a
    file is missing, broken or not the one that was written, or a package is missing. The runtimes of onnx and
    ct2 cannot be interrupted: where one gives no answer to a first line, this process ends."""
    folder, about = Path(folder), read_export(folder)
    chosen = format_named(about["format"])
    seconds = FIRST_CALL + sum(path.stat().st_size for path in own_files(folder)) // BYTES
    check_digests(folder, about["sha256"], cure=EXPORT_CURE)
    with time_limit(seconds, f"error: {folder}: its model gives no answer in {seconds} s; {EXPORT_CURE}"):
        found = chosen.open(folder, **options)
        with reworded(f"{folder} does not translate", EXPORT_CURE):
            found.translate_n_best(["a"], beam=1)
    return found


def check_sizes(model: Description, folder: Path) -> None:
    """Raises ValueError where the model has more numbers than the files in the folder have bytes."""
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    config, whole = model.config, model.config.heads_of_kinds
    layers = {"enc-ffn": config.encoder_layers, "dec-ffn": config.decoder_layers}
    neurons = sum(number * whole[kind] for kind, number in layers.items())
    for name, left in model.heads.items():
        kind = name.rpartition(".")[2]
        neurons -= whole[kind] - left if kind in layers else 0
    # of feed-forward layers and a table alone
    said = (max(model.source_vocab, model.target_vocab) + 2 * neurons) * config.d_model
    if said > there:
        raise ValueError(f"{said:,} numbers in {there:,} bytes")


def sized_vocabs(folder: Path, model: Description) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of an exported folder, as large as the model's embeddings. Raises ValueError where
    they are not, or are broken."""
    source, target = load_vocabs(folder, model.source_specials, model.target_specials)
    check_size("source", model.source_vocab, source)
    check_size("target", model.target_vocab, target)
    return source, target


@contextmanager
def time_limit(seconds: float, line: str) -> Iterator[None]:
    """Print the line and end this process with code 1, unless the block has ended after so many seconds: a
    runtime in C++ that runs a file of others cannot be interrupted."""

    def end() -> None:
        print(printable(line), file=sys.stderr, flush=True)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
