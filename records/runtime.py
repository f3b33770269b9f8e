"""CTranslate2 in the place of a run's own search on a CPU: exported once into the run's folder, checked and
timed on its test lines, and kept there. What is kept is opened without torch.

`auto` takes it only where it is faster and gives the same lines: every one of the checked lines, greedily and
with the run's beam. What rounds, CTranslate2's int8 and the run's own search in bf16, is asked for by name,
and says how many of the checked lines it translates otherwise.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from headgates.bridges.exported import FORMATS, is_exported, open_exported, read_export, require_packages
from headgates.configs.printable import printable
from headgates.configs.settings import SearchConfig, read_search
from headgates.configs.translating import Translating
from headgates.data.text import DataError, digest_lines
from headgates.models.line_translator import LineTranslator
from headgates.models.progress import Report
from headgates.records.folder import RunFolder
from headgates.records.foreign_source import is_foreign

if TYPE_CHECKING:
    from headgates.records.source import Source

FP32 = "float32"
CHECKED = 100  # test lines, as `export.py` checks
REFUSED_FILE = "ct2-refused.json"  # beside the run's exports: why CTranslate2 is not this model
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of a machine that may have a GPU for torch


class Refused(TypedDict):
    fingerprint: str
    why: str


class RoundedLines(TypedDict):
    fingerprint: str
    lines: int
    differing: int


def kept_runtime(config: Translating, report: Report) -> LineTranslator | None:
    """What `open_runtime` takes for a run, opened without torch: CTranslate2 where it was exported and
    checked before and nothing has changed since; else None."""
    may_have_gpu = sys.platform == "win32" or any(Path(driver).exists() for driver in DRIVERS)
    on_cpu = config.device == "cpu" or (config.device is None and not may_have_gpu)
    if config.runtime in ("torch", "bf16") or not on_cpu or is_foreign(config.source):
        return None
    run = RunFolder.open(config.source)
    system = config.system or run.own_system()
    if system not in run.systems():
        return None
    folder = run / exported_name(system)
    if not is_kept(folder, run, system):
        return None
    run.weights_of(system)  # which raises where they have changed
    search = read_search(run.config().get("search", {}), run.path)
    if config.runtime == "auto":
        if not is_checked(config, search) or why_not(folder, config, search):
            return None
    elif config.runtime == "int8" and not tell_rounded("int8", run, system, report):
        return None
    return open_kept(folder, config, search, report)


def open_runtime(
    source: "Source", config: Translating, report: Report, *, make: bool = True
) -> LineTranslator:
    """What translates for a `--runtime`. make: whether auto may export the model, which takes a while.
    report: takes a line for the user on what was taken. Raises ValueError where the runtime that is named
    cannot be had."""
    runtime, own = config.runtime, source.translator
    if runtime == "torch":
        return own
    on_gpu = next(source.model.parameters()).device.type != "cpu"
    if runtime != "auto":
        if on_gpu:
            raise ValueError(f"--runtime {runtime} translates on a CPU; give --device cpu, or leave it out")
        if runtime == "bf16":
            rounded = own.in_bf16()
            report_rounded(source, runtime, rounded, lambda: own, report)
            return rounded
        folder = exported(source, report)
        found = open_kept(folder, config, own.search, report)
        if runtime == "int8":
            report_rounded(
                source, runtime, found, lambda: open_exported(folder, threads=config.threads), report
            )
        return found
    kept = is_kept(source.folder / exported_name(source.system), source.folder, source.system)
    if on_gpu or not is_checked(config, own.search) or not (make or kept):
        return own
    try:
        if (own_type := str(next(source.model.parameters()).dtype).removeprefix("torch.")) != FP32:
            raise ValueError(rounds_otherwise(own_type))
        folder = exported(source, report)
        if why := why_not(folder, config, own.search):
            raise ValueError(why)
        return open_kept(folder, config, own.search, report)
    except (
        ValueError,
        OSError,
    ) as error:  # also of a folder that may not be written to, a text that is not there, a package
        why = " ".join(str(error).split())
        report(printable(f"translating by the run's own search: {why} (--runtime torch turns this line off)"))
        return own


def is_checked(config: Translating, search: SearchConfig) -> bool:
    """Whether nothing is asked for but the best lines of the run's own search, or of greedy search: there
    CTranslate2 is known to give the same, or not to."""
    return (
        config.n_best <= 1
        and not config.scores
        and config.length_penalty in (None, search.length_penalty)
        and config.beam in (None, 1, search.beam)
    )


def why_not(folder: Path, config: Translating, search: SearchConfig) -> str | None:
    """Why auto does not take what is kept: a checked line was translated otherwise, or it was slower."""
    if (own_type := read_export(folder).get("own_type", FP32)) != FP32:
        return rounds_otherwise(own_type)
    found, sentences = found_by_check(folder, config, search)
    if found["differing"]:
        return (
            f"CTranslate2 translates {found['differing']} of {sentences} test lines otherwise, at "
            f"near ties (scores at most {found['largest_score_gap']:.1e} nats a token apart); --runtime ct2 "
            f"takes it all the same"
        )
    return None if found["speedup"] > 1 else f"CTranslate2 has {found['speedup']:.2f} times its speed here"


def rounds_otherwise(own_type: str) -> str:
    return f"it is in {own_type}, CTranslate2 in {FP32}; --runtime ct2 takes it all the same"


def found_by_check(folder: Path, config: Translating, search: SearchConfig) -> tuple[dict[str, Any], int]:
    """What the check found with the beam that is asked for, and on how many lines."""
    parity = read_export(folder)["parity"]
    name = "greedy" if 1 in (config.beam, search.beam) else f"beam_{search.beam}"
    return parity[name], parity["sentences"]


def open_kept(folder: Path, config: Translating, search: SearchConfig, report: Report) -> LineTranslator:
    """The model of such a folder; auto says what it took."""
    if config.runtime == "auto":
        found, sentences = found_by_check(folder, config, search)
        report(
            f"translating by CTranslate2: {found['speedup']:.1f} times as fast as the run's own search, "
            f"and the same on {sentences} test lines (--runtime torch takes its own)"
        )
    compute_type = "int8" if config.runtime == "int8" else "float32"
    return open_exported(folder, threads=config.threads, compute_type=compute_type)


def exported_name(system: str) -> str:
    return f"exported/{system}-ct2"


def fingerprint(run: RunFolder, system: str) -> str:
    """Digits that change with a system's weights, gates or search, by what the run's files say."""
    about = {"system": run.systems()[system], "search": run.config().get("search", {})}
    return digest_lines([json.dumps(about, sort_keys=True)])


def is_kept(folder: Path, run: RunFolder, system: str) -> bool:
    """Whether `exported` wrote this folder, and the system is still what it was."""
    return is_exported(folder) and read_export(folder).get("fingerprint") == fingerprint(run, system)


def exported(source: "Source", report: Report) -> Path:
    """The folder of this system for CTranslate2, inside the run's, written there unless it is. Raises
    ValueError where it cannot be."""
    run, system, now = source.folder, source.system, fingerprint(source.folder, source.system)
    folder = run / exported_name(system)
    if is_kept(folder, run, system):
        return folder
    from headgates.bridges.formats import check_target_folder, export
    from headgates.bridges.parity import ParityError

    require_packages(FORMATS["ct2"].packages)  # before anything is said of an export
    refused = f"exported/{system}-{REFUSED_FILE}"
    if (run / refused).is_file() and (known := run.read_json(refused, Refused))["fingerprint"] == now:
        raise ValueError(known["why"])
    check_target_folder(folder, fresh=True)
    try:
        lines, references = source.lines("test", CHECKED)
    except DataError as error:
        raise ValueError(
            f"CTranslate2 is checked on the run's test lines, which cannot be read: {error}"
        ) from error
    report(f"{folder}: exporting {system} for CTranslate2 and checking it on {len(lines)} test lines, once")
    facts = export_facts(source)
    try:
        export(
            source.translator, "ct2", folder, lines=lines, references=references, provenance=facts, fresh=True
        )
    except ParityError as error:
        run.write_json(refused, {"fingerprint": now, "why": str(error)})
        raise
    return folder


def exported_before(folder: Path, source: "Source", format: str, sentences: int) -> dict[str, Any] | None:
    """What export.json says of a folder that holds the model as it is now, in this format, checked on so many
    test lines; None where there is none."""
    if not is_kept(folder, source.folder, source.system):
        return None
    about = read_export(folder)
    now = format, asdict(source.translator.search), sentences
    return about if (about["format"], about["search"], about["parity"]["sentences"]) == now else None


def export_facts(source: "Source") -> dict[str, Any]:
    """What export.json says of where a model comes from."""
    from headgates.records.provenance import device_name, provenance

    config = source.folder.config()
    about = {"run": source.folder.path.resolve().name, "system": source.system, "weights": source.weights}
    return {
        **about,
        "fingerprint": fingerprint(source.folder, source.system),
        "src": config.get("src"),
        "tgt": config.get("tgt"),
        **provenance(device_name(), "32", config.get("seed", 0)),
    }


def tell_rounded(runtime: str, run: RunFolder, system: str, report: Report) -> bool:
    """Say how many of the run's test lines a rounded runtime translates otherwise. False where they are not
    counted."""
    name = f"exported/{system}-{runtime}.json"
    known = run.read_json(name, RoundedLines) if (run / name).is_file() else None
    if known is None or known["fingerprint"] != fingerprint(run, system):
        return False
    report(f"{runtime}: {known['differing']} of {known['lines']} test lines are not those of fp32")
    return True


def report_rounded(
    source: "Source",
    runtime: str,
    rounded: LineTranslator,
    exact: Callable[[], LineTranslator],
    report: Report,
) -> None:
    """Say it, counting the lines unless they were counted before, or that they cannot be counted: without
    text, or in a folder that may not be written to. exact: opens the same in fp32."""
    run, system = source.folder, source.system
    if tell_rounded(runtime, run, system, report):
        return
    try:
        lines, _ = source.lines("test", CHECKED)
        both = zip_longest(rounded.translate(lines), exact().translate(lines))
        known: RoundedLines = {
            "fingerprint": fingerprint(run, system),
            "lines": len(lines),
            "differing": sum(one != another for one, another in both),
        }
        run.write_json(f"exported/{system}-{runtime}.json", known)
    except (ValueError, OSError) as error:
        why = " ".join(str(error).split())
        report(printable(f"{runtime}: how many lines it translates otherwise is not known: {why}"))
        return
    tell_rounded(runtime, run, system, report)
