"""Do the two aggregations of relevance, and its rules, say the same of a trained model's heads?

Shares of every head by each rule, taken at every generation step and averaged ("step", the paper's) and of the sum over all steps ("sum",
for the price of one), on the first sentences of a run's validation text: Spearman rank correlations over all heads and within each kind,
and the largest difference of a share. A share is of its layer, so 8 equal heads have 0.125 each.
"""

import argparse
import sys
from itertools import combinations, product
from typing import Any

from speed.measure import arguments, at_least_one, record, set_threads, show

QUESTION = "relevance of heads by step against in sum, and rule against rule: rank correlations of shares and their largest difference"
RULES = ("gate-gradient", "ratio", "alpha-beta", "gradient")
ALL = "all"


def measure(run: str, options: argparse.Namespace) -> dict[str, Any]:
    """Every pair that is compared, with what the run is. Raises ValueError as analyze.py does."""
    from analysis.analysed_model import AnalysedModel
    from analysis.lrp import Aggregation, relevance
    from configs.analyze import AnalyzeConfig

    analysed = AnalysedModel.open(AnalyzeConfig(runs=[run], sentences=options.sentences, data_dir=options.data_dir), print)
    model = analysed.translator.model
    aggregations: list[Aggregation] = ["step", "sum"]
    shares: dict[tuple[str, str], Any] = {}
    for rule, how in product(options.rules, aggregations):
        shares[rule, how] = relevance(model, analysed.batches(), rule=rule, aggregation=how).share
    pairs = [((rule, "step"), (rule, "sum")) for rule in options.rules]
    pairs += [((a, "step"), (b, "step")) for a, b in combinations(options.rules, 2)]
    rows = [row for a, b in pairs for row in compared(a, shares[a], b, shares[b])]
    about = {"run": analysed.folder.path.name, "run_commit": (analysed.folder.result() or {}).get("commit"), "weights": analysed.weights}
    return {**about, "corpus": analysed.corpus.name, "sentences": len(analysed.text), "rows": rows}


def compared(first: tuple[str, str], one: Any, second: tuple[str, str], other: Any) -> list[dict[str, Any]]:
    """A row for all heads and for each kind: spearman and its p, and the largest difference of a share. one, other: HeadMaps."""
    import numpy as np

    from analysis.correlations import spearman
    from gates import KINDS

    rows = []
    for kind in (ALL, *KINDS):
        sites = [site for site in one if kind in (ALL, site.kind)]
        x, y = (np.concatenate([shares[site].numpy() for site in sites]) for shares in (one, other))
        names = {"first": " ".join(first), "second": " ".join(second)}
        rows.append({**names, "kind": kind, "heads": len(x), **spearman(x, y), "largest_difference": float(np.abs(x - y).max())})
    return rows


def main() -> int:
    parser = arguments("lrp_agreement", __doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="finished runs, each looked at by itself")
    parser.add_argument("--data-dir", help="folder with local copies of named corpora")
    parser.add_argument("--sentences", type=at_least_one, default=200, help="of validation (default: %(default)s)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="(default: all)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()
    set_threads(options.threads)
    try:
        found = [measure(run, options) for run in options.runs]
    except ValueError as error:
        print(f"lrp_agreement: error: {error}", file=sys.stderr)
        return 1
    table = [
        [each["run"], row["first"], row["second"], row["kind"], row["heads"], shown(row["spearman"]), f"{row['largest_difference']:.3f}"]
        for each in found
        for row in each["rows"]
    ]
    show(["run", "first", "second", "kind", "heads", "spearman", "largest difference"], table)
    record(options.out, "lrp_agreement", QUESTION, {"measured": found}, precision="32", seed=0)
    return 0


def shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


if __name__ == "__main__":
    sys.exit(main())
