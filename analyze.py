"""Say what the heads of a trained model do: confidence, relevance, positions, syntax, rare words, alignment; and which of them survive.

python analyze.py runs/toy-en-de-none-s1 --siblings
"""

import sys
from typing import TYPE_CHECKING

from configs.analyze import AnalyzeConfig
from configs.cli import parse
from models.progress import say

if TYPE_CHECKING:
    from analysis.study import Study


def main() -> int:
    config = parse(AnalyzeConfig, prog="analyze.py", description=__doc__.split("\n")[0])
    # after parsing: these take seconds to import, and --help and a mistyped flag need none of them
    from analysis.study import Study

    try:
        study = Study.open(config, say)
        print(f"{study.folder.path}: {study.system}; results go to {study.folder / study.place}", flush=True)
        analyze(study)
    except (ValueError, OSError) as error:
        print(f"analyze.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("analyze.py: interrupted; the same command goes on after the last finished analysis", file=sys.stderr)
        return 130
    return 0


def analyze(study: "Study") -> None:
    """All analyses, then what they say together: tables, cards and figures."""
    from analysis import correlations as together
    from analysis.analyses import analyse, chosen
    from analysis.roles import find_roles, nearest
    from report import analysis_tables as summary
    from report.fill import write_pages
    from report.head_figures import draw_all
    from report.page import write_page
    from report.report_data import cards, sites_of, write_cards
    from runfolder.folder import RunFolder
    from runfolder.table import write_table

    found = analyse(study, chosen(study, say), say)
    roles = find_roles(found)
    scores = together.scores(study, found)
    survival, tests = together.survival(study, found, roles, say)
    tables = {"correlations": together.correlations(scores), "survival": survival, "tests": tests}
    best = nearest(found)
    for name, rows in {"roles": [role.row() for role in roles], "nearest": [role.row() for role in best], **tables}.items():
        write_table(study.folder, f"{study.place}/{'survival-test' if name == 'tests' else name}.csv", rows)
    data = cards(study, found, roles, tables)
    write_cards(study, data)
    summary.heads_table(study, roles, scores, sites_of(study))
    summary.nearest_table(best)
    summary.syntax_table(found)
    summary.correlations_table(tables["correlations"])
    summary.survival_table(survival, tests)
    if study.is_whole:
        pages = write_pages(study, data, [*map(RunFolder, study.config.runs), study.base])
    else:  # of one system, one text or some kinds: the run's own page is of all
        pages = [study.folder / f"{study.place}/report.html"]
        write_page(data, pages[0])
    for path in pages:
        print(f"report: {path}")
    for path in draw_all(study, scores, roles, survival):
        print(f"figure: {path}.png")


if __name__ == "__main__":
    sys.exit(main())
