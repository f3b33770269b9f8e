"""How fast is a pruned model really?   `python export.py RUN --report speed`

The base, the model with closed heads masked, and without them, in PyTorch, ONNX Runtime and CTranslate2:
sentences per second, latency and peak memory over batch sizes, source lengths and beams, with the saved
multiply-adds beside them. In every setting all systems translate the same test sentences in turns, in one
process with one number of threads, on the CPU. Writes report.json, report.md and a figure.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgates.models.progress import minutes, say
from headgates.report.speed.measure import alternate, load_average, median_and_range, ratio_by_round

if TYPE_CHECKING:
    from headgates.configs.export import ExportConfig
    from headgates.models.line_translator import LineTranslator
    from headgates.models.translator import Translation
    from headgates.report.speed.systems import Lines, System

LENGTHS = ["short", "middle", "long"]  # thirds of the test set by source pieces
NEAREST = 64  # sentences of each length in --lengths
PAUSE = 0.02  # seconds between two systems: waiting threads of the first would slow the second
SMALL = 0.01  # below this saved share, the share of the ideal is not computed
START_UP = 8.0  # seconds of the process that measures memory, for the estimate
clock = time.perf_counter


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
    def from_config(cls, config: "ExportConfig") -> "Plan":
        sizes, repeats = ([1, 16], 2) if config.quick else (sorted(config.batch_sizes), config.repeats)
        return cls(sizes, sorted(config.lengths), sorted(config.beams), repeats, config.quick)

    def sentences_by_length(self, pieces: Sequence[int]) -> dict[str, list[int]]:
        """Indices of the sentences of each length, from every sentence's pieces. Raises ValueError if there
        are too few."""
        chosen = thirds(pieces)
        if self.lengths:
            chosen = {f"{length} pieces": nearest(pieces, length) for length in self.lengths}
        middle = list(chosen)[len(chosen) // 2]
        return {middle: chosen[middle]} if self.quick else chosen


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


class TimedTranslation:
    """A block for `alternate`: a system translates the batches of a cell. It keeps the seconds of every batch
    of every call, and the translations of the last call."""

    def __init__(self, system: "LineTranslator", cell: ReportCell):
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


# ---------------------------------------------------------------- what is measured


def thirds(pieces: Sequence[int]) -> dict[str, list[int]]:
    """Indices of the sentences that are not empty, in three parts of equal size, shortest first. Raises
    ValueError at fewer than three."""
    order = sorted((i for i, count in enumerate(pieces) if count), key=lambda i: pieces[i])
    if len(order) < len(LENGTHS):
        raise ValueError(
            f"a speed report needs at least {len(LENGTHS)} test sentences that are not empty, got {len(order)}"
        )
    edges = [round(part * len(order) / len(LENGTHS)) for part in range(len(LENGTHS) + 1)]
    return {name: order[edges[i] : edges[i + 1]] for i, name in enumerate(LENGTHS)}


def nearest(pieces: Sequence[int], length: int) -> list[int]:
    """Indices of the NEAREST sentences, not empty, whose number of pieces is nearest to `length`, shortest
    first."""
    order = sorted((i for i, count in enumerate(pieces) if count), key=lambda i: abs(pieces[i] - length))
    return sorted(order[:NEAREST], key=lambda i: pieces[i])


def report_cells(
    plan: Plan, sources: Sequence[str], by_length: Mapping[str, Sequence[int]]
) -> list[ReportCell]:
    """Every cell with its sentences: 32, but no more than 16 batches and no less than one. They are spread
    over all sentences of the length, and repeat if there are fewer."""
    from headgates.report.speed.systems import evenly

    counts = {batch: batch * max(1, min(16, 32 // batch)) for batch in plan.batch_sizes}
    return [
        ReportCell(beam, length, batch, [sources[i] for i in evenly(part, count)])
        for beam in plan.beams
        for length, part in by_length.items()
        for batch, count in counts.items()
    ]


def expected_seconds(
    opened: Mapping[str, "LineTranslator"], cells: Sequence[ReportCell], rounds: int
) -> list[float]:
    """Expected seconds of every cell: each system translates one sentence and eight of a middle length, and
    the rest is extrapolated."""
    expected = [len(opened) * (1 + rounds) * PAUSE] * len(cells)
    lengths = list(dict.fromkeys(cell.length for cell in cells))
    for beam in dict.fromkeys(cell.beam for cell in cells):
        lines = next(
            cell.sentences for cell in cells if (cell.beam, cell.length) == (beam, lengths[len(lengths) // 2])
        )
        eight = [lines[i * len(lines) // 8] for i in range(8)]
        for system in opened.values():
            seconds = []
            for batch in (eight[:1], eight[4:5], eight):  # the first one warms up
                begin = clock()
                system.translate_n_best(batch, beam=beam)
                seconds.append(clock() - begin)
            each_more = max(0.0, (seconds[2] - seconds[1]) / 7)
            for number, cell in enumerate(cells):
                if cell.beam == beam:
                    one = seconds[1] + (cell.batch - 1) * each_more
                    expected[number] += one * (
                        len(cell.batches) * (1 + rounds) + 1
                    )  # and once where memory is measured
    return expected


def time_left(expected: Sequence[float], done: int, took: float, systems: int) -> str:
    """How long the cells after the first `done`, which took so many seconds, and the memory of all systems
    will take, in words. What was expected is corrected by what the first ones took: on a busy machine all
    take longer."""
    slower = took / sum(expected[:done])
    return f"about {minutes(slower * (sum(expected[done:]) + systems * START_UP))} left"


def multiply_adds(system: "System", timed: TimedTranslation) -> int:
    """Multiply-adds of this system's translations: sources padded to the longest of their batch, each
    sentence as long as it was open."""
    from headgates.models.multiply_adds import decoding

    total = 0
    for lines, translations in zip(timed.cell.batches, timed.translations, strict=True):
        source = 1 + max(map(len, timed.system.source_vocab.encode(lines)))
        if hasattr(system.model, "multiply_adds"):  # one pass, without search
            total += system.model.multiply_adds(len(lines), source)
            continue
        steps = [max(hypothesis.tokens for hypothesis in n_best) for n_best in translations]
        total += sum(decoding(system.model, source=source, steps=steps, beam=timed.cell.beam).values())
    return total


# ---------------------------------------------------------------- numbers


def cell_rows(
    systems: Sequence["System"], timed: Mapping[str, TimedTranslation], *, warmup: int = 1
) -> list[dict[str, Any]]:
    """A row for each system in one cell. Ratios are taken round by round, against the dense model on the same
    engine."""
    counts = {system.name: multiply_adds(system, timed[system.name]) for system in systems}
    seconds = {
        name: [sum(call) for call in translation.calls[warmup:]] for name, translation in timed.items()
    }
    rows = []
    for system in systems:
        name, own = system.name, timed[system.name]
        cell, against = own.cell, system.against or ""
        latencies = median_and_range([1000 * batch for call in own.calls[warmup:] for batch in call])
        twin = timed["dense" if name.startswith("dense") else "removed"]
        row: dict[str, Any] = {
            "system": name,
            "beam": cell.beam,
            "length": cell.length,
            "batch": cell.batch,
            "sentences": len(cell.sentences),
            "target_tokens": sum(n_best[0].tokens for batch in own.translations for n_best in batch),
            "seconds": seconds[name],
            "sentences_per_second": median_and_range([len(cell.sentences) / s for s in seconds[name]]),
            "latency_ms": {key: latencies[key] for key in ("median", "lowest", "highest")},
            "multiply_adds": counts[name],
            "same_translations": sum(a == b for a, b in zip(own.best, twin.best, strict=True))
            / len(twin.best),
            "peak_memory": None,
            **speedup_columns(seconds.get(against), seconds[name], counts.get(against, 0), counts[name]),
            "speedup_over_masked": ratio_by_round(seconds["masked"], seconds["removed"])
            if name == "removed"
            else None,
        }
        if not name.startswith("removed"):
            row["share_of_ideal"] = None
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
    shares = (
        [(whole - less) / (whole * saved) for whole, less in zip(dense, own, strict=True)]
        if saved >= SMALL
        else None
    )
    return {
        "speedup": ratio_by_round(dense, own),
        "saved_share": saved,
        "share_of_ideal": median_and_range(shares) if shares else None,
    }


def add_memory(
    rows: Sequence[dict[str, Any]], system: "System", cells: Sequence[ReportCell]
) -> dict[str, Any]:
    """Fill `peak_memory`, in bytes, in the system's rows, and return the memory of the bare process."""
    from headgates.report.speed.peak_memory import in_fresh_process

    lengths = list(dict.fromkeys(cell.length for cell in cells))  # the shortest first
    order = sorted(cells, key=lambda cell: (cell.beam * cell.batch, lengths.index(cell.length), cell.beam))
    work = [
        {"lines": cell.batches[-1], "beam": cell.beam} for cell in order
    ]  # the last batch is the one of the longest sentences
    memory = in_fresh_process(system.spec, work)
    peaks = {
        (cell.beam, cell.length, cell.batch): peak
        for cell, peak in zip(order, memory.pop("peaks"), strict=True)
    }
    for row in rows:
        if row["system"] == system.name:
            row["peak_memory"] = peaks[row["beam"], row["length"], row["batch"]]
    return memory


