"""Compare every method on one base: the same heads, text and steps; one figure, one table, and what they say
in plain words.

python compare.py runs/toy-en-de-none-s1 --methods importance,weight-norm,random --heads 36,24,12
python compare.py runs/toy-en-de-none-s1 --speedups 1.5,2,3 --finetune 3
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgates.commands import start
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.configs.compare import CompareConfig
    from headgates.workbench.comparison import Comparison
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.grid import GridPoint
    from headgates.workbench.point import MadePoint, Point
    from headgates.workbench.row import ResultRow
    from headgates.workbench.source import Lines


def main() -> int:
    return start(
        "compare",
        "headgates.configs.compare:CompareConfig",
        compare,
        about=__doc__,
        interrupted="the same command continues where it stopped",
    )


def compare(config: "CompareConfig") -> int:
    """Make the points that are not finished yet, then write figure, tables and summary. Return 1 if a point
    has failed, else 0."""
    from headgates.workbench.named_paths import check_data_dir, check_run

    check_run(config.source)
    check_data_dir(config.data_dir)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.configs.own_file import own_file
    from headgates.workbench.comparison import PROTOCOL, Comparison
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.grid import FinishedRuns, only_one, run_grid

    comparison = Comparison(config)
    folder = RunFolder(own_file(config.runs, f"compare-{comparison.name}"))
    comparison.check_folder(folder)
    points = grid_points(comparison, folder)
    with only_one(folder):
        folder.write_text(PROTOCOL, comparison.protocol)
        made = FinishedRuns(config.runs)()
        waiting = [each for each in comparison.plan if each.run_hash not in made]
        say(
            f"{comparison.name}: {len(points)} points at {comparison.sizes_words}, "
            f"{len(waiting)} of them to make"
        )
        comparison.keep_scores(waiting)
        comparison.keep_translations(waiting)
        run_grid(
            points,
            folder,
            config,
            runs=config.runs,
            data_dir=comparison.shared.data_dir,
            retry=True,
            base=comparison.base,
        )
        write_results(comparison, points, folder)
        log_comparison(comparison, folder)
    failed = [point for point in points if point.status == "failed"]
    if failed:
        print(f"{len(failed)} of {len(points)} points have no run; the same command tries them again")
    print(f"next: python analyze.py {config.source} --siblings says what the heads do")
    return 1 if failed else 0


def grid_points(comparison: "Comparison", folder: "RunFolder") -> "list[GridPoint]":
    """The runs of a comparison; those without training are made in this process."""
    from headgates.workbench.comparison import PROTOCOL
    from headgates.workbench.grid import GridPoint, epochs_by_run, precision_words

    precision = precision_words(comparison.shared, comparison.config)
    with_neurons = bool(comparison.shared.gated_neurons)
    return [
        GridPoint(
            settings={
                "method": point.label,
                **size_settings(point, with_neurons),
                "epochs": point.epochs,
                "seed": point.seed,
            },
            words=["--config", str(folder / PROTOCOL), *point.words, *precision],
            run_hash=point.run_hash,
            needs=point.needs,
            epochs=epochs_by_run(
                point.config(comparison.shared), point.run_hash, comparison.base_hash, *point.needs
            ),
            system=point.system,
            here=None if point.epochs else partial(comparison.make_here, point),
        )
        for point in comparison.plan
    ]


def size_settings(point: "Point", with_neurons: bool) -> dict[str, Any]:
    """The columns that say how small or fast a point is to be."""
    if point.speedup is not None:
        return {"speed": f"{point.speedup:g}x"}
    heads = point.asked if point.lam is None else f"λ {point.lam:g}"
    return {"heads": heads, **({"neurons": point.neurons} if with_neurons else {})}


def write_results(comparison: "Comparison", points: "Sequence[GridPoint]", folder: "RunFolder") -> None:
    """Write the files of the comparison, print its tables and its summary, of each test set, and update the
    page of the base. Raises ValueError without a finished point."""
    from headgates.configs.systems import BASES
    from headgates.report.fill import update_pages
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.point import MadePoint, Point

    runs: dict[str, dict[str, Any]] = {}  # name -> result.json
    made: list[MadePoint] = []
    bases: dict[Point, MadePoint] = {}
    for asked, point in zip(comparison.plan, points, strict=True):
        if point.run is None:
            continue
        run = RunFolder(Path(comparison.config.runs) / point.run)
        runs[point.run] = run.read_json("result.json")
        rows = {row.system: row for row in run.rows()}
        made.append(made_point(comparison, run, asked, rows[asked.system]))
        for system in BASES:
            base = Point(system, 0, 0) if system == BASES[0] else Point(system, asked.epochs, asked.seed)
            if system in rows and base not in bases:
                row = rows[system]
                bases[base] = made_point(comparison, run, replace(base, asked=row.heads_open), row)
    if not made:
        raise ValueError(
            f"no point of {folder.path} is finished, so there is nothing to compare; its logs say why: "
            f"{folder / 'logs'}"
        )
    failed = [f"{point.title}: {point.error}" for point in points if point.run is None]
    write_comparison(comparison, made, [*bases.values()], folder, runs=runs, failed=failed)
    for name, text in comparison.others:
        say(f"{comparison.name}: {len(made) + len(bases)} systems on {name}")
        ours, theirs = ([on_text(comparison, each, text) for each in some] for some in (made, bases.values()))
        place = RunFolder(folder / name)
        write_comparison(comparison, ours, theirs, place, runs=runs, failed=failed, on=name)
    for page in update_pages(
        comparison.base, say, data_dir=comparison.config.data_dir, corpus=comparison.text.corpus
    ):
        print(f"report: {page}")


def write_comparison(
    comparison: "Comparison",
    made: "Sequence[MadePoint]",
    bases: "Sequence[MadePoint]",
    folder: "RunFolder",
    *,
    runs: dict[str, dict[str, Any]],
    failed: Sequence[str],
    on: str = "",
) -> None:
    """Write the files of the points on one test set, and print their tables and summary. on: its name, where
    it is not the run's own."""
    from headgates.analysis.significance import RESAMPLES, resample_counts
    from headgates.report.compare_files import show_compared, write_compared
    from headgates.report.compare_groups import Compared

    metrics, title = comparison.text.task.metrics, f"{comparison.name}{on and ' on '}{on}"
    counts = resample_counts(len(made[0].scored), RESAMPLES)
    compared = Compared(made, bases, counts)
    sentences = write_compared(
        compared,
        folder,
        metrics=metrics,
        title=f"{title}: methods compared on one base",
        about={
            "base": comparison.base.path.name,
            "base_hash": comparison.base_hash,
            "kinds": comparison.shared.kinds,
        },
        runs=runs,
        failed=failed,
        report=say,
    )
    show_compared(compared, sentences, metrics=metrics, title=title)


