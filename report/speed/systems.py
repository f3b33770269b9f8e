"""The systems that a speed report compares: the base, the model with closed heads masked and removed, and
exports to other runtimes."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headgates.bridges.formats import FORMATS, export, open_exported, require_packages
from headgates.configs.methods import GateMethod, method_of
from headgates.gates import detach, remove
from headgates.gates.sites import BANK
from headgates.models.line_translator import LineTranslator
from headgates.models.translator import Translator
from headgates.report.speed.one_answer import OneAnswer
from headgates.workbench.folder import RunFolder
from headgates.workbench.scores import ScoreRequest, closed_by, head_scores
from headgates.workbench.source import Source, open_source, run_corpus

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
    """One system of the report, a line of its figure. spec: what `open_system` takes, also in another
    process; model: the PyTorch model with the same weights, whose multiply-adds are counted."""

    name: str
    label: str
    spec: dict[str, Any]
    model: Any
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


def prepare(
    folder: RunFolder, scratch: Path, test: Lines, *, threads: int, closed: float | None = None
) -> tuple[list[System], dict[str, str]]:
    """Return the systems, exported into `scratch` if they run on another engine; and label -> why, of the
    engines left out: a package is missing, or the export is refused, or fails its parity check.

    closed: the share of a base's heads, of the lowest gradient importance, that are closed in place of what
    gates learned. Raises ValueError if the run has no gates or a base is gone."""
    run_systems, method = folder.systems(), method_of(folder.config())
    compares = "a speed report compares a base with what gates leave of it: give a run of fit.py with gates, or --closed SHARE"
    if closed is not None:
        folder = removed_run = closed_by_importance(folder, closed, scratch / "run")
        names = {"dense": "base", "masked": "masked", "removed": "removed"}
    elif method is None:
        raise ValueError(f"{folder.path} is a base, a run without gates; {compares}")
    elif missing := [system for system in ("base", method.exact) if system not in run_systems]:
        raise ValueError(
            f"{folder.path} has no system {missing[0]!r} (it has {', '.join(run_systems)}); {compares}"
        )
    else:
        removed_run = (
            folder if method.removed in run_systems else removed_alone(folder, method, scratch / "run")
        )
        names = {"dense": "base", "masked": method.exact, "removed": method.removed}
    translators: dict[str, Any] = {}
    systems = []
    for name, system in names.items():
        run = removed_run if name == "removed" else folder
        translators[name] = timed(open_source(run.path, system, device="cpu"))
        spec = {"run": str(run.path.resolve()), "system": system, "threads": threads}
        size = (run / run.systems()[system]["weights"]).stat().st_size
        model = (
            translators[name].predictor.model
            if isinstance(translators[name], OneAnswer)
            else translators[name].model
        )
        systems.append(System(name, f"{name}, PyTorch", spec, model, parameters(model), size))
    left_out: dict[str, str] = {}
    if isinstance(translators["dense"], OneAnswer):
        return systems, {"every other engine": "exports are of translation models"}
    both = [system for system in systems if system.name in ("dense", "removed")]
    for suffix, (format, options, label) in ENGINES.items():
        folders = {exported.name: scratch / f"{exported.name}-{format}" for exported in both}
        try:
            require_packages(FORMATS[format].packages)
            for exported in both:
                if not folders[exported.name].is_dir():
                    lines, references = (side[:PARITY_LINES] for side in test)
                    facts = {"run": folder.path.name, "system": exported.spec["system"]}
                    export(
                        translators[exported.name],
                        format,
                        folders[exported.name],
                        lines=lines,
                        references=references,
                        facts=facts,
                    )
        except ValueError as error:
            left_out[label] = str(error)
            continue
        for exported in both:
            export_folder = folders[exported.name]
            spec = {
                "exported": str(export_folder.resolve()),
                "format": format,
                "options": options,
                "threads": threads,
            }
            size = weights_size(export_folder)
            name, label_here = f"{exported.name}-{suffix}", f"{exported.name}, {label}"
            systems.append(System(name, label_here, spec, exported.model, exported.parameters, size))
    return systems, left_out


def removed_alone(folder: RunFolder, method: GateMethod, path: Path) -> RunFolder:
    """A run folder at `path` that holds only the model without closed heads, for a run that has no such
    system yet."""
    source = open_source(folder.path, method.exact, device="cpu")
    alone = like(source, path)
    add_removed(alone, method.removed, source)
    return alone


def closed_by_importance(folder: RunFolder, share: float, path: Path) -> RunFolder:
    """A run folder at `path` with the systems base, masked and removed: a base, and it with this share of its
    heads closed, those of the lowest gradient importance. A run with gates stands for its base."""
    source = open_source(folder.path, dense=True, device="cpu")
    scores = head_scores("gradient", ScoreRequest(source))
    xi = (~closed_by("gradient", scores, keep=scores.heads_total - round(share * scores.heads_total))).map(
        lambda row: row.double()
    )
    alone, weights = like(source, path), source.folder / source.folder.systems()["base"]["weights"]
    alone.add_system("base", weights, None)
    alone.add_system("masked", weights, xi.to_json())
    add_removed(alone, "removed", open_source(path, "masked", device="cpu"))
    return alone


def like(source: Source, path: Path) -> RunFolder:
    """A new run folder with the settings and the tokenizer of a source's, and without systems."""
    path.mkdir(parents=True)
    for file in (*source.folder.path.glob(source.task.tokenizer_files), source.folder / "config.yaml"):
        shutil.copyfile(file, path / file.name)
    return RunFolder(path)


