"""How much faster are all one-head ablations as one job than one translation of the test set a head?   The aim: at least 4 times on a CPU.

The loop is our own cached, batched greedy search at its best batch size, once for every head; the job is pruning/ablated_search.py, its
drafts included. The test set is cut into parts; on every part both run in turns, and every translation must be the same.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from speed.measure import arguments, at_least_one, load_average, record, set_threads, show, spread, wait

if TYPE_CHECKING:
    from gates import HeadMap
    from models.translator import Translator

QUESTION = "all one-head ablations, greedy, fp32: seconds of a loop of masked translations over those of one job (at least 4 on a CPU)"
AIM = 4.0
BATCH_TOKENS = (750, 1_500, 3_000, 6_000, 12_000)  # tried for the loop


def masked(translator: "Translator", lines: Sequence[str], closed: "HeadMap") -> list[str]:
    """The loop's body: the model with its closed heads shut, translating all lines."""
    from gates import attach, detach

    bank = attach(translator.model, gate="mask", kinds={site.kind for site in closed})
    bank.assign(closed.map(lambda row: (~row).double()))
    try:
        return translator.translate(lines, beam=1)
    finally:
        detach(translator.model)


def best_batch(translator: "Translator", lines: Sequence[str]) -> dict[int, float]:
    """Seconds of one translation at each batch size, the better of two."""
    seconds = {}
    for tokens in BATCH_TOKENS:
        translator.search = replace(translator.search, batch_tokens=tokens)
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            translator.translate(lines, beam=1)
            wait()
            times.append(time.perf_counter() - begin)
        seconds[tokens] = min(times)
    translator.search = replace(translator.search, batch_tokens=min(seconds, key=lambda tokens: seconds[tokens]))
    return seconds


def measure(translator: "Translator", parts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Seconds of both on every part, and whether they translated alike."""
    from pruning.ablated_search import ablated_translations
    from pruning.ablation import chosen_sites, only

    ablations = [only(site, head, closed=True) for site in chosen_sites(translator.model, None) for head in range(site.heads)]
    ablated_translations(translator, parts[0][:20], ablations[:3])  # warm-up
    loop_seconds: list[float] = []
    job_seconds: list[float] = []
    changed: list[float] = []
    different = 0
    for number, lines in enumerate(parts):
        found: dict[str, Any] = {}
        for name in ("loop", "job") if number % 2 == 0 else ("job", "loop"):
            begin = time.perf_counter()
            if name == "loop":
                found[name] = [masked(translator, lines, closed) for closed in ablations]
            else:
                found[name] = ablated_translations(translator, lines, ablations)
            wait()
            (loop_seconds if name == "loop" else job_seconds).append(time.perf_counter() - begin)
        job = found["job"]
        different += sum(a != b for i, theirs in enumerate(found["loop"]) for a, b in zip(theirs, job.hypotheses(i), strict=True))
        changed.append(job.changed_share)
        print(f"part {number + 1} of {len(parts)}: loop {loop_seconds[-1]:.1f} s, job {job_seconds[-1]:.1f} s", flush=True)
    return {
        "heads": len(ablations),
        "sentences": sum(map(len, parts)),
        "loop_seconds": loop_seconds,
        "job_seconds": job_seconds,
        "ratio": spread([a / b for a, b in zip(loop_seconds, job_seconds, strict=True)]),
        "ratio_of_sums": sum(loop_seconds) / sum(job_seconds),
        "translations": len(ablations) * sum(map(len, parts)),
        "different_translations": different,
        "changed_share": sum(share * len(part) for share, part in zip(changed, parts, strict=True)) / sum(map(len, parts)),
    }


def main() -> int:
    parser = arguments("ablation_speed", __doc__)
    parser.add_argument("run", metavar="RUN", help="a finished run folder; its base is measured")
    parser.add_argument("--data-dir", help="folder with a local copy of the run's corpus")
    parser.add_argument("--parts", type=at_least_one, default=5, help="parts of the test set (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=0, help="test sentences, 0 for all (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()

    from configs.prune import PruneConfig
    from pruning.dense_model import DenseModel

    set_threads(options.threads)
    load = load_average()
    try:
        config = PruneConfig(source=options.run, data_dir=options.data_dir, test_sentences=options.sentences, threads=options.threads)
        subject = DenseModel.open(config)
        lines = subject.test[0]
        if options.parts > len(lines):
            raise ValueError(f"--parts: expected at most the {len(lines)} test sentences, got {options.parts}")
        batches = best_batch(subject.translator, lines)
        found = measure(subject.translator, [lines[part :: options.parts] for part in range(options.parts)])
    except ValueError as error:
        print(f"ablation_speed: error: {error}", file=sys.stderr)
        return 1
    cost = found["ratio"]
    between = f"{cost['lowest']:.2f} to {cost['highest']:.2f}"
    sums = [f"{sum(found[name]):.0f}" for name in ("loop_seconds", "job_seconds")]
    changed = [f"{found['changed_share']:.0%}", found["different_translations"]]
    row = [subject.folder.path.name, *sums, f"{cost['median']:.2f}", between, *changed]
    show(["run", "loop s", "job s", "ratio", "lowest to highest", "changed", "different"], [row])
    answer = {"aim": AIM, "run": subject.folder.path.name, "seconds_of_one_by_batch_tokens": batches, **found, "load_average_before": load}
    record(options.out, "ablation_speed", QUESTION, answer, precision="32", seed=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