def on_text(comparison: "Comparison", point: "MadePoint", text: "Lines") -> "MadePoint":
    """A made point on other test lines; its loss stays that of validation."""
    from headgates.workbench.evaluation import measures_of, scored_on
    from headgates.workbench.source import open_source

    scored = scored_on(open_source(Path(comparison.config.runs) / point.run, point.row.system), text)
    row = replace(point.row, measures=measures_of(scored), reference=None, evaluation={}, seconds=None)
    return replace(point, row=row, scored=scored)


def made_point(comparison: "Comparison", run: "RunFolder", point: "Point", row: "ResultRow") -> "MadePoint":
    """A point with what its row of a finished run holds."""
    from headgates.analysis.significance import score
    from headgates.workbench.point import MadePoint

    scored = score(run.outputs(row.system), comparison.text.test[1], comparison.text.task.metrics[:1])
    stage = row.stage or {}
    loss = float(stage["losses"][stage["best_epoch"]]) if stage.get("losses") else None
    return MadePoint(**vars(point), run=run.path.name, row=row, scored=scored, loss=loss)


def log_comparison(comparison: "Comparison", folder: "RunFolder") -> None:
    """Log the table, the figure and the sentences of the comparison."""
    from headgates.report.compare_files import NAME
    from headgates.workbench.tracker import log_grid

    content, config = folder.read_json(f"{NAME}.json"), comparison.config
    asked = ("methods", "finetune", "heads", "lambdas", "speedups", "seeds", "seed")
    log_grid(
        folder,
        NAME,
        logger=config.logger,
        job="comparison",
        base=comparison.base,
        config={"kinds": content["kinds"], **{name: getattr(config, name) for name in asked}},
        summary={"summary": "\n".join(content["summary"]), "ranks": json.dumps(content["ranks"])},
    )


if __name__ == "__main__":
    sys.exit(main())
