"""How fast is a pruned model really?   `python export.py RUN --report speed`

The base, the model with closed heads masked, and without them, in PyTorch, ONNX Runtime and CTranslate2:
sentences per second, latency and peak memory over batch sizes, source lengths and beams, with the saved
multiply-adds beside them. In every setting all systems translate the same test sentences in turns, in one
process with one number of threads, on the CPU. Writes report.json, report.md and a figure.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from headgates.bridges.exported import FORMATS, open_exported, require_packages
from headgates.bridges.formats import export
from headgates.configs.export import ExportConfig
from headgates.configs.methods import method_of
from headgates.configs.settings import SearchConfig
from headgates.gates import detach, heads_left, remove
from headgates.gates.sites import BANK
from headgates.lab.measure import (
    alternate,
    interval_text,
    load_average,
    median_and_range,
    peak_bytes,
    ratio_by_round,
)
from headgates.models.line_translator import LineTranslator, Translation
from headgates.models.multiply_adds import decoding
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.scores import ScoreRequest, closed_by, head_scores
from headgates.records.folder import RunFolder
from headgates.records.provenance import device_name, provenance
from headgates.records.source import Lines, Source, find_run, open_source, run_corpus
from headgates.records.table import Row, markdown_table
from headgates.report.palette import BLACK, BLUE, GREEN, PINK, VERMILION, Look
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.tasks import task_of
from headgates.tasks.base import Task

ENGINES = {  # suffix of a system's name -> format, options when it is opened, label
    "onnx": ("onnx", {}, "ONNX Runtime"),
    "ct2": ("ct2", {"compute_type": "float32"}, "CTranslate2"),
    "ct2-int8": ("ct2", {"compute_type": "int8"}, "CTranslate2 int8"),
}
RUNTIMES = {"onnx": "onnxruntime", "ct2": "ctranslate2"}  # format -> package that runs it
COLOURS = {"": BLACK, "onnx": BLUE, "ct2": VERMILION, "ct2-int8": GREEN}  # of an engine
LENGTHS = ("short", "middle", "long")  # thirds of the test set by source pieces
PARITY_LINES = 20  # sentences of the check that an export ends with
ONE_BATCH = 10**9  # search.batch_tokens with which everything that is given at once is translated at once
PAUSE = 0.02  # seconds between two systems: waiting threads of the first would slow the second
COMPARES = (
    "a speed report compares a base with what gates leave of it: give a run of fit.py with gates, "
    "or --closed SHARE"
)


# ---------------------------------------------------------------- the systems


class OneAnswer(LineTranslator):
    """A task's predictor without search, such as one of labels, in the face of a translator: one answer for
    every line, which counts as one token."""

    def __init__(self, task: Task, predictor: Any):
        self.task, self.predictor, self.search = task, predictor, SearchConfig(beam=1)
        self.source_vocab, self.target_vocab = predictor.source_vocab, predictor.target_vocab
        predictor.batch_tokens = ONE_BATCH

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        return [[Translation(answer, 0.0, 0.0, 1)] for answer in self.task.predict(self.predictor, lines)]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        raise ValueError("answers without search have no log-probabilities of tokens; compare the answers")


@dataclass(frozen=True)
class System:
    """One system of the report, a line of its figure. spec: what `open_system` takes, also in another
    process; model: the PyTorch model with the same weights, whose multiply-adds are counted; file_bytes: of
    its weights, and of its graph if that is a separate file."""

    name: str
    label: str
    spec: dict[str, Any]
    model: Any
    parameters: int
    file_bytes: int

    @property
    def against(self) -> str | None:
        """The unpruned system on the same engine; None for the unpruned ones."""
        kind, _, engine = self.name.partition("-")
        return None if kind == "unpruned" else f"unpruned-{engine}".rstrip("-")


def prepare(
    folder: RunFolder, scratch: Path, test: Lines, *, threads: int, closed: float | None = None
) -> tuple[list[System], dict[str, str]]:
    """The systems, exported into `scratch` if they run on another engine; and label -> why, of the engines
    left out: a package is missing, or the export is refused, or fails its parity check.

    closed: the share of a base's heads, of the lowest importance, that are closed in place of what gates
    learned. Raises ValueError if the run has no gates or a base is gone."""
    run = three_systems(folder, closed, scratch / "run")
    translators: dict[str, LineTranslator] = {}
    systems = []
    for name in ("unpruned", "masked", "removed"):
        opened = open_source(run.path, name, device="cpu")
        translators[name] = timed(opened)
        spec: dict[str, Any] = {"run": str(run.path.resolve()), "system": name, "threads": threads}
        size = (run / run.systems()[name]["weights"]).stat().st_size
        weights = [p.numel() for key, p in opened.model.named_parameters() if not key.startswith(f"{BANK}.")]
        systems.append(System(name, f"{name}, PyTorch", spec, opened.model, sum(weights), size))
    if isinstance(translators["unpruned"], OneAnswer):
        return systems, {"every other engine": "exports are of translation models"}
    left_out: dict[str, str] = {}
    lines, references = (side[:PARITY_LINES] for side in test)
    for suffix, (format, options, label) in ENGINES.items():
        found = []
        try:
            require_packages(FORMATS[format].packages)
            for each in (systems[0], systems[2]):
                out = scratch / f"{each.name}-{format}"
                if not out.is_dir():
                    facts = {"run": folder.path.name, "system": each.name}
                    translator: Any = translators[each.name]
                    export(translator, format, out, lines=lines, references=references, provenance=facts)
                files = [path for path in out.rglob("*") if path.is_file() and path.name != "export.json"]
                size = sum(path.stat().st_size for path in files if not path.match("vocab*"))
                spec = {"exported": str(out), "format": format, "options": options, "threads": threads}
                name, words = f"{each.name}-{suffix}", f"{each.name}, {label}"
                found.append(System(name, words, spec, each.model, each.parameters, size))
        except ValueError as error:
            left_out[label] = str(error)
        else:
            systems += found
    return systems, left_out


def three_systems(folder: RunFolder, share: float | None, path: Path) -> RunFolder:
    """A run folder at `path` with the systems unpruned, masked and removed."""
    method = method_of(folder.config())
    if share is not None:  # a run with gates stands for its base
        source = open_source(folder.path, unpruned=True, device="cpu")
        scores = head_scores("importance", ScoreRequest(source))
        closed = closed_by("importance", scores, keep=scores.heads_total - round(share * scores.heads_total))
        gated, xi = "base", (~closed).map(lambda row: row.double()).to_json()
    elif method is None:
        raise ValueError(f"{folder.path} is a base, a run without gates; {COMPARES}")
    elif missing := [system for system in ("base", method.exact) if system not in folder.systems()]:
        has = ", ".join(folder.systems())
        raise ValueError(f"{folder.path} has no system {missing[0]!r} (it has {has}); {COMPARES}")
    else:
        source = open_source(folder.path, method.exact, device="cpu")
        gated, xi = method.exact, source.folder.systems()[method.exact]["xi"]
    path.mkdir(parents=True)
    for file in (*source.folder.path.glob(source.task.tokenizer_files), source.folder / "config.yaml"):
        shutil.copyfile(file, path / file.name)
    run = RunFolder(path)
    for name, system, gates in (("unpruned", "base", None), ("masked", gated, xi)):
        weights = run / f"{name}.pt"
        shutil.copyfile(source.folder.weights_of(system), weights)
        run.add_system(name, weights, gates)
    masked = open_source(path, "masked", device="cpu")
    values = getattr(masked.model, BANK).values()
    detach(masked.model)
    remove(masked.model, values.map(lambda row: row == 0), fold=values)  # fractional gates go into W_O
    masked.task.save_model(run / "removed.pt", masked.predictor)
    run.add_system("removed", run / "removed.pt", None)
    return run


def timed(source: Source) -> LineTranslator:
    """What is timed of a source: its translator, or what gives one answer for every line."""
    found = source.predictor
    return found if isinstance(found, Translator) else OneAnswer(source.task, found)


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


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Setting:
    """Sentences of one length, in batches of one size, with one beam."""

    beam: int
    length: str
    batch: int
    sentences: list[str]

    @property
    def batches(self) -> list[list[str]]:
        return [self.sentences[i : i + self.batch] for i in range(0, len(self.sentences), self.batch)]


def by_length(pieces: Sequence[int]) -> dict[str, list[int]]:
    """Indices of the sentences of each third by length, from every sentence's pieces; empty ones are left
    out. Raises ValueError if there are too few."""
    order = sorted((i for i, count in enumerate(pieces) if count), key=lambda i: pieces[i])
    if len(order) < len(LENGTHS):
        raise ValueError(
            f"a speed report needs at least 3 test sentences that are not empty, got {len(order)}"
        )
    edges = [round(part * len(order) / 3) for part in range(4)]
    return {name: order[edges[i] : edges[i + 1]] for i, name in enumerate(LENGTHS)}


def all_settings(
    beams: Sequence[int], batches: Sequence[int], sources: Sequence[str], parts: Mapping[str, Sequence[int]]
) -> list[Setting]:
    """Every setting with its sentences: 32, but no more than 16 batches and no less than one. They are spread
    evenly over all sentences of the length, and repeat if there are fewer."""
    settings = []
    for beam, (length, part), batch in product(sorted(beams), parts.items(), sorted(batches)):
        count = batch * max(1, min(16, 32 // batch))
        chosen = [sources[part[i * len(part) // count]] for i in range(count)]
        settings.append(Setting(beam, length, batch, chosen))
    return settings


Answers = list[list[list[Translation]]]  # of a system in a setting: batch, sentence, n best


def time_setting(
    systems: Sequence[System], opened: Mapping[str, LineTranslator], setting: Setting, *, rounds: int
) -> list[Row]:
    """A row for each system: all translate the batches of the setting in turns."""
    answers: dict[str, Answers] = {}

    def translate(name: str) -> None:
        translator = opened[name]
        answers[name] = [translator.translate_n_best(batch, beam=setting.beam) for batch in setting.batches]

    seconds = alternate({name: partial(translate, name) for name in opened}, rounds=rounds, pause=PAUSE)
    sources = [1 + max(map(len, opened["unpruned"].source_vocab.encode(each))) for each in setting.batches]
    return setting_rows(systems, setting, seconds, answers, sources)


def setting_rows(
    systems: Sequence[System],
    setting: Setting,
    seconds: Mapping[str, Sequence[float]],
    answers: Mapping[str, Answers],
    sources: Sequence[int],
) -> list[Row]:
    """A row for each system in one setting. Ratios are taken round by round, against the unpruned model on
    the same engine; saved_share: of its multiply-adds. sources: pieces of the longest source of each
    batch."""
    counts = {each.name: multiply_adds(each.model, setting, answers[each.name], sources) for each in systems}
    texts = {name: [best.text for batch in own for best, *_ in batch] for name, own in answers.items()}
    rows = []
    for system in systems:
        name, against = system.name, system.against
        own, twin = texts[name], texts["removed" if against else "unpruned"]
        rows.append(
            {
                "system": name,
                "beam": setting.beam,
                "length": setting.length,
                "batch": setting.batch,
                "sentences": len(own),
                "seconds": seconds[name],
                "sentences_per_second": median_and_range([len(own) / each for each in seconds[name]]),
                "latency_ms": median_and_range([1000 * each / len(sources) for each in seconds[name]]),
                "multiply_adds": counts[name],
                "same_translations": sum(map(str.__eq__, own, twin)) / len(own),
                "speedup": ratio_by_round(seconds[against], seconds[name]) if against else None,
                "saved_share": 1 - counts[name] / counts[against] if against else None,
            }
        )
    return rows


def multiply_adds(model: Any, setting: Setting, answers: Answers, sources: Sequence[int]) -> int:
    """Of a model's translations: sources padded to the longest of their batch, each sentence as long as it
    was open."""
    total = 0
    for source, batch in zip(sources, answers, strict=True):
        if hasattr(model, "multiply_adds"):  # one pass, without search
            total += model.multiply_adds(len(batch), source)
        else:
            steps = [max(hypothesis.tokens for hypothesis in n_best) for n_best in batch]
            total += sum(decoding(model, source=source, steps=steps, beam=setting.beam).values())
    return total


def memory_of(system: System, settings: Sequence[Setting]) -> dict[str, int | None]:
    """`measure_memory` in a fresh process. Raises ValueError if the process fails."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(measure_memory, system.spec, settings).result()
        except BrokenProcessPool as error:
            raise ValueError(
                f"the process that measures the memory of {system.name} was ended; it may lack memory"
            ) from error


