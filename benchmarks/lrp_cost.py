"""What does the relevance of all heads cost?   The aim: summed over steps first, at most 4 times the training steps on the same sentences.

A training step is fit.py's own (benchmarks/product_step.py): forward, loss, gradients, clipping, AdamW. Relevance (analysis/lrp.py) is
computed by the gate's gradient and by each rule of the step-by-step walk, in fp32, for all generation steps together ("sum") and for each
by itself ("step", the paper's; no aim, since its cost grows with the length of the targets). All take the same batches of real text in
turns. Training is timed in fp32, to which the ratio is taken, and where it differs in fit.py's own precision too. Sizes: `toy`, the
defaults of configs/schema.py, and `multi30k`, configs/multi30k.yaml, with untrained weights.
"""

import argparse
import copy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from benchmarks.untrained import SIZE_FLAGS, untrained
from speed.measure import alternate, median_and_range, median_text, range_text, ratio_by_round

if TYPE_CHECKING:
    from analysis.lrp import Aggregation

AIM = 4.0
SEED = 1
RULES = ("gate-gradient", "ratio", "alpha-beta", "gradient")  # the first takes any model, the others walk step by step


def measure(
    size: str, data_dir: str | None, *, sentences: int, max_tokens: int, rounds: int, aggregations: "list[Aggregation]"
) -> dict[str, Any]:
    """Seconds of training and of each rule and aggregation over the same batches, and ratios to training."""
    from analysis.lrp import relevance
    from benchmarks.product_step import product_step
    from lightning_modules.stage import resolve_precision

    config, data, model = untrained(size, sentences=sentences, data_dir=data_dir, seed=SEED)
    batches = [batch.to(model.output.weight.device) for batch in data.batches("train", max_tokens)]
    own = resolve_precision(config.precision)
    blocks: dict[str, Any] = {
        f"training {precision}": partial(product_step(copy.deepcopy(model), config.train, precision).block, batches)
        for precision in dict.fromkeys(("32", own))
    }
    relevances = [(rule, aggregation) for aggregation in aggregations for rule in RULES]
    for rule, aggregation in relevances:
        blocks[f"{rule} {aggregation}"] = partial(relevance, model, batches, rule=rule, aggregation=aggregation)
    seconds = alternate(blocks, rounds=rounds)

    def over(training: str) -> dict[str, Any]:
        return {f"{rule} {how}": ratio_by_round(seconds[f"{rule} {how}"], seconds[f"training {training}"]) for rule, how in relevances}

    return {
        "size": size,
        "max_tokens": max_tokens,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sentences": sum(len(batch) for batch in batches),
        "target_tokens": sum(batch.target_tokens for batch in batches),
        "longest_target": max(batch.target_out.shape[1] for batch in batches),
        "batches": len(batches),
        "training_precision": own,
        "seconds": {name: median_and_range(each) for name, each in seconds.items()},
        "ratio": over("32"),
        "ratio_to_own_precision": over(own),
    }


def answer(options: argparse.Namespace) -> Answer:
    amount = {"sentences": options.sentences, "max_tokens": options.max_tokens, "rounds": options.rounds}
    measured = [measure(size, options.data_dir, aggregations=options.aggregations, **amount) for size in options.sizes]
    rows = []
    for numbers in measured:
        for name, cost in numbers["ratio"].items():
            rule, aggregation = name.split()
            verdict = ("yes" if cost["median"] <= AIM else "no") if aggregation == "sum" else ""
            own = median_text(numbers["ratio_to_own_precision"][name])
            medians = [median_text(each) for each in (numbers["seconds"]["training 32"], numbers["seconds"][name], cost)]
            rows.append([numbers["size"], rule, aggregation, *medians, range_text(cost), own, verdict])
    header = ["size", "rule", "aggregation", "training s", "relevance s", "ratio", "lowest to highest", "to own precision"]
    return Answer({"aim": AIM, "measured": measured, "rounds": options.rounds}, [*header, f"at most {AIM:g}"], rows, seed=SEED)


main = Benchmark(
    "lrp_cost",
    "relevance of all heads, summed over steps, over training steps on the same sentences: at most 4 (fp32, alternating)",
    __doc__,
    [
        *SIZE_FLAGS,
        count_flag("--sentences", 500, "training pairs of a pass"),
        count_flag("--max-tokens", 1000, "of a batch, padding counted"),
        ("--aggregations", {"nargs": "+", "choices": ["sum", "step"], "default": ["sum", "step"], "help": "(default: both)"}),
        count_flag("--rounds", 5, "timed passes of each"),
    ],
    answer,
    peers=["pytorch-lightning"],
).main

if __name__ == "__main__":
    sys.exit(main())