# ---------------------------------------------------------------- the report


def report(config: "ExportConfig") -> Path:
    """Measure, write the report, and return its folder: `--out`, or `speed` in the run's. Raises ValueError
    if the run has no l0 system, its text has changed, or there is a report already and `--fresh` is not
    given."""
    import torch

    from headgates.report.speed.systems import prepare, text_of
    from headgates.tasks import task_of
    from headgates.workbench.source import find_run

    folder = find_run(config.source, config)
    out = Path(config.out) if config.out else folder / "speed"
    if (out / "report.json").is_file() and not config.fresh:
        raise ValueError(
            f"{out} holds a speed report already; --fresh measures anew, --out takes another folder"
        )
    plan, load, searches = Plan.from_config(config), load_average(), task_of(folder.config()).searches
    if not searches:
        plan = replace(plan, beams=[1])
    threads = config.threads or torch.get_num_threads()
    test, text = text_of(folder, config.data_dir)
    say(f"{folder.path}: speed report; its systems are loaded and exported first")
    with tempfile.TemporaryDirectory() as scratch:
        systems, left_out = prepare(folder, Path(scratch), test, threads=threads, closed=config.closed)
        for label, reason in left_out.items():
            say(f"{label} is left out: {reason}")
        measured = measure(systems, plan, test)
    from headgates.gates import heads_left

    left = heads_left(next(system.model for system in systems if system.name == "removed"))
    heads = {"total": left.heads_total, "closed": left.heads_total - left.count()}
    seed = folder.config().get("seed", 0)
    numbers = {
        "run": folder.path.resolve().name,
        "searches": searches,
        **text,
        "settings": asdict(plan),
        "heads": heads,
        "left_out": left_out,
        **measured,
    }
    write(out, numbers | runtime_provenance(threads, seed) | {"load_average_before": load})
    return out


