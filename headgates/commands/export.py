"""Write a run for other runtimes, without its closed heads, and check that it still says the same; or time
it beside the unpruned model.

python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from headgates.commands import start

if TYPE_CHECKING:
    from headgates.configs.export import ExportConfig


def main() -> int:
    return start(
        "export.py",
        "headgates.configs.export:ExportConfig",
        export_or_report,
        about=__doc__,
        interrupted="nothing was written",
    )


def export_or_report(config: "ExportConfig") -> None:
    """Export one system in one format, or with --report time it beside the unpruned model."""
    from headgates.records.named_paths import check_data_dir, check_run

    check_run(config.source)
    check_data_dir(config.data_dir)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    import torch

    from headgates.bridges.exported import format_named, require_packages
    from headgates.bridges.formats import check_target_folder, export
    from headgates.configs.methods import method_of
    from headgates.configs.source import SourceOptions
    from headgates.configs.systems import file_name
    from headgates.records.runtime import export_facts
    from headgates.records.source import find_run, open_source

    if config.to is not None:
        require_packages(format_named(config.to).packages)
    if config.threads:
        torch.set_num_threads(config.threads)
    folder = find_run(config.source, config)
    method, systems = method_of(folder.config()), folder.systems()
    removed = (
        method.removed if method and method.removed in systems else None
    )  # without its closed heads, unless --system says otherwise
    source = open_source(
        folder.path,
        config.system or removed,
        finished=True,
        device="cpu",
        options=SourceOptions(data_dir=config.data_dir),
    )
    if config.to is None:
        from headgates.report.speed.side_by_side import report_speed

        report_speed(source, config)
        return
    system, translator = source.system, source.translator
    out = Path(config.out) if config.out is not None else folder / f"exported/{file_name(system)}-{config.to}"
    check_target_folder(out, config.fresh)
    lines, references = source.lines("test", config.sentences)
    print(f"{folder.path}: {system} to {config.to}, checked on {len(lines)} sentences", flush=True)
    about = export(
        translator,
        config.to,
        out,
        lines=lines,
        references=references,
        provenance=export_facts(source),
        fresh=config.fresh,
    )
    found, size = about["parity"], sum(about["files"].values())
    difference, pieces = found["log_prob_max_difference"], found["pieces"]
    print(f"largest difference of a log-probability: {difference:.1e} nats, over {pieces} pieces")
    for name, compared in found.items():
        if isinstance(compared, dict):
            same = len(lines) - compared["differing"]
            print(f"identical translations, {name.replace('_', ' ')}: {same} of {len(lines)}")
    if "said" in about:
        print(about["said"])
    print(f"{out}: {size / 2**20:.1f} MB; translate.py {out} uses it")


if __name__ == "__main__":
    sys.exit(main())
