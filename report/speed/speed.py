"""How fast is a pruned model really?   `python export.py RUN --report speed`

The base, the model with closed heads masked, and without them, in PyTorch, ONNX Runtime and CTranslate2:
sentences per second, latency and peak memory over batch sizes, source lengths and beams, with the saved
multiply-adds beside them. In every setting all systems translate the same test sentences in turns, in one
process with one number of threads, on the CPU. Writes report.json, report.md and a figure.

As a program, `python -m headgates.report.speed.speed`, it is the fresh process in which one system's memory
is measured.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from headgates.bridges.formats import FORMATS, export, open_exported, require_packages
from headgates.configs.export import ExportConfig
from headgates.configs.methods import method_of
from headgates.configs.schema import SearchConfig
from headgates.gates import detach, heads_left, remove
from headgates.gates.sites import BANK
from headgates.models.line_translator import LineTranslator, Translation
from headgates.models.multiply_adds import decoding
from headgates.models.progress import minutes, say
from headgates.models.translator import Translator
from headgates.report.palette import BLACK, BLUE, GREEN, PINK, VERMILION, Look
from headgates.report.scatter import Panel, Series, draw_scatter
from headgates.report.speed.measure import (
    alternate,
    interval_text,
    load_average,
    median_and_range,
    peak_bytes,
    ratio_by_round,
)
from headgates.tasks import task_of
from headgates.tasks.base import Task
from headgates.workbench.folder import RunFolder
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.scores import ScoreRequest, closed_by, head_scores
from headgates.workbench.source import Source, find_run, open_source, run_corpus
from headgates.workbench.table import markdown_table

Lines = tuple[list[str], list[str]]  # sources and references
Row = Mapping[str, Any]

ROOT = Path(__file__).resolve().parents[2]
ENGINES = {  # suffix of a system's name -> format, options when it is opened, label
    "onnx": ("onnx", {}, "ONNX Runtime"),
    "ct2": ("ct2", {"compute_type": "float32"}, "CTranslate2"),
    "ct2-int8": ("ct2", {"compute_type": "int8"}, "CTranslate2 int8"),
}
RUNTIMES = {"onnx": "onnxruntime", "ct2": "ctranslate2"}  # format -> package that runs it
COLOURS = {"": BLACK, "onnx": BLUE, "ct2": VERMILION, "ct2-int8": GREEN}  # of an engine
LENGTHS = ("short", "middle", "long")  # thirds of the test set by source pieces
NEAREST = 64  # sentences of each length in --lengths
PARITY_LINES = 20  # sentences of the check that an export ends with
ONE_BATCH = 10**9  # search.batch_tokens with which everything that is given at once is translated at once
PAUSE = 0.02  # seconds between two systems: waiting threads of the first would slow the second
SMALL = 0.01  # below this saved share, the share of the ideal is not computed
COMPARES = (
    "a speed report compares a base with what gates leave of it: give a run of fit.py with gates, "
    "or --closed SHARE"
)
clock = time.perf_counter


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
        """The dense system on the same engine; None for the dense ones."""
        kind, _, engine = self.name.partition("-")
        return None if kind == "dense" else f"dense-{engine}".rstrip("-")


def prepare(
    folder: RunFolder, scratch: Path, test: Lines, *, threads: int, closed: float | None = None
) -> tuple[list[System], dict[str, str]]:
    """The systems, exported into `scratch` if they run on another engine; and label -> why, of the engines
    left out: a package is missing, or the export is refused, or fails its parity check.

    closed: the share of a base's heads, of the lowest gradient importance, that are closed in place of what
    gates learned. Raises ValueError if the run has no gates or a base is gone."""
    run_systems, method = folder.systems(), method_of(folder.config())
    if closed is not None:
        folder = removed_run = closed_by_importance(folder, closed, scratch / "run")
        names = {"dense": "base", "masked": "masked", "removed": "removed"}
    elif method is None:
        raise ValueError(f"{folder.path} is a base, a run without gates; {COMPARES}")
    elif missing := [system for system in ("base", method.exact) if system not in run_systems]:
        has = ", ".join(run_systems)
        raise ValueError(f"{folder.path} has no system {missing[0]!r} (it has {has}); {COMPARES}")
    else:
        removed_run = folder
        if method.removed not in run_systems:
            source = open_source(folder.path, method.exact, device="cpu")
            removed_run = like(source, scratch / "run")
            add_removed(removed_run, method.removed, source)
        names = {"dense": "base", "masked": method.exact, "removed": method.removed}
    translators: dict[str, Any] = {}
    systems = []
    for name, system in names.items():
        run = removed_run if name == "removed" else folder
        opened = translators[name] = timed(open_source(run.path, system, device="cpu"))
        spec = {"run": str(run.path.resolve()), "system": system, "threads": threads}
        model: Any = opened.predictor.model if isinstance(opened, OneAnswer) else opened.model  # type: ignore[attr-defined]
        size = (run / run.systems()[system]["weights"]).stat().st_size
        systems.append(System(name, f"{name}, PyTorch", spec, model, parameters(model), size))
    if isinstance(translators["dense"], OneAnswer):
        return systems, {"every other engine": "exports are of translation models"}
    left_out: dict[str, str] = {}
    lines, references = (side[:PARITY_LINES] for side in test)
    both = [systems[0], systems[2]]
    for suffix, (format, options, label) in ENGINES.items():
        folders = {each.name: scratch / f"{each.name}-{format}" for each in both}
        try:
            require_packages(FORMATS[format].packages)
            for each in both:
                if not (out := folders[each.name]).is_dir():
                    facts = {"run": folder.path.name, "system": each.spec["system"]}
                    translator = translators[each.name]
                    export(translator, format, out, lines=lines, references=references, facts=facts)
        except ValueError as error:
            left_out[label] = str(error)
            continue
        for each in both:
            where = folders[each.name]
            spec = {
                "exported": str(where.resolve()),
                "format": format,
                "options": options,
                "threads": threads,
            }
            name, words = f"{each.name}-{suffix}", f"{each.name}, {label}"
            systems.append(System(name, words, spec, each.model, each.parameters, weights_size(where)))
    return systems, left_out


def closed_by_importance(folder: RunFolder, share: float, path: Path) -> RunFolder:
    """A run folder at `path` with the systems base, masked and removed: a base, and it with this share of its
    heads closed, those of the lowest gradient importance. A run with gates stands for its base."""
    source = open_source(folder.path, dense=True, device="cpu")
    scores = head_scores("gradient", ScoreRequest(source))
    closed = closed_by("gradient", scores, keep=scores.heads_total - round(share * scores.heads_total))
    alone, weights = like(source, path), source.folder / source.folder.systems()["base"]["weights"]
    alone.add_system("base", weights, None)
    alone.add_system("masked", weights, (~closed).map(lambda row: row.double()).to_json())
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
    found = source.predictor
    return found if isinstance(found, Translator) else OneAnswer(source.task, found)


def parameters(model: Any) -> int:
    """The number of parameters, without those of gates."""
    named = model.named_parameters()
    return sum(weight.numel() for name, weight in named if not name.startswith("head_gates."))


def weights_size(folder: Path) -> int:
    """Bytes of an exported folder without its vocabularies and its export.json."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "export.json"]
    return sum(path.stat().st_size for path in files if not path.match("vocab*"))


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
class Plan:
    """What is measured: every batch size on every length with every beam, each `repeats` times after one
    round of warm-up.

    lengths: source pieces; none for thirds of the test set. quick: the middle length alone."""

    batch_sizes: list[int]
    lengths: list[int]
    beams: list[int]
    repeats: int
    quick: bool = False

    @classmethod
    def from_config(cls, config: ExportConfig) -> "Plan":
        sizes, repeats = ([1, 16], 2) if config.quick else (sorted(config.batch_sizes), config.repeats)
        return cls(sizes, sorted(config.lengths), sorted(config.beams), repeats, config.quick)

    def sentences_by_length(self, pieces: Sequence[int]) -> dict[str, list[int]]:
        """Indices of the sentences of each length, from every sentence's pieces; empty ones are left out.
        Raises ValueError if there are too few."""
        order = sorted((i for i, count in enumerate(pieces) if count), key=lambda i: pieces[i])
        parts = len(LENGTHS)
        if len(order) < parts:
            raise ValueError(
                f"a speed report needs at least {parts} test sentences that are not empty, got {len(order)}"
            )
        edges = [round(part * len(order) / parts) for part in range(parts + 1)]
        chosen = {name: order[edges[i] : edges[i + 1]] for i, name in enumerate(LENGTHS)}
        if self.lengths:
            chosen = {f"{length} pieces": nearest(order, pieces, length) for length in self.lengths}
        middle = list(chosen)[len(chosen) // 2]
        return {middle: chosen[middle]} if self.quick else chosen


def nearest(order: Sequence[int], pieces: Sequence[int], length: int) -> list[int]:
    """The NEAREST sentences whose number of pieces is nearest to `length`, shortest first."""
    found = sorted(order, key=lambda i: abs(pieces[i] - length))[:NEAREST]
    return sorted(found, key=lambda i: pieces[i])


@dataclass(frozen=True)
class ReportCell:
    """One cell of the report: sentences of one length, in batches of one size, with one beam."""

    beam: int
    length: str
    batch: int
    sentences: list[str]

    @property
    def batches(self) -> list[list[str]]:
        return [self.sentences[i : i + self.batch] for i in range(0, len(self.sentences), self.batch)]


def report_cells(
    plan: Plan, sources: Sequence[str], by_length: Mapping[str, Sequence[int]]
) -> list[ReportCell]:
    """Every cell with its sentences: 32, but no more than 16 batches and no less than one. They are spread
    evenly over all sentences of the length, and repeat if there are fewer."""
    cells = []
    for beam in plan.beams:
        for length, part in by_length.items():
            for batch in plan.batch_sizes:
                count = batch * max(1, min(16, 32 // batch))
                chosen = [sources[part[i * len(part) // count]] for i in range(count)]
                cells.append(ReportCell(beam, length, batch, chosen))
    return cells


class TimedTranslation:
    """A block for `alternate`: a system translates the batches of a cell. It keeps the seconds of every batch
    of every call, and the translations of the last call."""

    def __init__(self, system: LineTranslator, cell: ReportCell):
        self.system, self.cell = system, cell
        self.calls: list[list[float]] = []
        self.translations: list[list[list[Translation]]] = []  # batch, sentence, n best

    def __call__(self) -> None:
        time.sleep(PAUSE)
        seconds: list[float] = []
        self.translations = []
        for batch in self.cell.batches:
            begin = clock()
            translations = self.system.translate_n_best(batch, beam=self.cell.beam)
            seconds.append(clock() - begin)
            self.translations.append(translations)
        self.calls.append(seconds)

    @property
    def best(self) -> list[str]:
        return [n_best[0].text for batch in self.translations for n_best in batch]

    def multiply_adds(self, model: Any) -> int:
        """Of this model's translations: sources padded to the longest of their batch, each sentence as long
        as it was open."""
        total = 0
        for lines, translations in zip(self.cell.batches, self.translations, strict=True):
            source = 1 + max(map(len, self.system.source_vocab.encode(lines)))
            if hasattr(model, "multiply_adds"):  # one pass, without search
                total += model.multiply_adds(len(lines), source)
                continue
            steps = [max(hypothesis.tokens for hypothesis in n_best) for n_best in translations]
            total += sum(decoding(model, source=source, steps=steps, beam=self.cell.beam).values())
        return total


def cell_rows(
    systems: Sequence[System], timed: Mapping[str, TimedTranslation], *, warmup: int = 1
) -> list[dict[str, Any]]:
    """A row for each system in one cell. Ratios are taken round by round, against the dense model on the same
    engine."""
    counts = {system.name: timed[system.name].multiply_adds(system.model) for system in systems}
    seconds = {name: [sum(call) for call in own.calls[warmup:]] for name, own in timed.items()}
    rows = []
    for system in systems:
        name, own, against = system.name, timed[system.name], system.against or ""
        latencies = median_and_range([1000 * batch for call in own.calls[warmup:] for batch in call])
        twin = timed["dense" if name.startswith("dense") else "removed"]
        same = [mine == other for mine, other in zip(own.best, twin.best, strict=True)]
        gain = speedup_columns(seconds.get(against), seconds[name], counts.get(against, 0), counts[name])
        if not name.startswith("removed"):
            gain["share_of_ideal"] = None
        over_masked = ratio_by_round(seconds["masked"], seconds[name]) if name == "removed" else None
        row = {
            "system": name,
            "beam": own.cell.beam,
            "length": own.cell.length,
            "batch": own.cell.batch,
            "sentences": len(own.cell.sentences),
            "target_tokens": sum(n_best[0].tokens for batch in own.translations for n_best in batch),
            "seconds": seconds[name],
            "sentences_per_second": median_and_range([len(same) / each for each in seconds[name]]),
            "latency_ms": {key: latencies[key] for key in ("median", "lowest", "highest")},
            "multiply_adds": counts[name],
            "same_translations": sum(same) / len(same),
            "peak_memory": None,
            **gain,
            "speedup_over_masked": over_masked,
        }
        rows.append(row)
    return rows


def speedup_columns(
    dense: Sequence[float] | None, own: Sequence[float], dense_count: int, count: int
) -> dict[str, Any]:
    """The speed-up, the saved share of the multiply-adds, and the share of the ideal: (t_dense - t) /
    (t_dense * saved)."""
    if dense is None:
        return dict.fromkeys(("speedup", "saved_share", "share_of_ideal"))
    saved = 1 - count / dense_count
    share = None
    if saved >= SMALL:
        share = median_and_range([(a - b) / (a * saved) for a, b in zip(dense, own, strict=True)])
    return {"speedup": ratio_by_round(dense, own), "saved_share": saved, "share_of_ideal": share}


# ---------------------------------------------------------------- memory, in a fresh process


def add_memory(rows: Sequence[dict[str, Any]], system: System, cells: Sequence[ReportCell]) -> int | None:
    """Fill `peak_memory`, in bytes, in the system's rows, and return what torch and the runtime take alone.

    The largest resident set only grows, so the batches come in ascending order of their work: each number is
    that of the largest batch so far."""
    lengths = list(dict.fromkeys(cell.length for cell in cells))  # the shortest first
    order = sorted(cells, key=lambda cell: (cell.beam * cell.batch, lengths.index(cell.length), cell.beam))
    work = [{"lines": cell.batches[-1], "beam": cell.beam} for cell in order]  # the longest sentences
    memory = in_fresh_process(system.spec, work)
    settings = [(system.name, cell.beam, cell.length, cell.batch) for cell in order]
    peaks = dict(zip(settings, memory["peaks"], strict=True))
    for row in rows:
        setting = (row["system"], row["beam"], row["length"], row["batch"])
        if setting in peaks:
            row["peak_memory"] = peaks[setting]
    return memory["imports"]


def in_fresh_process(spec: Mapping[str, Any], work: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes, None where they are not known: {"imports": torch and the system's runtime, "peaks": after each
    piece of `work`}. work: {"lines": sentences of one batch, "beam": width}. Raises ValueError if the process
    fails."""
    command = [sys.executable, "-m", "headgates.report.speed.speed"]
    request = json.dumps({"spec": spec, "work": work})
    done = subprocess.run(command, input=request, capture_output=True, text=True, encoding="utf-8", cwd=ROOT)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise ValueError(f"the process that measures memory failed: {reason}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure_memory() -> None:
    request = json.loads(sys.stdin.buffer.read())
    if runtime := RUNTIMES.get(request["spec"].get("format")):
        import_module(runtime)
    memory: dict[str, Any] = {"imports": peak_bytes(), "peaks": []}
    opened = open_system(request["spec"])
    for batch in request["work"]:
        opened.translate_n_best(batch["lines"], beam=batch["beam"])
        memory["peaks"].append(peak_bytes())
    print(json.dumps(memory))


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
    plan, load, searches = Plan.from_config(config), load_average(), task_of(folder.config()).searches
    if not searches:
        plan = replace(plan, beams=[1])
    threads = config.threads or torch.get_num_threads()
    corpus = run_corpus(folder, config.data_dir)
    test = list(corpus.test.sources), list(corpus.test.targets)
    say(f"{folder.path}: speed report; its systems are loaded and exported first")
    with tempfile.TemporaryDirectory() as scratch:
        systems, left_out = prepare(folder, Path(scratch), test, threads=threads, closed=config.closed)
        for label, reason in left_out.items():
            say(f"{label} is left out: {reason}")
        measured = measure(systems, plan, test[0])
    left = heads_left(systems[2].model)
    made_by = provenance(device_name(), "32", folder.config().get("seed", 0)) | {"threads": threads}
    for package in RUNTIMES.values():
        try:
            made_by["versions"][package] = version(package)
        except PackageNotFoundError:
            continue  # its systems are in left_out
    numbers = {
        "run": folder.path.resolve().name,
        "searches": searches,
        "corpus": corpus.name,
        "test_sentences": len(test[0]),
        "text_digest": corpus.digest(),
        "settings": asdict(plan),
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


def measure(systems: Sequence[System], plan: Plan, sources: Sequence[str]) -> dict[str, Any]:
    """The systems' facts, the lengths' bounds in pieces, and a row for each system in each cell."""
    opened = {system.name: open_system(system.spec) for system in systems}
    pieces = [len(ids) for ids in opened["dense"].source_vocab.encode(sources)]
    by_length = plan.sentences_by_length(pieces)
    cells = report_cells(plan, sources, by_length)
    say(f"{len(systems)} systems, {len(cells)} settings, {plan.repeats} rounds and a warm-up")
    begin = clock()
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells, start=1):
        timed = {name: TimedTranslation(system, cell) for name, system in opened.items()}
        alternate(timed, rounds=plan.repeats)
        found = cell_rows(systems, timed)
        rows += found
        speeds = ", ".join(f"{row['system']} {row['sentences_per_second']['median']:.0f}" for row in found)
        left = minutes((clock() - begin) / number * (len(cells) - number))
        setting = f"{number}/{len(cells)}  beam {cell.beam}, {cell.length}, batch {cell.batch}"
        say(f"{setting}: sentences/s: {speeds}; about {left} left")
    say("peak memory, each system in a fresh process")
    about = {}
    for system in systems:
        size = {"parameters": system.parameters, "file_bytes": system.file_bytes}
        memory = {"imports": add_memory(rows, system, cells)}
        about[system.name] = {"words": system.label, "against": system.against, **size, "memory": memory}
    bounds = {
        name: [min(pieces[i] for i in part), max(pieces[i] for i in part), len(part)]
        for name, part in by_length.items()
    }
    return {"systems": about, "lengths": bounds, "rows": rows}


# ---------------------------------------------------------------- what follows from the rows


def pooled(rows: Sequence[Row], system: str, beam: int, batch: int) -> dict[str, Any]:
    """Sentences per second over all lengths together, round by round, as `median_and_range`."""
    mine = [row for row in rows if (row["system"], row["beam"], row["batch"]) == (system, beam, batch)]
    rounds = zip(*(row["seconds"] for row in mine), strict=True)
    return median_and_range([sum(row["sentences"] for row in mine) / sum(seconds) for seconds in rounds])


def findings(report: Row) -> list[str]:
    """Sentences on what is saved, in how many settings the model without its closed heads is faster and
    slower, and what masks cost."""
    words = {name: system["words"] for name, system in report["systems"].items()}
    by_system = {name: [row for row in report["rows"] if row["system"] == name] for name in words}
    shares, heads = [row["saved_share"] for row in by_system["removed"]], report["heads"]
    low, high = min(shares), max(shares)
    sentences = [
        f"{heads['closed']} of {heads['total']} attention heads are removed. That saves {low:.1%} to "
        f"{high:.1%} of the multiply-adds; a model whose time went with these would be "
        f"{1 / (1 - low):.2f} to {1 / (1 - high):.2f} times as fast."
    ]
    for name in [name for name in words if name.startswith("removed")] + ["masked"]:
        against = words[report["systems"][name]["against"]]
        sentences.append(f"{words[name]}: {verdict(by_system[name], against)}")
    over_masked = between([row["speedup_over_masked"] for row in by_system["removed"]])
    sentences[-1] += f" Removed, with the same outputs, runs at {over_masked} its speed."
    return sentences


def verdict(rows: Sequence[Row], against: str) -> str:
    """In how many settings `rows`, of one system, are faster than its dense twin, called `against`, and in
    how many slower.

    It counts as faster or slower where all rounds agree: one round that says otherwise may be all that the
    machine's other work left."""
    faster = sum(row["speedup"]["lowest"] > 1 for row in rows)
    slower = sum(row["speedup"]["highest"] < 1 for row in rows)
    return (
        f"faster than {against} in {faster} of {len(rows)} settings and slower in {slower}; in the other "
        f"{len(rows) - faster - slower} the rounds do not agree. "
        f"It runs at {between([row['speedup'] for row in rows])} the speed of {against}."
    )


def between(ratios: Sequence[Row]) -> str:
    """The lowest, the highest and the median of the medians."""
    medians = [ratio["median"] for ratio in ratios]
    return f"{min(medians):.2f} to {max(medians):.2f} times (median {statistics.median(medians):.2f})"


def in_order(rows: Sequence[Row], name: str) -> list[Any]:
    """The different values of a column, as they come."""
    return list(dict.fromkeys(row[name] for row in rows))


def page(report: Row, figure: str) -> str:
    """report.md."""
    verb = "translate" if report["searches"] else "label"
    parts = [f"{name}: {low} to {high} pieces, {n}" for name, (low, high, n) in report["lengths"].items()]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        f"# How fast is {report['run']}?",
        "",
        f"Measured on {report['device']}, on the CPU with {report['threads']} threads, in fp32 unless int8 "
        f"is said. The sentences are test sentences of {report['corpus']} by length ({'; '.join(parts)} "
        f"sentences). All systems {verb} the same in turns, {report['settings']['repeats']} rounds after one "
        "of warm-up. Numbers are medians of the rounds, with the lowest and the highest in brackets.",
        "",
        f"![Sentences per second against the batch size]({figure})",
        "",
        "## Where pruning helps, and where it does not",
        "",
        "*dense* is the unpruned model. *masked* computes the closed heads too, then sets their outputs to "
        "0. *removed* no longer has their weights. A setting is a beam width, a length and a batch size.",
        "",
        *(f"- {sentence}" for sentence in report["findings"]),
        *(f"- {words} is left out: {why}" for words, why in report["left_out"].items()),
        "",
        "## The systems",
        "",
        *systems_table(report),
        f"Memory is the largest resident set of a fresh process that loads the system and {verb}s one batch "
        "of every setting, the largest last; beside it what torch and the runtime take alone.",
        "",
    ]
    batches = in_order(report["rows"], "batch")
    for beam in in_order(report["rows"], "beam"):
        of_beam = f", beam {beam}" if report["searches"] else ""
        speeds = (
            [
                system["words"],
                *(interval_text(pooled(report["rows"], name, beam, batch), 1) for batch in batches),
            ]
            for name, system in report["systems"].items()
        )
        table = markdown_table(["system", *(f"batch {batch}" for batch in batches)], speeds)
        lines += [f"## Sentences per second{of_beam}, all lengths", "", *table]
    lines += [
        "## Every number",
        "",
        "ideal: how many times as fast removed would be if time went with the multiply-adds; share of ideal: "
        "how much of the time that this saves is saved in fact (1 is all of it; below 0, removed is slower); "
        "same: share of the sentences that come out as from the PyTorch model of the same weights.",
        "",
        *all_table(report),
    ]
    made_by = f"`{report['command']}`, commit {report['commit']}, {report['date']}, {versions}"
    return "\n".join([*lines, made_by, ""])


def mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


def systems_table(report: Row) -> list[str]:
    rows = []
    for name, system in report["systems"].items():
        peaks = [row["peak_memory"] for row in report["rows"] if row["system"] == name and row["peak_memory"]]
        sizes = (system["file_bytes"], max(peaks, default=None), system["memory"]["imports"])
        rows.append([system["words"], f"{system['parameters']:,}", *map(mebibytes, sizes)])
    return markdown_table(["system", "parameters", "file MiB", "peak memory MiB", "imports MiB"], rows)


def all_table(report: Row) -> list[str]:
    head = ["system", "length", "beam", "batch", "sentences/s", "ms a batch", "peak MiB"]
    head += ["times dense", "saved", "ideal", "share of ideal", "same"]
    rows = []
    for row in report["rows"]:
        speed, saved, share = row["sentences_per_second"], row["saved_share"], row["share_of_ideal"]
        line = [report["systems"][row["system"]]["words"], row["length"], row["beam"], row["batch"]]
        line += [interval_text(speed, 1), interval_text(row["latency_ms"], 1), mebibytes(row["peak_memory"])]
        gain = ["", "", ""]
        if saved is not None:
            gain = [interval_text(row["speedup"]), f"{saved:.1%}", f"{1 / (1 - saved):.2f}"]
        ideal = "" if share is None else interval_text(share)
        rows.append([*line, *gain, ideal, f"{row['same_translations']:.1%}"])
    return markdown_table(head, rows, left=2)


def draw(report: Row, path: Path) -> None:
    """Sentences per second against the batch size, all lengths together: a panel for each beam, a line for
    each system."""
    rows = report["rows"]
    batches = in_order(rows, "batch")
    panels = []
    for beam in in_order(rows, "beam"):
        series = []
        for name, system in report["systems"].items():
            kind, _, engine = name.partition("-")
            marker, dash = {"dense": ("o", (3, 2)), "masked": ("X", (1, 1)), "removed": ("s", ())}[kind]
            look = Look(PINK if kind == "masked" else COLOURS[engine], marker, dash)
            speeds = [pooled(rows, name, beam, batch) for batch in batches]
            middle, low, high = ([speed[end] for speed in speeds] for end in ("median", "lowest", "highest"))
            fill = "full" if kind == "removed" else "none"
            points = Series(
                system["words"], look, batches, middle, low, high, joined=True, band=True, fill=fill
            )
            series.append(points)
        title = "" if not report["searches"] else "greedy" if beam == 1 else f"beam {beam}"
        panels.append(Panel(title, series))
    draw_scatter(
        [panels],
        path,
        title=f"{report['run']}: sentences per second",
        xlabel="sentences at once",
        ylabel="sentences per second",
        logarithmic=True,
    )


if __name__ == "__main__":
    measure_memory()
