"""What does the relevance of all heads cost?   The aim: summed over steps first, at most 4 times the training steps on the same sentences.

A training step is fit.py's own (benchmarks/product_step.py): forward, loss, gradients, clipping, AdamW. Relevance (analysis/lrp.py) is
computed by the gate's gradient and by each rule of the step-by-step walk, in fp32, for all generation steps together ("sum") and for each
by itself ("step", the paper's; no aim, since its cost grows with the length of the targets). All take the same batches of real text in
turns. Training is timed in fp32, to which the ratio is taken, and where it differs in fit.py's own precision too. Sizes: `toy`, the
defaults of configs/schema.py, and `multi30k`, configs/multi30k.yaml, with untrained weights.
"""

import copy
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.sized import sized
from speed.measure import alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread

if TYPE_CHECKING:
    from analysis.lrp import Aggregation

QUESTION = "relevance of all heads, summed over steps, over training steps on the same sentences: at most 4 (fp32, alternating)"
AIM = 4.0
SEED = 1
RULES = ("gate-gradient", "ratio", "alpha-beta", "gradient")  # the first takes any model, the others walk step by step


def measure(
    size: str, data_dir: str | None, *, sentences: int, max_tokens: int, rounds: int, aggregations: "list[Aggregation]"
) -> dict[str, Any]:
    """Seconds of training and of each rule and aggregation over the same batches, and ratios to training."""

    from analysis.lrp import relevance
    from benchmarks.product_step import plain_step
    from lightning_modules.stage import resolve_precision

    config, data, model = sized(size, sentences=sentences, data_dir=data_dir, seed=SEED)
    batches = [batch.to(model.output.weight.device) for batch in data.batches("train", max_tokens)]
    own = resolve_precision(config.precision)
    blocks: dict[str, Any] = {
        f"training {precision}": partial(plain_step(copy.deepcopy(model), config.train, precision).block, batches)
        for precision in dict.fromkeys(("32", own))
    }
    relevances = [(rule, aggregation) for aggregation in aggregations for rule in RULES]
    for rule, aggregation in relevances:
        blocks[f"{rule} {aggregation}"] = partial(relevance, model, batches, rule=rule, aggregation=aggregation)
    seconds = alternate(blocks, rounds=rounds)

    def over(training: str) -> dict[str, Any]:
        return {f"{rule} {how}": ratio(seconds[f"{rule} {how}"], seconds[f"training {training}"]) for rule, how in relevances}

    return {
        "size": size,
        "max_tokens": max_tokens,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "sentences": sum(len(batch) for batch in batches),
        "target_tokens": sum(batch.target_tokens for batch in batches),
        "longest_target": max(batch.target_out.shape[1] for batch in batches),
        "batches": len(batches),
        "training_precision": own,
        "seconds": {name: spread(each) for name, each in seconds.items()},
        "ratio": over("32"),
        "ratio_to_own_precision": over(own),
    }


def main() -> int:
    parser = arguments("lrp_cost", __doc__)
    parser.add_argument("--sizes", nargs="+", choices=["toy", "multi30k"], default=["toy", "multi30k"], help="(default: both)")
    parser.add_argument("--data-dir", help="folder with a local copy of multi30k; without it the text is downloaded")
    parser.add_argument("--sentences", type=at_least_one, default=500, help="training pairs of a pass (default: %(default)s)")
    parser.add_argument("--max-tokens", type=at_least_one, default=1000, help="of a batch, padding counted (default: %(default)s)")
    parser.add_argument("--aggregations", nargs="+", choices=["sum", "step"], default=["sum", "step"], help="(default: both)")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="timed passes of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()

    set_threads(options.threads)
    load = load_average()
    amount = {"sentences": options.sentences, "max_tokens": options.max_tokens, "rounds": options.rounds}
    try:
        found = [measure(size, options.data_dir, aggregations=options.aggregations, **amount) for size in options.sizes]
    except ValueError as error:
        print(f"lrp_cost: error: {error}", file=sys.stderr)
        return 1
    rows = []
    for each in found:
        training = each["seconds"]["training 32"]["median"]
        for name, cost in each["ratio"].items():
            rule, aggregation = name.split()
            verdict = ("yes" if cost["median"] <= AIM else "no") if aggregation == "sum" else ""
            between = f"{cost['lowest']:.2f} to {cost['highest']:.2f}"
            own = f"{each['ratio_to_own_precision'][name]['median']:.2f}"
            times = [f"{training:.2f}", f"{each['seconds'][name]['median']:.2f}", f"{cost['median']:.2f}"]
            rows.append([each["size"], rule, aggregation, *times, between, own, verdict])
    header = ["size", "rule", "aggregation", "training s", "relevance s", "ratio", "lowest to highest", "to own precision"]
    show([*header, f"at most {AIM:g}"], rows)
    answer = {"aim": AIM, "measured": found, "rounds": options.rounds, "load_average_before": load}
    record(options.out, "lrp_cost", QUESTION, answer, precision="32", seed=SEED, peers=["pytorch-lightning"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
