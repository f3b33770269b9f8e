"""Write a run for other runtimes, without its closed heads, and check that it still says the same; or report what removal is worth.

python export.py runs/toy-en-de-l0-0.01-s1 --to onnx
"""

import sys
from pathlib import Path

from configs.cli import parse
from configs.export import ExportConfig

REMOVED = "l0-removed"  # the system without its closed heads; what is exported unless --system says otherwise


def main() -> int:
    config = parse(ExportConfig, prog="export.py", description=__doc__.split("\n")[0])
    # after parsing: these take seconds to import, and --help and a mistyped flag need none of them
    try:
        if config.report is not None:
            from speed.report import report

            report(config)
        else:
            write(config)
    except (ValueError, OSError) as error:
        print(f"export.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("export.py: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def write(config: ExportConfig) -> None:
    """Export one system in one format."""
    import torch

    from models.formats import check_target_folder, export, format_named, need
    from runfolder.folder import RunFolder
    from runfolder.provenance import device_name, provenance
    from runfolder.source import open_source, run_corpus

    assert config.to is not None  # ExportConfig: no report, so a format
    need(format_named(config.to).packages)
    if config.threads:
        torch.set_num_threads(config.threads)
    folder = RunFolder.open(config.source)
    result = folder.result()
    if result is None or not folder.finished():
        raise ValueError(f"{folder.path} is not finished; the command in its command.txt with --resume continues it")
    system = config.system or (REMOVED if REMOVED in folder.systems() else result.get("system", "base"))
    translator = open_source(folder.path, system, device="cpu").translator
    out = Path(config.out) if config.out is not None else folder / f"exported/{system}-{config.to}"
    check_target_folder(out, config.fresh)
    test = run_corpus(folder, config.data_dir).test
    lines, references = (list(side[: config.sentences or None]) for side in (test.sources, test.targets))
    print(f"{folder.path}: {system} to {config.to}, checked on {len(lines)} sentences", flush=True)
    facts = {"run": folder.path.resolve().name, "system": system, **provenance(device_name(), "32", folder.config().get("seed", 0))}
    about = export(translator, config.to, out, lines=lines, references=references, facts=facts, fresh=config.fresh)
    found, size = about["parity"], sum(about["files"].values())
    print(f"largest difference of a log-probability: {found['log_prob_max_difference']:.1e} nats, over {found['pieces']} pieces")
    for name, compared in found.items():
        if isinstance(compared, dict):
            print(f"identical translations, {name.replace('_', ' ')}: {len(lines) - compared['differing']} of {len(lines)}")
    print(f"{out}: {size / 2**20:.1f} MB; translate.py {out} uses it")


if __name__ == "__main__":
    sys.exit(main())