def measure(systems: Sequence["System"], plan: Plan, test: "Lines") -> dict[str, Any]:
    """The systems' facts, the lengths' bounds in pieces, and a row for each system in each cell."""
    from headgates.report.speed.systems import open_system

    opened = {system.name: open_system(system.spec) for system in systems}
    pieces = [len(ids) for ids in opened["dense"].source_vocab.encode(test[0])]
    by_length = plan.sentences_by_length(pieces)
    cells = report_cells(plan, test[0], by_length)
    amount = f"{len(systems)} systems, {len(cells)} settings, {plan.repeats} rounds and a warm-up"
    say(f"{amount}; how long it takes is measured at the first setting")
    expected = expected_seconds(opened, cells, plan.repeats)
    begin = clock()
    rows: list[dict[str, Any]] = []
    for number, cell in enumerate(cells, start=1):
        timed = {name: TimedTranslation(system, cell) for name, system in opened.items()}
        alternate(timed, rounds=plan.repeats)
        rows += cell_rows(systems, timed)
        speeds = ", ".join(
            f"{row['system']} {row['sentences_per_second']['median']:.0f}" for row in rows[-len(systems) :]
        )
        left = time_left(expected, number, clock() - begin, len(systems))
        say(
            f"{number}/{len(cells)}  beam {cell.beam}, {cell.length}, batch {cell.batch}: sentences/s: {speeds}; {left}"
        )
    say("peak memory, each system in a fresh process")
    about = {}
    for system in systems:
        memory = add_memory(rows, system, cells)
        size = {"parameters": system.parameters, "file_bytes": system.file_bytes}
        about[system.name] = {"words": system.label, "against": system.against, **size, "memory": memory}
    bounds = {
        name: [min(pieces[i] for i in part), max(pieces[i] for i in part), len(part)]
        for name, part in by_length.items()
    }
    return {"systems": about, "lengths": bounds, "rows": rows}


def runtime_provenance(threads: int, seed: int) -> dict[str, Any]:
    """Provenance, with the versions of the runtimes that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    from headgates.workbench.provenance import device_name, provenance

    made_by = provenance(device_name(), "32", seed) | {"threads": threads}
    for package in ("onnxruntime", "ctranslate2"):
        try:
            made_by["versions"][package] = version(package)
        except PackageNotFoundError:
            continue  # its systems are in left_out
    return made_by


def write(out: Path, numbers: dict[str, Any]) -> None:
    """report.json, report.md, speed.png and speed.svg."""
    from headgates.report.speed.page import draw, findings, page
    from headgates.workbench.folder import RunFolder

    numbers["findings"] = findings(numbers)
    folder = RunFolder(out)
    folder.write_json("report.json", numbers)
    draw(numbers, folder / "speed")
    folder.write_text("report.md", page(numbers, "speed.png"))
    for sentence in numbers["findings"]:
        say(f"- {sentence}")
    say(f"{folder / 'report.md'}: tables; figure: {folder / 'speed.png'}")
