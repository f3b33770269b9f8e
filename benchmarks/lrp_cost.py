"""What does the relevance of all heads cost?   The aim: summed over steps first, at most 4 times the training
steps on the same sentences.

A training step is fit.py's own (benchmarks/product_step.py): forward, loss, gradients, clipping, AdamW.
Relevance (analysis/lrp.py) is computed by the gate's gradient and by each rule of the step-by-step walk, in
fp32, for all generation steps together ("sum") and for each by itself ("step", the paper's; no aim, since its
cost grows with the length of the targets). All take the same batches of real text in turns. Training is timed
in fp32, to which the ratio is taken, and where it differs in fit.py's own precision too. Sizes and weights:
benchmarks/untrained.py.
"""

import argparse
import copy
import sys
from functools import partial
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from benchmarks.untrained import COST_FLAGS, RATIO_COLUMNS, SEED, block_facts, ratio_cells, untrained
from headgates.report.speed.measure import alternate, median_and_range, median_text, ratio_by_round

AIM = 4.0
RULES = (
    "gate-gradient",
    "ratio",
)  # the first takes any model, the others walk step by step


def measure(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of training and of each rule and aggregation over the same batches, and ratios to training."""
    from benchmarks.product_step import product_step
    from headgates.analysis.lrp import relevance
    from headgates.lightning_modules.precision import resolve_precision
    from headgates.models.lrp_walk import Walk

    config, data, model = untrained(size, options.data_dir, sentences=options.sentences)
    batches = [batch.to(model.output.weight.device) for batch in data.batches("train", options.max_tokens)]
    own_precision = resolve_precision(config.precision)
    training: dict[str, Any] = {
        f"training {precision}": partial(
            product_step(copy.deepcopy(model), config.train, precision).block, batches
        )
        for precision in dict.fromkeys(("32", own_precision))
    }
    relevances: dict[str, Any] = {
        f"{rule} {aggregation}": partial(
            relevance, model, batches, walk=Walk if rule == "ratio" else None, aggregation=aggregation
        )
        for aggregation in options.aggregations
        for rule in RULES
    }
    seconds = alternate(training | relevances, rounds=options.rounds)

    def ratios(precision: str) -> dict[str, Any]:
        return {name: ratio_by_round(seconds[name], seconds[f"training {precision}"]) for name in relevances}

    return {
        **block_facts(size, model, batches, max_tokens=options.max_tokens),
        "longest_target": max(batch.target_out.shape[1] for batch in batches),
        "training_precision": own_precision,
        "seconds": {name: median_and_range(times) for name, times in seconds.items()},
        "ratio": ratios("32"),
        "ratio_to_own_precision": ratios(own_precision),
    }


def answer(options: argparse.Namespace) -> Answer:
    measured = [measure(size, options) for size in options.sizes]
    rows = []
    for numbers in measured:
        for name, ratio in numbers["ratio"].items():
            rule, aggregation = name.split()
            times = [median_text(numbers["seconds"][timed]) for timed in ("training 32", name)]
            *cells, verdict = ratio_cells(ratio, AIM if aggregation == "sum" else None, digits=2)
            to_own_precision = median_text(numbers["ratio_to_own_precision"][name])
            rows.append([numbers["size"], rule, aggregation, *times, *cells, to_own_precision, verdict])
    header = [
        "size",
        "rule",
        "aggregation",
        "training s",
        "relevance s",
        *RATIO_COLUMNS,
        "to own precision",
        f"at most {AIM:g}",
    ]
    return Answer({"aim": AIM, "measured": measured, "rounds": options.rounds}, header, rows, seed=SEED)


main = Benchmark(
    "lrp_cost",
    "relevance of all heads, summed over steps, over training steps on the same sentences: at most 4 (fp32, alternating)",
    __doc__,
    [
        *COST_FLAGS,
        count_flag("--sentences", 500, "training pairs of a pass"),
        count_flag("--max-tokens", 1000, "of a batch, padding counted"),
        (
            "--aggregations",
            {"nargs": "+", "choices": ["sum", "step"], "default": ["sum", "step"], "help": "(default: both)"},
        ),
    ],
    answer,
    peers=["pytorch-lightning"],
).main

if __name__ == "__main__":
    sys.exit(main())
