"""Run every combination of a sweep file's values, and draw BLEU against heads.

python sweep.py configs/sweeps/lambda.yaml --jobs 2
python sweep.py pareto runs/toy-en-de-l0-0.01-s1 --siblings
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headgates.lab.exit_code import exit_code
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.configs.sweep import ParetoConfig, SweepConfig
    from headgates.pruning.grid import GridPoint
    from headgates.records.folder import RunFolder

ABOUT = "Run every combination of a sweep file's values. Also: sweep.py pareto RUN [RUN ...]."


def main() -> int:
    return exit_code("sweep.py", run, interrupted="the same command continues where it stopped")


def run() -> int:
    # here: an interrupt while these are imported, which takes a second, is one line too
    from headgates.configs.cli import parse
    from headgates.configs.sweep import ParetoConfig, SweepConfig

    if sys.argv[1:2] == ["pareto"]:
        return pareto(parse(ParetoConfig, sys.argv[2:], prog="sweep.py pareto"))
    return sweep(parse(SweepConfig, prog="sweep.py", description=ABOUT))


def sweep(config: "SweepConfig") -> int:
    """Make the runs that are not finished, then print the table of all and draw the figure. Return 1 if any
    has failed, else 0."""
    from headgates.pruning.sweep_file import read_sweep, trial_config
    from headgates.records.named_paths import check_data_dir

    check_data_dir(config.data_dir)
    trials = []
    for number, (settings, words) in enumerate(read_sweep(config.file), start=1):
        try:
            trials.append((settings, words, trial_config(words, config.data_dir)))
        except ValueError as error:
            raise ValueError(f"{config.file}: trial {number} {settings}: {error}") from None
    # after every check of the file: these take seconds to import
    from headgates.configs.own_file import own_file
    from headgates.pruning.grid import GridPoint, only_one, planned_runs, precision_words, run_grid
    from headgates.records.folder import RunFolder

    planned = planned_runs([trial for *_, trial in trials])
    points = [
        GridPoint(settings, [*words, *precision_words(trial, config)], *plan)
        for (settings, words, trial), plan in zip(trials, planned, strict=True)
    ]
    name = f"sweep-{config.name or Path(config.file).stem}"
    folder = RunFolder(own_file(config.runs, name))
    with only_one(folder):
        folder.write_text("sweep.yaml", Path(config.file).read_text(encoding="utf-8"))
        run_grid(points, folder, config, runs=config.runs, data_dir=config.data_dir, retry=config.retry)
        draw(points, folder, config)
    failed = [point for point in points if point.status == "failed"]
    if failed:
        print(
            f"{len(failed)} of {len(points)} runs failed; --retry continues them from their last checkpoint"
        )
    return 1 if failed else 0


def draw(points: "Sequence[GridPoint]", folder: "RunFolder", config: "SweepConfig") -> None:
    """Draw BLEU against heads for the runs that are done and their siblings, and log it."""
    from headgates.lab.tracker import log_grid
    from headgates.records.folder import RunFolder, base_of
    from headgates.report.bleu_heads import write_bleu_heads

    names = dict.fromkeys(point.run for point in points if point.run)
    done = [RunFolder(Path(config.runs) / name) for name in names]
    if not done:
        print("no run is finished, so there is no figure")
        return
    title = folder.path.name
    try:
        write_bleu_heads(with_siblings(done), folder.path, title=title)
    except ValueError as error:  # a sibling of other text must not cost the sweep its figure
        print(f"without siblings: {error}")
        write_bleu_heads(done, folder.path, title=title)
    scores = {point.title: point.score for point in points}
    log_grid(
        folder,
        "pareto",
        logger=config.logger,
        job="sweep",
        base=base_of(done[0]),
        config={"file": Path(config.file).name},
        summary={"scores": scores},
    )


def with_siblings(folders: "Sequence[RunFolder]") -> "list[RunFolder]":
    """The runs, then all other finished runs with gates on the same bases."""
    from headgates.records.folder import base_of
    from headgates.records.related import siblings

    bases = {base.path.resolve(): base for base in map(base_of, folders)}
    found = [*folders]
    for base in bases.values():
        found += siblings(base, besides=found, report=say)
    return list({folder.path.resolve(): folder for folder in found}.values())


def pareto(config: "ParetoConfig") -> int:
    """Write the figure and the tables of BLEU against open heads for the runs that are given."""
    from headgates.records.named_paths import check_run

    for path in config.runs:
        check_run(path)
    from headgates.records.folder import RunFolder
    from headgates.report.bleu_heads import write_bleu_heads

    folders = [RunFolder.open(path) for path in config.runs]
    out = Path(config.out) if config.out else folders[0].path.parent / "pareto"
    title = folders[0].path.resolve().name if len(folders) == 1 else f"{len(folders)} runs"
    title = title + " and siblings" * config.siblings if config.name == "pareto" else config.name
    chosen = with_siblings(folders) if config.siblings else folders
    write_bleu_heads(chosen, out, title=title, name=config.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
