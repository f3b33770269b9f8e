"""What fit.py ends with, so that the first page has something to say: the analyses and scores that take
seconds. Their files are those of analyze.py, which does not make them again.

    analysis/base/    roles and all else that analyze.py finds, on validation sentences
    scores/           what closing each head alone adds to the loss
"""

import time

from headgates.analysis.results import AnalysisResult
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import ANALYSES, base_request, obstacle, run_analyses
from headgates.models.progress import Report, minutes
from headgates.pruning.scores import head_scores


def look_at_heads(analysed: AnalysedModel, report: Report) -> dict[str, AnalysisResult]:
    """The results of all analyses that can be run; a line says how long they took."""
    begin, text = time.monotonic(), f"{len(analysed.text):,} pairs of {analysed.split}"
    names = [name for name, each in ANALYSES.items() if not each.by_flag and obstacle(analysed, name) is None]
    results = run_analyses(analysed, names)
    report(f"{', '.join(results)} of each head: from {text}, {minutes(time.monotonic() - begin)}")
    return results


def price_heads(analysed: AnalysedModel) -> None:
    """What closing each head alone adds to the loss; what is there already is not made again."""
    head_scores("loss", base_request(analysed))
