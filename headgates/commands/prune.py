"""Close attention heads, or feed-forward neurons, of a trained model, or drop layers, without training:
importance, order, curve; ablations; Michel et al. 2019.

python prune.py runs/toy-en-de-none-s1 --by importance,random
python prune.py runs/toy-en-de-none-s1 --reconstruct out+ffn --heads 24 --save toy-24
python prune.py runs/toy-en-de-none-s1 --kinds ffn --by obs --reconstruct out --neurons 512 --save half
python prune.py runs/toy-en-de-none-s1 --drop-layers encoder.1 --reconstruct out+ffn --save shallow
python prune.py runs/toy-en-de-none-s1 --speedup 1.25,1.5,2 --runtime int8
python prune.py runs/toy-en-de-none-s1 --trim-vocabulary in.txt --save trimmed
"""

import sys
from functools import partial
from typing import TYPE_CHECKING

from headgates.commands import start
from headgates.data.ranks import first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.configs.prune import PruneConfig
    from headgates.workbench.closing import Calibration
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.table import Row
    from headgates.workbench.unpruned_model import UnprunedModel


def main() -> int:
    return start(
        "prune",
        "headgates.configs.prune:PruneConfig",
        prune,
        about=__doc__,
        interrupted="the same command continues after the last finished step",
    )


def prune(config: "PruneConfig") -> None:
    """Draw the curves and make the ablations that the configuration asks for, and bring the report pages up
    to date."""
    from headgates.workbench.named_paths import check_data_dir, check_run, check_texts, new_run
    from headgates.workbench.processes import join

    join()
    check_run(config.source)
    check_data_dir(config.data_dir)
    check_texts(config.trim_vocabulary)
    new_run(config)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.report.fill import update_pages
    from headgates.workbench.unpruned_model import UnprunedModel

    unpruned = UnprunedModel.open(config)
    print(f"{unpruned.folder.path}: the model without gates; results are written there", flush=True)
    others = [unpruned.other(corpus, config.test_sentences) for corpus in config.also]
    runs = [unpruned.folder]
    if config.trim_vocabulary:
        runs = [trimmed(unpruned, config)]  # the base's page has nothing of it
    elif config.makes_points:
        runs += points(unpruned, config)
    elif config.orders:
        curves(unpruned, config)
    if config.ablate:
        ablate(unpruned, config, others)
    if unpruned.unlearned:
        print(f"{unpruned.unlearned}.")
    for run in runs:
        for page in first(
            partial(update_pages, run, say, data_dir=unpruned.data_dir, corpus=unpruned.corpus)
        ):
            print(f"report: {page}")
    if config.save is None:
        how = "--speedup X plans, and trains on" if config.plans else "--gate l0 learns which heads to close"
        print(f"next: python fit.py --base {unpruned.folder.path} {how}")


def points(unpruned: "UnprunedModel", config: "PruneConfig") -> "list[RunFolder]":
    """Drop the layers of --drop-layers, close down to each number of --heads and --neurons, or to what a plan
    says, and print the table of compare.py, or that of speeds. Return the run that --save leaves, if any."""
    from headgates.analysis.significance import RESAMPLES, resample_counts
    from headgates.report.compare_files import show_compared
    from headgates.report.compare_groups import Compared
    from headgates.report.speed.planned import write_planned
    from headgates.report.table import next_commands, size_sentences
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.named_paths import new_run
    from headgates.workbench.planned import Plans
    from headgates.workbench.points import asked_by_orders, measure_points

    save, calibration = new_run(config), calibration_of(unpruned, config)
    metrics = unpruned.task.metrics
    if config.plans:
        with Plans(unpruned, config, calibration) as plans:
            found = measure_points(unpruned, config, calibration, plans.asked(), save=save, run=plans.run)
            write_planned(unpruned, [each.row for each in found], plans.search)
    else:
        asked = asked_by_orders(unpruned, config)
        base, *found = measure_points(unpruned, config, calibration, asked, save=save)
        compared = Compared(found, [base], resample_counts(len(unpruned.test[0]), RESAMPLES))
        row = found[-1].row
        sentences = [
            f"With {row.open_words} the model has {row.main.value:.2f} {metrics[0].title} on the test set, "
            f"{row.main.difference:+.2f} against the unpruned model.",
            *size_sentences([base.row, row]),
        ]
        said = [] if unpruned.unlearned else sentences
        show_compared(compared, said, metrics=metrics, title=str(unpruned.folder.path))
    if save is None:
        return []
    run = RunFolder(save)
    print(f"saved: {save}, the model without what is closed")
    print("next:", *next_commands(run), sep="\n  ")
    return [run]


