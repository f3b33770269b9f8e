"""`report.html` of run folders, filled with what is known so far: `fit.py` brings gates and comparisons, `prune.py` curves and ablations,
`analyze.py` roles, relevance and sentences.

Every filling reads the folders anew; what analyses found is taken from the cards.json of the last `analyze.py` on the same weights.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.study import Study
from configs.analyze import AnalyzeConfig
from data import Corpus
from models.progress import Report
from report.page import write_page
from report.report_data import cards
from runfolder.folder import RunFolder

PAGE = "report.html"
ANALYSED = ("roles", "confidence", "lrp_share", "lrp_signed", "entropy", "offsets")  # of a head
TOGETHER = ("settings", "examples", "survival", "tests", "correlations")


def fill(run: RunFolder, report: Report, *, data_dir: str | None = None, corpus: Corpus | None = None) -> list[Path]:
    """Write the pages of a finished run and of its base, with all finished runs on that base; the paths. A page that cannot be made is
    said, not raised: a training that has ended must not fail for it.

    data_dir, corpus: as the command has them, so that the text is neither looked for nor read again."""
    try:
        config = AnalyzeConfig(runs=[str(run.path)], siblings=True, data_dir=data_dir)
        study = Study.open(config, unheard, corpus=corpus)
        return write_pages(study, known(study), [run, study.base])
    except (ValueError, OSError) as error:
        report(f"no report page: {error}")
        return []


def write_pages(study: Study, data: dict[str, Any], runs: Sequence[RunFolder]) -> list[Path]:
    """The page in each of these folders, once; that of a run with gates opens with its own heads."""
    folders = {run.path.resolve(): run for run in runs}
    for path, run in folders.items():
        write_page({**data, "run": path.name, "opens_with": path.name}, run / PAGE)
    return [run / PAGE for run in folders.values()]


def known(study: Study) -> dict[str, Any]:
    """The cards of what the folders say, with what was analysed before."""
    before = analysed(study)
    data = cards(study, {}, [], dict.fromkeys(("survival", "tests", "correlations"), ()), with_examples=not before)
    found = {(head["site"], head["head"]): head for head in before.get("heads", [])}
    for head in data["heads"]:
        head |= {name: found[here][name] for name in ANALYSED if (here := (head["site"], head["head"])) in found}
    return data | {name: before[name] for name in TOGETHER if name in before}


def analysed(study: Study) -> dict[str, Any]:
    """The cards that analyze.py left of this model, or nothing."""
    path = study.folder / f"{study.place}/cards.json"
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        same = data["settings"]["weights"] == study.weights
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is broken ({error}); `python analyze.py {study.folder.path} --fresh` makes it again") from error
    return data if same and isinstance(data, dict) else {}


def unheard(text: str) -> None:
    """What a study leaves out is no news when a page is filled in passing."""
    del text