def measure_memory(spec: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, int | None]:
    """Bytes of this process, None where they are not known: `imports`, what torch and the runtime take alone,
    and `peak`, after a batch of every setting."""
    if runtime := RUNTIMES.get(spec.get("format", "")):
        import_module(runtime)
    imports = peak_bytes()
    opened = open_system(spec)
    for setting in settings:
        opened.translate_n_best(setting.batches[-1], beam=setting.beam)
    return {"imports": imports, "peak": peak_bytes()}


# ---------------------------------------------------------------- the report


def report(config: ExportConfig) -> Path:
    """Measure, write the report, and return its folder: `--out`, or `speed` in the run's. Raises ValueError
    if the run has no gates, its text has changed, or there is a report already and `--fresh` is not given."""
    folder = find_run(config.source, config)
    out = RunFolder(Path(config.out) if config.out else folder / "speed")
    if (out / "report.json").is_file() and not config.fresh:
        raise ValueError(
            f"{out.path} holds a speed report already; --fresh measures anew, --out takes another folder"
        )
    load, searches = load_average(), bool(task_of(folder.config()).searches)
    threads = config.threads or torch.get_num_threads()
    corpus = run_corpus(folder, config.data_dir)
    test = list(corpus.test.sources), list(corpus.test.targets)
    say(f"{folder.path}: speed report; its systems are loaded and exported first")
    with tempfile.TemporaryDirectory() as scratch:
        systems, left_out = prepare(folder, Path(scratch), test, threads=threads, closed=config.closed)
        for label, reason in left_out.items():
            say(f"{label} is left out: {reason}")
        measured = measure(systems, config, test[0], beams=config.beams if searches else [1])
    left = heads_left(systems[2].model)
    made_by = provenance(device_name(), "32", folder.config().get("seed", 0)) | {"threads": threads}
    used = {RUNTIMES[system.spec["format"]] for system in systems if system.spec.get("format") in RUNTIMES}
    made_by["versions"] |= {package: version(package) for package in sorted(used)}
    numbers = {
        "run": folder.path.resolve().name,
        "searches": searches,
        "corpus": corpus.name,
        "text_digest": corpus.digest(),
        "heads": {"total": left.heads_total, "closed": left.heads_total - left.count()},
        "left_out": left_out,
        **measured,
        **made_by,
        "load_average_before": load,
    }
    numbers["findings"] = findings(numbers)
    out.write_json("report.json", numbers)
    draw(numbers, out / "speed")
    out.write_text("report.md", page(numbers, "speed.png"))
    for sentence in numbers["findings"]:
        say(f"- {sentence}")
    say(f"{out / 'report.md'}: tables; figure: {out / 'speed.png'}")
    return out.path


