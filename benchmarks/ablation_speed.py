"""How much faster are all one-head ablations as one job than one translation of the test set a head?   The
aim: at least 4 times on a CPU.

The loop is our own cached, batched greedy search at its best batch size, once for every head; the job is
pruning/ablated_search.py, its drafts included. The test set is cut into parts; on every part both run in
turns, and every translation must be the same.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark
from benchmarks.split_test_set import FLAGS, open_base, set_best_batch, time_parts
from headgates.report.speed.measure import median_text, range_text, ratio_by_round

if TYPE_CHECKING:
    from headgates.gates import HeadMap
    from headgates.models.translator import Translator

AIM = 4.0
BATCH_TOKENS = (750, 1_500, 3_000, 6_000, 12_000)  # tried for the loop


def masked(translator: "Translator", lines: Sequence[str], closed: "HeadMap") -> list[str]:
    """One turn of the loop: all lines, translated by the model with these heads closed."""
    from headgates.gates import attach, detach

    bank = attach(translator.model, gate="mask", kinds={site.kind for site in closed})
    bank.assign(closed.map(lambda row: (~row).double()))
    try:
        return translator.translate(lines, beam=1)
    finally:
        detach(translator.model)


def measure(translator: "Translator", parts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Seconds of the loop and of the job on every part, and how many of their translations differ."""
    from headgates.models.ablated_search import ablated_translations
    from headgates.workbench.ablation import chosen_sites, one_head_mask

    ablations = [
        one_head_mask(site, head, closed=True)
        for site in chosen_sites(translator.model, None)
        for head in range(site.heads)
    ]
    ablated_translations(translator, parts[0][:20], ablations[:3])  # warm-up
    systems = {
        "loop": lambda lines: [masked(translator, lines, closed) for closed in ablations],
        "job": lambda lines: ablated_translations(translator, lines, ablations),
    }
    seconds, outputs = time_parts(systems, parts)
    different = 0
    for output in outputs:
        for i, theirs in enumerate(output["loop"]):
            different += sum(a != b for a, b in zip(theirs, output["job"].hypotheses(i), strict=True))
    sentences = sum(map(len, parts))
    return {
        "heads": len(ablations),
        "sentences": sentences,
        "loop_seconds": seconds["loop"],
        "job_seconds": seconds["job"],
        "ratio": ratio_by_round(seconds["loop"], seconds["job"]),
        "ratio_of_sums": sum(seconds["loop"]) / sum(seconds["job"]),
        "translations": len(ablations) * sentences,
        "different_translations": different,
        "changed_share": sum(
            output["job"].changed_share * len(lines) for output, lines in zip(outputs, parts, strict=True)
        )
        / sentences,
    }


def answer(options: argparse.Namespace) -> Answer:
    dense, parts = open_base(options)
    translator, lines = dense.translator, dense.test[0]
    batches = set_best_batch(translator, lambda: translator.translate(lines, beam=1), BATCH_TOKENS)
    measured = measure(translator, parts)
    run, cost = dense.folder.path.name, measured["ratio"]
    sums = [f"{sum(measured[name]):.0f}" for name in ("loop_seconds", "job_seconds")]
    changed = [f"{measured['changed_share']:.0%}", measured["different_translations"]]
    header = ["run", "loop s", "job s", "ratio", "lowest to highest", "changed", "different"]
    numbers = {"aim": AIM, "run": run, "seconds_of_one_by_batch_tokens": batches, **measured}
    return Answer(numbers, header, [[run, *sums, median_text(cost), range_text(cost), *changed]])


main = Benchmark(
    "ablation_speed",
    "all one-head ablations, greedy, fp32: seconds of a loop of masked translations over those of one job (at least 4 on a CPU)",
    __doc__,
    FLAGS,
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
