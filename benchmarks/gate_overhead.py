"""How much slower is a training step with gates?   The aim: at most 3%.

Two copies of the same weights take the same batches of real text in turns, blocks of steps without gates and
blocks with a Hard Concrete gate on every head; everything else is fit.py's own step
(benchmarks/product_step.py). Sizes and weights: benchmarks/untrained.py.
"""

import argparse
import copy
import itertools
import sys
from functools import partial
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from benchmarks.untrained import COST_FLAGS, RATIO_COLUMNS, SEED, ratio_cells, untrained
from headgates.report.speed.measure import alternate, median_and_range, median_text, ratio_by_round

AIM = 1.03


def measure(size: str, options: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Milliseconds a step, plain and gated, and their ratio."""
    from benchmarks.product_step import gated_step, product_step

    config, data, model = untrained(size, options.data_dir)
    split = data.split("train")
    batches = [
        split[item].to(model.output.weight.device) for item in itertools.islice(data.sampler(), options.steps)
    ]
    plain = product_step(copy.deepcopy(model), config.finetune, precision)
    gated = gated_step(
        model, config.finetune, config.gates, lam=config.lam, kinds=config.kinds, precision=precision
    )
    seconds = alternate(
        {"plain": partial(plain.block, batches), "gated": partial(gated.block, batches)},
        rounds=options.rounds,
    )
    return {
        "size": size,
        "parameters": sum(parameter.numel() for parameter in plain.module.model.parameters()),
        "vocabulary": model.target_vocab,
        "heads": gated.module.bank.open().heads_total if gated.module.bank else 0,
        "target_tokens_per_step": sum(batch.target_tokens for batch in batches) / len(batches),
        "plain_ms": median_and_range([1000 * s / len(batches) for s in seconds["plain"]]),
        "gated_ms": median_and_range([1000 * s / len(batches) for s in seconds["gated"]]),
        "ratio": ratio_by_round(seconds["gated"], seconds["plain"]),
    }


def answer(options: argparse.Namespace) -> Answer:
    from headgates.lightning_modules.precision import resolve_precision

    precision = resolve_precision(options.precision)
    sizes = [measure(size, options, precision) for size in options.sizes]
    rows = []
    for size in sizes:
        times = [median_text(size["plain_ms"], 1), median_text(size["gated_ms"], 1)]
        rows.append([size["size"], size["heads"], *times, *ratio_cells(size["ratio"], AIM)])
    header = ["size", "heads", "plain ms/step", "gated ms/step", *RATIO_COLUMNS, f"at most {AIM}"]
    numbers = {"aim": AIM, "sizes": sizes, "steps_per_block": options.steps, "rounds": options.rounds}
    return Answer(numbers, header, rows, precision=precision, seed=SEED)


main = Benchmark(
    "gate_overhead",
    "training step with gates over without: at most 1.03 (same batches, alternating)",
    __doc__,
    [
        *COST_FLAGS,
        count_flag("--steps", 20, "steps, and batches, of a block"),
        (
            "--precision",
            {"choices": ["auto", "32", "bf16"], "default": "auto", "help": "(default: %(default)s)"},
        ),
    ],
    answer,
    peers=["pytorch-lightning"],
).main

if __name__ == "__main__":
    sys.exit(main())