def trimmed(unpruned: "UnprunedModel", config: "PruneConfig") -> "RunFolder":
    """Leave a run whose vocabulary has the pieces of a text, print what that changes, and return it."""
    from headgates.report.table import measure_cells, next_commands, show
    from headgates.workbench.folder import RunFolder
    from headgates.workbench.named_paths import new_run
    from headgates.workbench.trimming import trim_vocabulary

    save = new_run(config)
    assert save is not None  # PruneConfig guarantees it
    rows, about = first(lambda: trim_vocabulary(unpruned, config, save))
    cells = []
    for i, (name, row) in enumerate(zip(("all pieces", "trimmed"), rows, strict=True)):
        main, *others = row.measures.values()
        pieces = [f"{about['pieces'][side][i]:,}" for side in ("source", "target")]
        measured = measure_cells(main, (each.value for each in others), is_reference=i == 0)
        cells.append([name, *pieces, f"{row.parameters:,}", f"{about['bytes'][i] / 1e6:.2f}", *measured])
    title, *titles = (metric.title for metric in unpruned.task.metrics)
    columns = ["", "source pieces", "target pieces", "parameters", "MB", title, "95%", *titles]
    show(f"{save}: test set", [*columns, "difference", "95%", "p"], cells)
    text, test = about["text"], about["test"]
    print(
        f"Of the {text['lines']:,} lines of the text {text['cut_otherwise']:,} are cut otherwise and "
        f"{text['translated_otherwise']:,} translated otherwise; of the {test['lines']:,} test lines "
        f"{test['cut_otherwise']:,} and {test['translated_otherwise']:,}."
    )
    run = RunFolder(save)
    print(f"saved: {save}, the model with these pieces alone")
    print("next:", *next_commands(run), sep="\n  ")
    return run


def calibration_of(unpruned: "UnprunedModel", config: "PruneConfig") -> "Calibration":
    """The text that heads are closed with, read when it is first needed. Raises ValueError at a way that this
    model cannot take."""
    from headgates.workbench.closing import Calibration, check_closing

    check_closing(config.closing, unpruned.model)
    return Calibration(
        unpruned,
        sentences=config.calibration_sentences,
        targets=config.calibration_targets,
        seed=config.seed,
    )


def curves(unpruned: "UnprunedModel", config: "PruneConfig") -> None:
    """Draw a curve of the metric against closed heads for every order, or every order and kind, in one
    figure."""
    from headgates.configs.schema import KINDS
    from headgates.configs.systems import ScoreRow
    from headgates.report.pruning_figures import draw_curves
    from headgates.report.pruning_tables import curves_table
    from headgates.workbench.curve import MaskScorer, curve, figure_name

    scorer = MaskScorer(unpruned, config.closing, calibration_of(unpruned, config))
    curve_rows: dict[str, list[Row]] = {}
    labels = []
    for order in config.orders:
        for kinds in [[kind] for kind in config.kinds] if config.each_kind else [config.kinds]:
            curve_rows.update([curve(order, unpruned, config, kinds=kinds, scorer=scorer)])
            name = ScoreRow(order, config.closing).name
            labels.append(f"{name}-{kinds[0]}" if config.each_kind else name)
    path = unpruned.folder / f"curves/{figure_name(config)}"
    drawn = dict(zip(labels, curve_rows.values(), strict=True))
    all_kinds = set(config.kinds) == set(KINDS) and not config.each_kind
    points = unpruned.learned() if all_kinds else []
    how = "" if config.closing == "zero" else f", {config.closing}"
    title = f"{unpruned.folder.path.name}: heads closed without training{how}"
    metric = unpruned.task.metrics[0]
    draw_curves(drawn, path, metric=metric, points=points, title=title, search=unpruned.search)
    curves_table(unpruned, curve_rows)
    print(f"figure: {path}.png")


def ablate(
    unpruned: "UnprunedModel", config: "PruneConfig", others: list[tuple[str, tuple[list[str], list[str]]]]
) -> None:
    """Remove each head alone, or all but one of each layer; with --also on other test sets too."""
    from headgates.report.head_figures import draw_matrix
    from headgates.report.pruning_figures import draw_transfer
    from headgates.report.pruning_tables import all_but_one_table, one_table, transfer_table
    from headgates.workbench.ablation import ablate as make_table
    from headgates.workbench.ablation import table_name
    from headgates.workbench.transfer import transfer

    assert config.ablate is not None
    folder = unpruned.folder
    rows = make_table(config.ablate, unpruned, kinds=config.kinds, fresh=config.fresh)
    if config.ablate == "all-but-one":
        if not unpruned.unlearned:
            all_but_one_table(unpruned, rows)
        return
    path = folder / f"ablation/{table_name('one', config.kinds, config.beam)}"
    metric = unpruned.task.metrics[0]
    title = f"{folder.path.name}: {metric.title} without each head, minus that of the unpruned model"
    draw_matrix(rows, path, metric=metric, title=title)
    if not unpruned.unlearned:
        one_table(unpruned, rows)
    print(f"figure: {path}.png")
    for name, text in others:
        both, correlations = transfer(unpruned, name=name, text=text, kinds=config.kinds, fresh=config.fresh)
        transfer_table(name, metric.title, correlations)
        overall = correlations["all"]
        if overall["pearson"] and overall["spearman"]:
            path = folder / f"ablation/{table_name(f'transfer-{name}', config.kinds, config.beam)}"
            names = (unpruned.corpus.name, name)
            draw_transfer(
                both,
                path,
                metric=metric,
                names=names,
                pearson=overall["pearson"],
                spearman=overall["spearman"],
            )
            print(f"figure: {path}.png")


if __name__ == "__main__":
    sys.exit(main())
