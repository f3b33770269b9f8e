"""What does the importance of all heads cost?   The aim: at most 1.15 times one forward and backward pass over the same sentences.

The plain pass is an evaluation-mode forward pass, the summed loss, and its gradients to all weights; importance (analysis/importance.py)
asks for those to xi alone, in the three places of the absolute value (prune.py --abs). All four take the same batches of real text in
turns, in fp32, at each batch size. Sizes: `toy`, the defaults of configs/schema.py, and `multi30k`, configs/multi30k.yaml, with untrained
weights.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, at_least_one, count_flag
from benchmarks.untrained import SIZE_FLAGS, untrained
from speed.measure import alternate, median_and_range, median_text, range_text, ratio_by_round

if TYPE_CHECKING:
    from data.batch import Batch
    from models.transformer import Transformer

AIM = 1.15
SEED = 1
FORMS = ("sentence", "token", "batch")


def plain_pass(model: "Transformer", batches: Sequence["Batch"]) -> None:
    """Gradients of each batch's summed loss to all weights."""
    import torch

    from analysis.importance import TRANSLATION_LOSS

    weights = list(model.parameters())
    for batch in batches:
        torch.autograd.grad(TRANSLATION_LOSS(model, batch), weights)


def measure(size: str, data_dir: str | None, *, sentences: int, max_tokens: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """For each batch size, the seconds of a pass and of each form of importance, and their ratios."""
    from analysis.importance import importance

    _, data, model = untrained(size, sentences=sentences, data_dir=data_dir, seed=SEED)
    found = []
    for tokens in max_tokens:
        batches = [batch.to(model.output.weight.device) for batch in data.batches("train", tokens)]
        blocks: dict[str, Any] = {form: lambda form=form: importance(model, batches, absolute=form) for form in FORMS}  # noqa: B023
        seconds = alternate({"plain": lambda: plain_pass(model, batches), **blocks}, rounds=rounds)  # noqa: B023
        found.append(
            {
                "size": size,
                "max_tokens": tokens,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "sentences": sum(len(batch) for batch in batches),
                "target_tokens": sum(batch.target_tokens for batch in batches),
                "batches": len(batches),
                "plain_s": median_and_range(seconds["plain"]),
                "importance_s": {form: median_and_range(seconds[form]) for form in FORMS},
                "ratio": {form: ratio_by_round(seconds[form], seconds["plain"]) for form in FORMS},
            }
        )
    return found


def answer(options: argparse.Namespace) -> Answer:
    amount = {"sentences": options.sentences, "max_tokens": options.max_tokens, "rounds": options.rounds}
    measured = [row for size in options.sizes for row in measure(size, options.data_dir, **amount)]
    rows = []
    for numbers in measured:
        for form in FORMS:
            cost = numbers["ratio"][form]
            medians = [median_text(numbers["plain_s"]), median_text(numbers["importance_s"][form]), median_text(cost, 3)]
            verdict = "yes" if cost["median"] <= AIM else "no"
            rows.append([numbers["size"], numbers["max_tokens"], numbers["batches"], form, *medians, range_text(cost, 3), verdict])
    header = ["size", "tokens/batch", "batches", "form", "plain s", "importance s", "ratio", "lowest to highest", f"at most {AIM}"]
    return Answer({"aim": AIM, "measured": measured, "rounds": options.rounds}, header, rows, seed=SEED)


TOKENS = "batch sizes in tokens, padding counted (default: 1000 4000)"
main = Benchmark(
    "importance_cost",
    "importance of all heads over one plain forward and backward pass: at most 1.15 (same sentences, alternating)",
    __doc__,
    [
        *SIZE_FLAGS,
        count_flag("--sentences", 1000, "training pairs of a pass"),
        ("--max-tokens", {"type": at_least_one, "nargs": "+", "default": [1000, 4000], "metavar": "TOKENS", "help": TOKENS}),
        count_flag("--rounds", 5, "timed passes of each"),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
