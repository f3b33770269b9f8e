"""What does the importance of all heads cost?   The aim: at most 1.15 times one forward and backward pass
over the same sentences.

The plain pass is an evaluation-mode forward pass, the summed loss, and its gradients to all weights;
importance (analysis/importance.py) asks for those to xi alone, in the three places of the absolute value
(prune.py --abs). All four take the same batches of real text in turns, in fp32, at each batch size. Sizes and
weights: benchmarks/untrained.py.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, at_least_one, count_flag
from benchmarks.untrained import COST_FLAGS, RATIO_COLUMNS, SEED, block_facts, ratio_cells, untrained
from headgates.report.speed.measure import alternate, median_and_range, median_text, ratio_by_round

if TYPE_CHECKING:
    from headgates.analysis.gate_gradients import Per
    from headgates.data.batch import Batch
    from headgates.models.transformer import Transformer

AIM = 1.15
FORMS: "tuple[Per, ...]" = ("sentence", "token", "batch")


def plain_pass(model: "Transformer", batches: Sequence["Batch"]) -> None:
    """Gradients of each batch's summed loss to all weights."""
    import torch

    from headgates.analysis.batches import batch_loss

    weights = list(model.parameters())
    for batch in batches:
        torch.autograd.grad(batch_loss(model, batch), weights)


def measure(size: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """For each batch size, the seconds of a pass and of each form of importance, and their ratios."""
    from headgates.analysis.scores.importance import importance

    _, data, model = untrained(size, options.data_dir, sentences=options.sentences)
    measured = []
    for tokens in options.max_tokens:
        batches = [batch.to(model.output.weight.device) for batch in data.batches("train", tokens)]
        blocks: dict[str, Any] = {form: partial(importance, model, batches, absolute=form) for form in FORMS}
        seconds = alternate({"plain": partial(plain_pass, model, batches), **blocks}, rounds=options.rounds)
        times = {
            "plain_s": median_and_range(seconds["plain"]),
            "importance_s": {form: median_and_range(seconds[form]) for form in FORMS},
            "ratio": {form: ratio_by_round(seconds[form], seconds["plain"]) for form in FORMS},
        }
        measured.append(block_facts(size, model, batches, max_tokens=tokens) | times)
    return measured


def answer(options: argparse.Namespace) -> Answer:
    measured = [numbers for size in options.sizes for numbers in measure(size, options)]
    rows = []
    for numbers in measured:
        facts, plain = (
            [numbers[name] for name in ("size", "max_tokens", "batches")],
            median_text(numbers["plain_s"]),
        )
        for form in FORMS:
            rows.append(
                [
                    *facts,
                    form,
                    plain,
                    median_text(numbers["importance_s"][form]),
                    *ratio_cells(numbers["ratio"][form], AIM),
                ]
            )
    header = [
        "size",
        "tokens/batch",
        "batches",
        "form",
        "plain s",
        "importance s",
        *RATIO_COLUMNS,
        f"at most {AIM}",
    ]
    return Answer({"aim": AIM, "measured": measured, "rounds": options.rounds}, header, rows, seed=SEED)


TOKENS = "batch sizes in tokens, padding counted (default: 1000 4000)"
main = Benchmark(
    "importance_cost",
    "importance of all heads over one plain forward and backward pass: at most 1.15 (same sentences, alternating)",
    __doc__,
    [
        *COST_FLAGS,
        count_flag("--sentences", 1000, "training pairs of a pass"),
        (
            "--max-tokens",
            {
                "type": at_least_one,
                "nargs": "+",
                "default": [1000, 4000],
                "metavar": "TOKENS",
                "help": TOKENS,
            },
        ),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
