"""Write a run for other runtimes and check that it still says the same; or time it beside its base.

python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headgates.bridges.exported import FORMATS, format_named, require_packages
from headgates.commands import start
from headgates.configs.fields import REQUIRED, check_ranges, setting
from headgates.configs.program import command_line
from headgates.configs.recipe import USUAL_BATCH
from headgates.configs.source import SourceOptions


@dataclass(frozen=True, kw_only=True)
class ExportOptions(SourceOptions):
    """Write a run for other runtimes, or time it beside its base.

    python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
    python export.py runs/toy-en-de-l0-0.01-s1 --report speed
    """

    source: str = setting(REQUIRED, "a run folder", positional=True)
    to: str | None = setting(
        None, "; ".join(f"{name}: {each.about}" for name, each in FORMATS.items()) + ".", choices=FORMATS
    )
    system: str | None = setting(
        None, "System of the run: base, base-continued or pruned. Default its own; analyze looks at the base."
    )
    out: str | None = setting(None, "Folder to write. Default SOURCE/exported/SYSTEM-FORMAT.")
    sentences: int = setting(
        0, "Sentences that scores, analyses and checks read, a sample; 0: their own number.", at_least=0
    )
    threads: int = setting(0, "CPU threads for torch, 0 for all.", at_least=0)
    fresh: bool = setting(False, "Repeat what is finished. What it wrote is emptied first.")
    report: Literal["speed"] | None = setting(
        None, "speed: time the model beside its base, by every runtime, instead of writing it."
    )
    batch: int = setting(USUAL_BATCH, "Sentences at once where a speed is measured.", at_least=1)
    beam: int = setting(1, "Beam width; 1 is greedy.", at_least=1)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.to is None and self.report is None:
            raise ValueError(f"nothing to do: give --to {', '.join(FORMATS)}, or --report speed")
        if self.to is not None and self.report is not None:
            raise ValueError("--report writes no model; leave --to out")
        timed = {"beam": self.beam > 1, "batch": self.batch != USUAL_BATCH}
        written = {"out": self.out is not None, "fresh": self.fresh}
        for name, is_given in (timed if self.report is None else written).items():
            if is_given and self.report is None:
                raise ValueError(f"--{name} is for --report; what is written searches as its run does")
            if is_given:
                raise ValueError(f"--{name} is for --to; --report writes into the run, anew each time")


def main() -> int:
    return start("export", ExportOptions, export_or_report, interrupted="nothing was written")


def export_or_report(options: ExportOptions, given: Mapping[str, Any]) -> None:
    """Export one system in one format, or with --report time it beside the base."""
    from headgates.records.named_paths import check_data_dir, check_run

    check_run(options.source)
    check_data_dir(options.data_dir)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    import torch

    from headgates.bridges.formats import check_target_folder, export
    from headgates.explain.aligning import aligning_heads
    from headgates.records.runtime import CHECKED, export_facts, exported_before
    from headgates.records.source import open_source

    if options.to is not None:
        require_packages(format_named(options.to).packages)
    if options.threads:
        torch.set_num_threads(options.threads)
    source = open_source(options.source, options.system, finished=True, device="cpu", options=options)
    if options.to is None:
        from headgates.report.speed.side_by_side import report_speed

        lines = source.lines("test", options.sentences or CHECKED)[0]
        report_speed(source, lines, batch=options.batch, beam=options.beam, threads=options.threads)
        return
    folder, system = source.folder, source.system
    out = Path(options.out) if options.out is not None else folder / f"exported/{system}-{options.to}"
    lines, references = source.lines("test", options.sentences or CHECKED)
    heads, alignment = aligning_heads(source) if format_named(options.to).aligns else ([], "")
    about = None if options.fresh else exported_before(out, source, options.to, len(lines))
    # `translate` names no heads that align words, and analyze may have found others since
    fresh = options.fresh or (
        about is not None and about.get("aligning", []) != [list(each) for each in heads]
    )
    if about is not None and not fresh:
        print(f"{out}: {system} is there already, as it is now; --fresh writes it again")
    else:
        check_target_folder(out, fresh)
        said = f"{system} to {options.to}, which is checked on {len(lines)} sentences"
        print(f"{folder.path}: {said}", flush=True)
        about = export(
            source.translator,
            options.to,
            out,
            lines=lines,
            references=references,
            provenance=export_facts(source),
            aligning=heads,
            fresh=fresh,
        )
    found, size = about["parity"], sum(about["files"].values())
    difference, pieces = found["log_prob_max_difference"], found["pieces"]
    print(f"largest difference of a log-probability: {difference:.1e} nats, over {pieces} pieces")
    for name, compared in found.items():
        if isinstance(compared, dict):
            same = len(lines) - compared["differing"]
            print(f"identical translations, {name.replace('_', ' ')}: {same} of {len(lines)}")
    for line in (alignment, about.get("said")):
        if line:
            print(line)
    print(f"{out}: {size / 2**20:.1f} MB; {command_line('translate', out)} uses it")
