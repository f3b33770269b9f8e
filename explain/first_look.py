"""What fit.py ends with, so that the first page has something to say: the analyses, scores and curve that
take seconds. Their files are those of analyze.py and prune.py, which do not make them again.

    analysis/base/    roles and all else that analyze.py finds, on validation sentences
    scores/           what closing each head alone adds to the loss; importance, where a row asks for it
    curves/           the metric with heads closed by importance, or else by that loss, untrained, on a few
                      test sentences
"""

import time

from headgates.analysis.results import AnalysisResult
from headgates.configs.prune import PruneConfig
from headgates.configs.systems import score_rows
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import ANALYSES, base_request, base_score, obstacle, run_analyses
from headgates.models.progress import Report, minutes
from headgates.pruning.curve import MaskScorer, curve
from headgates.pruning.scores import beam_of, head_scores
from headgates.pruning.unpruned_model import UnprunedModel

TEST, VALID = 200, 50  # lines of the curve


def look_at_heads(analysed: AnalysedModel, report: Report) -> dict[str, AnalysisResult]:
    """The results of all analyses that can be run; a line says how long they took."""
    begin, text = time.monotonic(), f"{len(analysed.text):,} pairs of {analysed.split}"
    names = [name for name, each in ANALYSES.items() if not each.by_flag and obstacle(analysed, name) is None]
    results = run_analyses(analysed, names)
    report(f"{', '.join(results)} of each head: from {text}, {minutes(time.monotonic() - begin)}")
    return results


def price_heads(analysed: AnalysedModel, report: Report) -> None:
    """What heads are worth, each alone and closed in order; what is there already is not made again."""
    request, lines = base_request(analysed), list[str]()
    rows = score_rows(analysed.source.config["systems"])
    known = base_score(analysed, "importance") is not None or "importance" in rows
    order = "importance" if known else "loss"  # importance alone may take minutes
    for name in sorted({order, "loss"}):
        head_scores(name, request)
    config = PruneConfig(
        str(analysed.base.path),
        sentences=request.sentences,
        beam=beam_of(analysed.source),
        test_sentences=TEST,
        valid_sentences=VALID,
    )
    unpruned, begin = UnprunedModel.of(analysed.source, config), time.monotonic()
    scorer = MaskScorer(unpruned)
    name, steps = curve(order, unpruned, config, kinds=config.kinds, scorer=scorer, report=lines.append)
    if len(lines) > 1:
        report(f"curves/{name}: {len(steps)} numbers of heads, {minutes(time.monotonic() - begin)}")