def measure(
    systems: Sequence[System], config: ExportConfig, sources: Sequence[str], *, beams: Sequence[int]
) -> Row:
    """The systems' facts, the lengths' bounds in pieces, and a row for each system in each setting."""
    opened = {system.name: open_system(system.spec) for system in systems}
    pieces = [len(ids) for ids in opened["unpruned"].source_vocab.encode(sources)]
    parts, batches, rounds = by_length(pieces), config.batch_sizes, config.repeats
    if config.quick:
        parts, batches, rounds = {"middle": parts["middle"]}, [1, 16], 2
    settings = all_settings(beams, batches, sources, parts)
    say(f"{len(systems)} systems, {len(settings)} settings, {rounds} rounds and a warm-up")
    rows: list[Row] = []
    for number, setting in enumerate(settings, start=1):
        found = time_setting(systems, opened, setting, rounds=rounds)
        rows += found
        speeds = ", ".join(f"{row['system']} {row['sentences_per_second']['median']:.0f}" for row in found)
        where = f"beam {setting.beam}, {setting.length}, batch {setting.batch}"
        say(f"{number}/{len(settings)}  {where}: sentences/s: {speeds}")
    say("peak memory, each system in a fresh process")
    about = {
        system.name: {
            "label": system.label,
            "against": system.against,
            "parameters": system.parameters,
            "file_bytes": system.file_bytes,
            "memory": memory_of(system, settings),
        }
        for system in systems
    }
    bounds = {name: [pieces[part[0]], pieces[part[-1]], len(part)] for name, part in parts.items()}
    return {"rounds": rounds, "systems": about, "lengths": bounds, "rows": rows}


