"""Update `report.html` in run folders: `fit.py` brings gates and comparisons, `prune.py` curves and
ablations, `analyze.py` roles, relevance and sentences.

Every update reads the folders again; results of analyses come from the cards.json of the last `analyze.py` on
the same weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgates.configs.analyze import AnalyzeConfig
from headgates.data import Corpus
from headgates.models.progress import Report
from headgates.report.page import write_page
from headgates.report.report_data import report_data
from headgates.report.table import result_sentence
from headgates.workbench.analysed_model import AnalysedModel
from headgates.workbench.folder import RunFolder

PAGE = "report.html"
FROM_ANALYSES = (
    "roles",
    "confidence",
    "lrp_share",
    "lrp_signed",
    "entropy",
    "offsets",
)  # on the card of a head
TABLES = ("survival", "tests", "correlations")


def update_pages(
    run: RunFolder, report: Report, *, data_dir: str | None = None, corpus: Corpus | None = None
) -> list[Path]:
    """Write the pages of a finished run and of its base, with all finished runs on that base; return their
    paths.

    data_dir, corpus: those of the calling command, so that the text need not be found and read again. A page
    that cannot be made is reported and raises nothing: a training that has ended must not fail for it."""
    try:
        config = AnalyzeConfig(sources=[str(run.path)], siblings=True, data_dir=data_dir)
        analysed = AnalysedModel.open(config, lambda text: None, corpus=corpus)
        return write_pages(analysed, current_report_data(analysed), [run, analysed.base])
    except (ValueError, OSError) as error:
        report(f"no report page: {error}")
        return []


def write_pages(analysed: AnalysedModel, data: dict[str, Any], runs: Sequence[RunFolder]) -> list[Path]:
    """Write the page to each of these folders once and return the paths; the page of a run with gates opens
    with its own heads."""
    folders = {run.path.resolve(): run for run in runs}
    for path, run in folders.items():
        write_page(
            {**data, "run": path.name, "opens_with": path.name, "result": result_sentence(run)}, run / PAGE
        )
    return [run / PAGE for run in folders.values()]


def current_report_data(analysed: AnalysedModel) -> dict[str, Any]:
    """What the folders hold now, with the results of earlier analyses."""
    last = last_report_data(analysed)
    data = report_data(analysed, {}, [], dict.fromkeys(TABLES, ()), with_examples=not last)
    last_cards = {(card["site"], card["head"]): card for card in last.get("heads", [])}
    for card in data["heads"]:
        last_card = last_cards.get((card["site"], card["head"]), {})
        card |= {name: last_card[name] for name in FROM_ANALYSES if last_card}
    return data | {name: last[name] for name in ("settings", "examples", *TABLES) if name in last}


def last_report_data(analysed: AnalysedModel) -> dict[str, Any]:
    """The cards.json that analyze.py wrote of these weights, empty where there is none. Raises ValueError if
    the file is broken."""
    file = f"{analysed.results_folder}/cards.json"
    if not (analysed.folder / file).is_file():
        return {}
    cure = f"`python analyze.py {analysed.folder.path} --fresh` makes it again"
    data: dict[str, Any] = analysed.folder.read_json(file, cure=cure)
    if not all({"site", "head", *FROM_ANALYSES} <= set(card) for card in data["heads"]):
        raise analysed.folder.foreign(file, "a head has no card as analyze.py makes it")
    return data if data["settings"].get("weights") == analysed.weights else {}
