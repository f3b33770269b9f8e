"""Do the two aggregations of relevance, and its rules, say the same of a trained model's heads?

Shares of every head by each rule, taken at every generation step and averaged ("step", the paper's) and of
the sum over all steps ("sum", for the price of one), on the first sentences of a run's validation text:
Spearman rank correlations over all heads and within each kind, and the largest difference of a share. A share
is of its layer, so 8 equal heads have 0.125 each.
"""

import argparse
import sys
from itertools import combinations, product
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, count_flag

RULES = ("gate-gradient", "ratio", "alpha-beta", "gradient")
ALL = "all"


def measure(run: str, options: argparse.Namespace) -> dict[str, Any]:
    """The facts of the run and a row for every pair compared and kind. Raises ValueError as analyze.py
    does."""
    from headgates.analysis.lrp import Aggregation, relevance
    from headgates.configs.analyze import AnalyzeConfig
    from headgates.workbench.analysed_model import AnalysedModel

    analysed = AnalysedModel.open(
        AnalyzeConfig(sources=[run], sentences=options.sentences, data_dir=options.data_dir), print
    )
    model = analysed.predictor.model
    aggregations: list[Aggregation] = ["step", "sum"]
    shares: dict[tuple[str, str], Any] = {}
    for rule, aggregation in product(options.rules, aggregations):
        shares[rule, aggregation] = relevance(
            model, analysed.batches("relevance"), rule=rule, aggregation=aggregation
        ).share
    pairs = [((rule, "step"), (rule, "sum")) for rule in options.rules]
    pairs += [((a, "step"), (b, "step")) for a, b in combinations(options.rules, 2)]
    rows = [row for a, b in pairs for row in compare_shares(a, shares[a], b, shares[b])]
    about = {
        "run": analysed.folder.path.name,
        "run_commit": (analysed.folder.result() or {}).get("commit"),
        "weights": analysed.weights,
    }
    return {**about, "corpus": analysed.corpus.name, "sentences": len(analysed.text), "rows": rows}


def compare_shares(
    first: tuple[str, str], first_shares: Any, second: tuple[str, str], second_shares: Any
) -> list[dict[str, Any]]:
    """A row for all heads and for each kind: spearman and its p, and the largest difference of a share. The
    shares are HeadMaps."""
    import numpy as np

    from headgates.gates import KINDS
    from headgates.workbench.correlations import spearman

    rows = []
    for kind in (ALL, *KINDS):
        sites = [site for site in first_shares if kind in (ALL, site.kind)]
        x, y = (
            np.concatenate([shares[site].numpy() for site in sites])
            for shares in (first_shares, second_shares)
        )
        names = {"first": " ".join(first), "second": " ".join(second)}
        rows.append(
            {
                **names,
                "kind": kind,
                "heads": len(x),
                **spearman(x, y),
                "largest_difference": float(np.abs(x - y).max()),
            }
        )
    return rows


def answer(options: argparse.Namespace) -> Answer:
    measured = [measure(run, options) for run in options.runs]
    rows = []
    for numbers in measured:
        for row in numbers["rows"]:
            spearman = "-" if row["spearman"] is None else f"{row['spearman']:.3f}"
            facts = [row[name] for name in ("first", "second", "kind", "heads")]
            rows.append([numbers["run"], *facts, spearman, f"{row['largest_difference']:.3f}"])
    return Answer(
        {"measured": measured},
        ["run", "first", "second", "kind", "heads", "spearman", "largest difference"],
        rows,
        seed=0,
    )


main = Benchmark(
    "lrp_agreement",
    "relevance of heads by step against in sum, and rule against rule: rank correlations of shares and their largest difference",
    __doc__,
    [
        ("runs", {"nargs": "+", "metavar": "RUN", "help": "finished runs, each measured by itself"}),
        ("--data-dir", {"help": "folder with local copies of named corpora"}),
        count_flag("--sentences", 200, "of validation"),
        ("--rules", {"nargs": "+", "choices": RULES, "default": list(RULES), "help": "(default: all)"}),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
