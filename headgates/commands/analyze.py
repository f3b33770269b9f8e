"""Say what the heads of a trained model do: confidence, relevance, positions, syntax, rare words, alignment;
and which of them survive.

python analyze.py runs/toy-en-de-none-s1 --siblings
"""

import sys
from typing import TYPE_CHECKING

from headgates.commands import start
from headgates.data.ranks import first
from headgates.models.progress import say

if TYPE_CHECKING:
    from headgates.analysis.results import AnalysisResult
    from headgates.configs.analyze import AnalyzeConfig
    from headgates.workbench.analysed_model import AnalysedModel


def main() -> int:
    return start(
        "analyze.py",
        "headgates.configs.analyze:AnalyzeConfig",
        analyze,
        about=__doc__,
        interrupted="the same command goes on after the last finished analysis",
    )


def analyze(config: "AnalyzeConfig") -> None:
    """Run the analyses, then combine them: roles, correlations, survival, the page and the figures."""
    from headgates.workbench.named_paths import check_data_dir, check_files, check_run
    from headgates.workbench.processes import join

    join()
    for source in config.sources:
        check_run(source)
    check_data_dir(config.data_dir)
    kind, _, trees = (config.parses or "").partition(":")
    check_files(config.text, config.examples_from, trees if kind == "conllu" else None)
    # only now: these take seconds to import, and --help, a mistyped flag and a wrong path need none of them
    from headgates.workbench.analysed_model import AnalysedModel
    from headgates.workbench.analyses import chosen_analyses, run_analyses

    analysed = AnalysedModel.open(config, say)
    results_folder = analysed.folder / analysed.results_folder
    print(f"{analysed.folder.path}: {analysed.system}; results go to {results_folder}", flush=True)
    results = run_analyses(analysed, chosen_analyses(analysed))
    first(lambda: combine(analysed, results))


def combine(analysed: "AnalysedModel", results: "dict[str, AnalysisResult]") -> None:
    """Roles, correlations and survival from the results, with their tables, pages and figures."""
    from headgates.analysis.roles import best_of_families, find_roles
    from headgates.report import analysis_tables
    from headgates.report.fill import write_pages
    from headgates.report.head_figures import draw_all
    from headgates.report.page import write_page
    from headgates.report.report_data import report_data, sites_of, write_cards
    from headgates.workbench.correlations import correlation_rows, head_scores, survival_rows
    from headgates.workbench.table import write_table

    roles, best = find_roles(results, analysed.closed), best_of_families(results, analysed.closed)
    scores = head_scores(analysed, results)
    survival, tests = survival_rows(analysed, results, roles)
    correlations = correlation_rows(scores)
    tables = {
        "roles": [role.row() for role in roles],
        "nearest": [role.row() for role in best],
        "correlations": correlations,
    }
    for name, rows in (tables | {"survival": survival, "survival-test": tests}).items():
        write_table(analysed.folder, f"{analysed.results_folder}/{name}.csv", rows)
    data = report_data(
        analysed, results, roles, {"correlations": correlations, "survival": survival, "tests": tests}
    )
    write_cards(analysed, data)
    analysis_tables.heads_table(analysed, roles, scores, sites_of(analysed))
    analysis_tables.nearest_table(best)
    analysis_tables.syntax_table(results)
    analysis_tables.correlations_table(correlations)
    analysis_tables.survival_table(survival, tests)
    if analysed.is_whole:
        pages = write_pages(analysed, data, [*analysed.folders, analysed.base])
    else:  # of one system, one text or some kinds: the run's own page shows everything
        pages = [analysed.folder / f"{analysed.results_folder}/report.html"]
        write_page(data, pages[0])
    for path in pages:
        print(f"report: {path}")
    for path in draw_all(analysed, scores, roles, survival):
        print(f"figure: {path}.png")


if __name__ == "__main__":
    sys.exit(main())
