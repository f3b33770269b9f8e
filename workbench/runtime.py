"""CTranslate2 in the place of a run's own search on a CPU: exported once into the run's folder, checked on
its test lines, and kept there.

`auto` takes it only where it gives the same lines: every one of the checked lines, greedily and with the
run's beam. int8 is asked for by name, and says how many of the checked lines it translates otherwise.
"""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from headgates.bridges.formats import check_target_folder, export, is_exported, open_exported, read_about
from headgates.configs.printable import printable
from headgates.configs.systems import file_name
from headgates.data.parallel import DataError
from headgates.models.line_translator import LineTranslator
from headgates.workbench.provenance import device_name, provenance
from headgates.workbench.source import Source

CHECKED = 100  # test lines, as `export.py` checks
INT8 = "int8.json"  # beside the run's exports: how many lines int8 translates otherwise


def open_runtime(
    source: Source, runtime: str, *, beam: int, plain: bool, threads: int, report: Callable[[str], None]
) -> LineTranslator:
    """What translates for `--runtime torch|ct2|int8|auto`.

    beam: the width that is asked for, 0 for the run's own. plain: whether nothing but the best line is asked
    for, by the run's own length penalty, which is what was checked. report: takes a line for the user, such
    as why the run's own search is used after all. Raises ValueError where the runtime that is named cannot be
    had."""
    if runtime == "torch":
        return source.translator
    on_gpu = next(source.model.parameters()).device.type != "cpu"
    if runtime != "auto":
        if on_gpu:
            raise ValueError(f"--runtime {runtime} translates on a CPU; give --device cpu, or leave it out")
        folder = exported(source, report)
        if runtime == "int8":
            tell_int8(source, folder, threads, report)
        return open_exported(folder, threads=threads, compute_type="int8" if runtime == "int8" else "float32")
    own = source.translator
    if on_gpu or not plain or beam not in (0, 1, own.search.beam):
        return own  # where CTranslate2 is not known to give the same
    try:
        folder = exported(source, report)
        check_same(folder, 1 if beam == 1 else own.search.beam)
        return open_exported(folder, threads=threads)
    except (
        ValueError,
        OSError,
    ) as error:  # also of a folder that may not be written to, a text that is not there, a package
        report(printable(f"--runtime auto: translating with torch: {' '.join(str(error).split())}"))
        return own


def exported(source: Source, report: Callable[[str], None]) -> Path:
    """The folder of these weights for CTranslate2, inside the run's, written there unless it is. Raises
    ValueError where it cannot be."""
    folder = source.folder / f"exported/{file_name(source.system)}-ct2"
    if is_exported(folder) and read_about(folder).get("weights") == source.weights:
        return folder
    check_target_folder(folder, fresh=True)
    try:
        lines, references = source.lines("test", CHECKED)
    except DataError as error:
        raise ValueError(
            f"the test lines of the run, by which CTranslate2 is checked, are not there: {error}"
        ) from error
    report(
        f"{folder}: exporting {source.system} for CTranslate2 and checking it on {len(lines)} test "
        f"lines, once"
    )
    export(
        source.translator,
        "ct2",
        folder,
        lines=lines,
        references=references,
        provenance=export_facts(source),
        fresh=True,
    )
    return folder


def export_facts(source: Source) -> dict[str, Any]:
    """What export.json says of where a model comes from."""
    config = source.folder.config()
    about = {"run": source.folder.path.resolve().name, "system": source.system, "weights": source.weights}
    return {
        **about,
        "src": config.get("src"),
        "tgt": config.get("tgt"),
        **provenance(device_name(), "32", config.get("seed", 0)),
    }


def check_same(folder: Path, beam: int) -> None:
    """Raises ValueError where a checked line was translated otherwise with this beam."""
    parity = read_about(folder)["parity"]
    found = parity["greedy" if beam == 1 else f"beam_{beam}"]
    if found["differing"]:
        raise ValueError(
            f"CTranslate2 translates {found['differing']} of {parity['sentences']} test lines otherwise, "
            f"at near ties "
            f"(scores at most {found['largest_score_gap']:.1e} nats a token apart); --runtime ct2 takes it "
            f"all the same"
        )


def tell_int8(source: Source, folder: Path, threads: int, report: Callable[[str], None]) -> None:
    """Say how many of the run's test lines int8 translates otherwise; they are counted once."""
    name = f"exported/{file_name(source.system)}-{INT8}"
    known = source.folder.read_json(name) if (source.folder / name).is_file() else {}
    if known.get("weights") != source.weights:
        lines, _ = source.lines("test", CHECKED)
        found = open_exported(folder, threads=threads, compute_type="int8").translate(lines)
        exact = open_exported(folder, threads=threads).translate(lines)
        other = sum(one != another for one, another in zip_longest(found, exact))
        known = {"weights": source.weights, "lines": len(lines), "differing": other}
        source.folder.write_json(name, known)
    report(f"int8: {known['differing']} of {known['lines']} test lines are not those of fp32")
