"""Say what the heads of a trained model do: confidence, relevance, positions, syntax, rare words, alignment;
and which of them survive.

python analyze.py runs/toy-en-de-none-s1 --siblings
"""

import sys
from typing import TYPE_CHECKING

from headgates.commands import start
from headgates.data.contrast import read_contrasts
from headgates.data.ranks import first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.analysis.results import AnalysisResult
    from headgates.configs.analyze import AnalyzeConfig
    from headgates.explain.analysed_model import AnalysedModel


def main() -> int:
    return start(
        "analyze",
        "headgates.configs.analyze:AnalyzeConfig",
        analyze,
        about=__doc__,
        interrupted="the same command goes on after the last finished analysis",
    )


def analyze(config: "AnalyzeConfig") -> None:
    """Run the analyses, then combine them: roles, correlations, survival, the page and the figures."""
    from headgates.lab.processes import join
    from headgates.records.named_paths import check_data_dir, check_files, check_run

    join()
    for source in config.sources:
        check_run(source)
    check_data_dir(config.data_dir)
    kind, _, trees = (config.parses or "").partition(":")
    check_files(config.text, config.examples_from, trees if kind == "conllu" else None)
    if config.contrast is not None:
        read_contrasts(config.contrast)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.explain.analysed_model import AnalysedModel
    from headgates.explain.analyses import chosen_analyses, run_analyses

    analysed = AnalysedModel.open(config, say)
    results_folder = analysed.folder / analysed.results_folder
    print(f"{analysed.folder.path}: {analysed.system}; results go to {results_folder}", flush=True)
    if nothing := next(filter(None, (row.unlearned for row in analysed.base.rows())), ""):
        print(f"{nothing}.", flush=True)
    results = run_analyses(analysed, chosen_analyses(analysed))
    first(lambda: combine(analysed, results))


def combine(analysed: "AnalysedModel", results: "dict[str, AnalysisResult]") -> None:
    """Roles, correlations and survival from the results, with their tables, pages and figures."""
    from headgates.explain.findings import find
    from headgates.report import analysis_tables, causes
    from headgates.report.contrasts import contrast_table
    from headgates.report.fill import page_data, write_pages
    from headgates.report.head_figures import draw_all
    from headgates.report.page import write_page
    from headgates.report.report_data import sites_of

    found = find(analysed, results)
    data = page_data(analysed, results, found)
    sites = sites_of(analysed, analysed.config.kinds)
    analysis_tables.heads_table(analysed, found.roles, found.scores, sites)
    analysis_tables.nearest_table(found.nearest)
    analysis_tables.syntax_table(results)
    analysis_tables.correlations_table(found.correlations)
    analysis_tables.survival_table(found.survival, found.tests)
    if found.causes is not None:
        causes.causes_table(found.causes, analysed.source.task.metrics[0])
    if found.contrast is not None:
        contrast_table(found.contrast)
    if analysed.is_whole:
        pages = write_pages(analysed, data, [*analysed.folders, analysed.base])
    else:  # of one system or one text: the run's own page shows everything
        pages = [analysed.folder / f"{analysed.results_folder}/report.html"]
        write_page(data, pages[0])
    for path in pages:
        print(f"report: {path}")
    for path in draw_all(analysed, found):
        print(f"figure: {path}.png")


if __name__ == "__main__":
    sys.exit(main())