def add_removed(folder: RunFolder, system: str, source: Source) -> None:
    """Add a system: the source's model, which is changed, without its closed heads and with fractional gates
    folded into W_O."""
    xi = getattr(source.model, BANK).values()
    detach(source.model)
    remove(source.model, xi.map(lambda row: row == 0), fold=xi)
    source.task.save_model(folder / f"{system}.pt", source.predictor)
    folder.add_system(system, folder / f"{system}.pt", None)


def timed(source: Source) -> LineTranslator:
    """What is timed of a source: its translator, or what gives one answer for every line."""
    return (
        source.predictor
        if isinstance(source.predictor, Translator)
        else OneAnswer(source.task, source.predictor, ONE_BATCH)
    )


def parameters(model: Any) -> int:
    """The number of parameters, without those of gates."""
    return sum(
        weight.numel() for name, weight in model.named_parameters() if not name.startswith("head_gates.")
    )


def weights_size(folder: Path) -> int:
    """Bytes of an exported folder without its vocabularies and its export.json."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(
        path.stat().st_size for path in files if path.name != "export.json" and not path.match("vocab*")
    )


def open_system(spec: Mapping[str, Any]) -> LineTranslator:
    """The system, on the CPU, set to translate all given lines as one batch."""
    torch.set_num_threads(spec["threads"])
    opened: LineTranslator
    if "exported" in spec:
        opened = open_exported(spec["exported"], threads=spec["threads"], **spec["options"])
    else:
        opened = timed(open_source(spec["run"], spec["system"], device="cpu"))
    opened.search = replace(opened.search, batch_tokens=ONE_BATCH)
    return opened


def text_of(folder: RunFolder, data_dir: str | None) -> tuple[Lines, dict[str, Any]]:
    """The run's test set and its description. Raises ValueError if the text has changed since."""
    corpus = run_corpus(folder, data_dir)
    sources, references = list(corpus.test.sources), list(corpus.test.targets)
    return (sources, references), {
        "corpus": corpus.name,
        "test_sentences": len(sources),
        "text_digest": corpus.digest(),
    }


def evenly(chosen: Sequence[int], count: int) -> list[int]:
    """`count` of the given indices, evenly spread and in order; repeated where there are fewer."""
    return [chosen[i * len(chosen) // count] for i in range(count)]
