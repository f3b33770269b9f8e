"""The systems that a speed report compares: the base, the model with closed heads masked and removed, and exports to other runtimes."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from configs.methods import GateMethod, method_of
from models.checkpoint import save_model
from models.formats import FORMATS, export, open_exported, require_packages, without_gates
from models.line_translator import LineTranslator
from models.transformer import Transformer
from runfolder.folder import RunFolder
from runfolder.source import open_source, run_corpus

ENGINES = {  # suffix of a system's name -> format, options when it is opened, label
    "onnx": ("onnx", {}, "ONNX Runtime"),
    "ct2": ("ct2", {"compute_type": "float32"}, "CTranslate2"),
    "ct2-int8": ("ct2", {"compute_type": "int8"}, "CTranslate2 int8"),
}
PARITY_LINES = 20  # sentences of the check that an export ends with
ONE_BATCH = 10**9  # search.batch_tokens with which everything that is given at once is translated at once

Lines = tuple[list[str], list[str]]  # sources and references


@dataclass(frozen=True)
class System:
    """One system of the report, a line of its figure. spec: what `open_system` takes, also in another process; model: the PyTorch model
    with the same weights, whose multiply-adds are counted."""

    name: str
    label: str
    spec: dict[str, Any]
    model: Transformer
    parameters: int
    file_bytes: int  # of its weights, and of its graph or program if that is a separate file

    @property
    def engine(self) -> str:
        """The engine that runs it: "" for PyTorch, or a key of ENGINES."""
        return self.name.partition("-")[2]

    @property
    def against(self) -> str | None:
        """The dense system on the same engine; None for the dense ones."""
        return None if self.name.startswith("dense") else "-".join(["dense", self.engine]).rstrip("-")


def prepare(folder: RunFolder, scratch: Path, test: Lines, *, threads: int) -> tuple[list[System], dict[str, str]]:
    """Return the systems, exported into `scratch` if they run on another engine; and label -> missing package of those left out.

    Raises ValueError if the run has no gates, a base is gone, or an export does not pass its parity check."""
    run_systems, method = folder.systems(), method_of(folder.config())
    compares = "a speed report compares a base with what gates leave of it: give a run of fit.py with gates"
    if method is None:
        raise ValueError(f"{folder.path} is a base, a run without gates; {compares}")
    if missing := [system for system in ("base", method.exact) if system not in run_systems]:
        raise ValueError(f"{folder.path} has no system {missing[0]!r} (it has {', '.join(run_systems)}); {compares}")
    removed_run = folder if method.removed in run_systems else removed_alone(folder, method, scratch / "run")
    translators, systems = {}, []
    for name, system in {"dense": "base", "masked": method.exact, "removed": method.removed}.items():
        run = removed_run if name == "removed" else folder
        translators[name] = open_source(run.path, system, device="cpu").translator
        spec = {"run": str(run.path.resolve()), "system": system, "threads": threads}
        size = (run / run.systems()[system]["weights"]).stat().st_size
        model = translators[name].model
        systems.append(System(name, f"{name}, PyTorch", spec, model, parameters(model), size))
    left_out: dict[str, str] = {}
    for suffix, (format, options, label) in ENGINES.items():
        try:
            require_packages(FORMATS[format].packages)
        except ValueError as error:
            left_out[label] = str(error)
            continue
        for exported in [system for system in systems if system.name in ("dense", "removed")]:
            export_folder = scratch / f"{exported.name}-{format}"
            if not export_folder.is_dir():
                lines, references = (side[:PARITY_LINES] for side in test)
                facts = {"run": folder.path.name, "system": exported.spec["system"]}
                export(translators[exported.name], format, export_folder, lines=lines, references=references, facts=facts)
            spec = {"exported": str(export_folder.resolve()), "format": format, "options": options, "threads": threads}
            size = weights_size(export_folder)
            name, label_here = f"{exported.name}-{suffix}", f"{exported.name}, {label}"
            systems.append(System(name, label_here, spec, exported.model, exported.parameters, size))
    return systems, left_out


def removed_alone(folder: RunFolder, method: GateMethod, path: Path) -> RunFolder:
    """A run folder at `path` that holds only the model without closed heads, for a run that has no such system yet."""
    path.mkdir(parents=True)
    for file in (*folder.path.glob("vocab*.model"), folder / "config.yaml"):
        shutil.copyfile(file, path / file.name)
    weights = path / f"{method.removed}.pt"
    save_model(weights, without_gates(open_source(folder.path, method.exact, device="cpu").translator).model)
    alone = RunFolder(path)
    alone.add_system(method.removed, weights, None)
    return alone


def parameters(model: Transformer) -> int:
    """The number of parameters, without those of gates."""
    return sum(weight.numel() for name, weight in model.named_parameters() if not name.startswith("head_gates."))


def weights_size(folder: Path) -> int:
    """Bytes of an exported folder without its vocabularies and its export.json."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if path.name != "export.json" and not path.match("vocab*.model"))


def open_system(spec: Mapping[str, Any]) -> LineTranslator:
    """The system, on the CPU, set to translate all given lines as one batch."""
    torch.set_num_threads(spec["threads"])
    opened: LineTranslator
    if "exported" in spec:
        opened = open_exported(spec["exported"], threads=spec["threads"], **spec["options"])
    else:
        opened = open_source(spec["run"], spec["system"], device="cpu").translator
    opened.search = replace(opened.search, batch_tokens=ONE_BATCH)
    return opened


def text_of(folder: RunFolder, data_dir: str | None) -> tuple[Lines, dict[str, Any]]:
    """The run's test set and its description. Raises ValueError if the text has changed since."""
    corpus = run_corpus(folder, data_dir)
    sources, references = list(corpus.test.sources), list(corpus.test.targets)
    return (sources, references), {"corpus": corpus.name, "test_sentences": len(sources), "text_digest": corpus.digest()}


def evenly(chosen: Sequence[int], count: int) -> list[int]:
    """`count` of the given indices, evenly spread and in order; repeated where there are fewer."""
    return [chosen[i * len(chosen) // count] for i in range(count)]