# ---------------------------------------------------------------- what follows from the rows


def pooled(rows: Sequence[Row], system: str, beam: int, batch: int) -> dict[str, Any]:
    """Sentences per second over all lengths together, round by round, as `median_and_range`."""
    mine = [row for row in rows if (row["system"], row["beam"], row["batch"]) == (system, beam, batch)]
    rounds = zip(*(row["seconds"] for row in mine), strict=True)
    return median_and_range([sum(row["sentences"] for row in mine) / sum(seconds) for seconds in rounds])


def findings(report: Row) -> list[str]:
    """Sentences on what is saved, and in how many settings the model without its closed heads, and the one
    with masks, is faster and slower than its unpruned twin.

    It counts as faster or slower where all rounds agree: one round that says otherwise may be all that the
    machine's other work left."""
    saved = [row["saved_share"] for row in report["rows"] if row["system"] == "removed"]
    ideal = [1 / (1 - share) for share in (min(saved), max(saved))]
    sentences = [
        f"{report['heads']['closed']} of {report['heads']['total']} attention heads are removed. That saves "
        f"{min(saved):.1%} to {max(saved):.1%} of the multiply-adds; a model whose time went with these "
        f"would be {ideal[0]:.2f} to {ideal[1]:.2f} times as fast."
    ]
    for name, system in report["systems"].items():
        ratios = [row["speedup"] for row in report["rows"] if row["system"] == name]
        if system["against"] is not None:
            against = report["systems"][system["against"]]["label"]
            faster = sum(ratio["lowest"] > 1 for ratio in ratios)
            slower = sum(ratio["highest"] < 1 for ratio in ratios)
            medians = median_and_range([ratio["median"] for ratio in ratios])
            sentences.append(
                f"{system['label']}: faster than {against} in {faster} of {len(ratios)} settings and slower "
                f"in {slower}; in the others the rounds do not agree. Its speed is {interval_text(medians)} "
                f"times that of {against}."
            )
    return sentences


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """The different values of a column, as they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def page(report: Row, figure: str) -> str:
    """report.md."""
    verb, rows, systems = "translate" if report["searches"] else "label", report["rows"], report["systems"]
    parts = [f"{name}: {low} to {high} pieces, {n}" for name, (low, high, n) in report["lengths"].items()]
    memory = [
        [
            system["label"],
            f"{system['parameters']:,}",
            *map(mebibytes, (system["file_bytes"], system["memory"]["peak"], system["memory"]["imports"])),
        ]
        for system in systems.values()
    ]
    lines = [
        f"# How fast is {report['run']}?",
        "",
        f"Measured on {report['device']}, on the CPU with {report['threads']} threads, in fp32 unless int8 "
        f"is said. The sentences are test sentences of {report['corpus']} by length ({'; '.join(parts)} "
        f"sentences). All systems {verb} the same in turns, {report['rounds']} rounds after one of warm-up. "
        "Numbers are medians of the rounds, with the lowest and the highest in brackets.",
        "",
        f"![Sentences per second against the batch size]({figure})",
        "",
        "## Where pruning helps, and where it does not",
        "",
        "*masked* computes the closed heads too, then sets their outputs to 0. *removed* no longer has their "
        "weights. A setting is a beam width, a length and a batch size.",
        "",
        *(f"- {sentence}" for sentence in report["findings"]),
        *(f"- {label} is left out: {why}" for label, why in report["left_out"].items()),
        "",
        "## The systems",
        "",
        *markdown_table(["system", "parameters", "file MiB", "peak memory MiB", "imports MiB"], memory),
        f"Memory is the largest resident set of a fresh process that loads the system and {verb}s one batch "
        "of every setting; beside it what torch and the runtime take alone.",
        "",
    ]
    batches = distinct(rows, "batch")
    for beam in distinct(rows, "beam"):
        speeds = (
            [system["label"], *(interval_text(pooled(rows, name, beam, batch), 1) for batch in batches)]
            for name, system in systems.items()
        )
        of_beam = f", beam {beam}" if report["searches"] else ""
        table = markdown_table(["system", *(f"batch {batch}" for batch in batches)], speeds)
        lines += [f"## Sentences per second{of_beam}, all lengths", "", *table]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    made_by = f"`{report['command']}`, commit {report['commit']}, {report['date']}, {versions}"
    return "\n".join([*lines, "Every setting is in report.json.", "", made_by, ""])


def mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


def draw(report: Row, path: Path) -> None:
    """Sentences per second against the batch size, all lengths together: a panel for each beam, a line for
    each system."""
    batches = distinct(report["rows"], "batch")
    panels = []
    for beam in distinct(report["rows"], "beam"):
        series = []
        for name, system in report["systems"].items():
            kind, _, engine = name.partition("-")
            marker, dash = {"unpruned": ("o", (3, 2)), "masked": ("X", (1, 1)), "removed": ("s", ())}[kind]
            look = Look(PINK if kind == "masked" else COLOURS[engine], marker, dash)
            speeds = [pooled(report["rows"], name, beam, batch) for batch in batches]
            middle, low, high = ([speed[end] for speed in speeds] for end in ("median", "lowest", "highest"))
            fill = "full" if kind == "removed" else "none"
            label = system["label"]
            series.append(Series(label, look, batches, middle, low, high, joined=True, band=True, fill=fill))
        panels.append(Panel(f"beam {beam}" if report["searches"] else "", series))
    draw_scatter(
        [panels],
        path,
        title=f"{report['run']}: sentences per second",
        xlabel="sentences at once",
        ylabel="sentences per second",
        fewer=False,
        logarithmic=True,
        ticks={batch: str(batch) for batch in batches},
    )
