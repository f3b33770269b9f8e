"""What does the repair of a model with half of its heads closed cost?   The aim: at most 2 forward passes
over the calibration text, with
memory that does not grow with the text.

The plain pass gives the logits of every batch, without gradients. A repair (gates/repair.py; W_O alone,
towards the stream, or W_V too, as prune.py --close names them) refits all sites after the first one, the
choice of the ridge and the dense copy included. All take the same batches of real text in turns, in fp32.
Peak memory is what a repair (or a plain pass) with so many sentences adds at most to the resident size of a
process of its own, as Linux counts it. Sizes and weights: benchmarks/untrained.py.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, at_least_one, count_flag
from benchmarks.untrained import COST_FLAGS, RATIO_COLUMNS, SEED, block_facts, ratio_cells, untrained
from headgates.report.speed.measure import alternate, median_and_range, median_text, ratio_by_round

if TYPE_CHECKING:
    from headgates.data.batch import Batch
    from headgates.models.transformer import Transformer

AIM = 2.0
WAYS = ("repair", "stream", "values")
TOKENS = 4000  # of a batch, as prune.py has it


def plain_pass(model: "Transformer", batches: Iterable["Batch"]) -> None:
    import torch

    with torch.no_grad():
        for batch in batches:
            model(batch.source, batch.target_in)


def repair_copy(model: "Transformer", batches: Iterable["Batch"], way: str) -> None:
    """Close every second head of every site and repair in one of WAYS; then the weights are as before."""
    import torch

    from headgates.gates import HeadMap, find_sites
    from headgates.workbench.closing import WAYS as CLOSINGS
    from headgates.workbench.closing import real_positions

    closed = HeadMap({site: torch.arange(site.heads) % 2 == 1 for site in find_sites(model)})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    CLOSINGS[way](
        model,
        closed,
        batches,
        lambda model, batch: model(batch.source, batch.target_in),
        positions=real_positions,
    )
    model.load_state_dict(before)


def measure(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """The seconds of a pass and of every repair, and their ratios."""
    _, data, model = untrained(size, options.data_dir, sentences=options.sentences)
    batches = [batch.to(model.output.weight.device) for batch in data.batches("train", TOKENS)]
    model.eval()
    blocks: dict[str, Any] = {way: partial(repair_copy, model, batches, way) for way in WAYS}
    blocks["plain"] = partial(plain_pass, model, batches)
    seconds = alternate(blocks, rounds=options.rounds)
    times: dict[str, Any] = {f"{name}_s": median_and_range(seconds[name]) for name in blocks}
    ratios = {way: ratio_by_round(seconds[way], seconds["plain"]) for way in WAYS}
    return block_facts(size, model, batches, max_tokens=TOKENS) | times | {"ratio": ratios}


def peak_megabytes(size: str, options: argparse.Namespace, sentences: int, what: str) -> float:
    """What a process that repairs with so many sentences, or only passes over them, holds at most beside what
    it held before, in MB."""
    words = [
        "--sizes",
        size,
        "--worker",
        what,
        "--sentences",
        str(sentences),
        "--threads",
        str(options.threads),
    ]
    words += ["--data-dir", options.data_dir] if options.data_dir else []
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.repair_cost", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ValueError(
            f"the process that repairs with {sentences} sentences ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        )
    return float(done.stdout.split()[-1])


def work(size: str, options: argparse.Namespace) -> None:
    """A worker process: print by how many MB its resident size grew at most."""
    import ctypes

    _, data, model = untrained(size, options.data_dir, sentences=options.sentences)

    class Text:
        """The batches, made anew at every reading."""

        def __iter__(self) -> "Iterator[Batch]":
            return data.batches("train", TOKENS)

    ctypes.CDLL(None).malloc_trim(0)  # what making the vocabulary needed would hide what comes
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    before = kilobytes("VmRSS")
    if options.worker == "plain":
        plain_pass(model, Text())
    else:
        repair_copy(model, Text(), options.worker)
    print((kilobytes("VmHWM") - before) / 1024)


def kilobytes(name: str) -> int:
    """An entry of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def answer(options: argparse.Namespace) -> Answer | None:
    if options.worker:
        work(options.sizes[0], options)
        return None
    measured, rows = [], []
    for size in options.sizes:
        numbers = measure(size, options)
        counts = [options.sentences * 2**i for i in range(options.doublings + 1)]
        numbers["peak_mb"] = {
            what: {str(count): peak_megabytes(size, options, count, what) for count in counts}
            for what in ("plain", *WAYS)
        }
        measured.append(numbers)
        for way in WAYS:
            memory = ", ".join(f"{count}: {numbers['peak_mb'][way][str(count)]:.0f}" for count in counts)
            plain, repair = median_text(numbers["plain_s"]), median_text(numbers[f"{way}_s"])
            rows.append(
                [
                    size,
                    numbers["batches"],
                    way,
                    plain,
                    repair,
                    *ratio_cells(numbers["ratio"][way], AIM),
                    memory,
                ]
            )
    header = [
        "size",
        "batches",
        "way",
        "forward s",
        "repair s",
        *RATIO_COLUMNS,
        f"at most {AIM:g}",
        "peak MB by sentences",
    ]
    return Answer({"aim": AIM, "measured": measured, "rounds": options.rounds}, header, rows, seed=SEED)


main = Benchmark(
    "repair_cost",
    "repair of half of the heads over one forward pass over the calibration text: at most 2 (same sentences, alternating), memory flat",
    __doc__,
    [
        *COST_FLAGS,
        count_flag("--sentences", 1000, "training pairs of the calibration text"),
        (
            "--doublings",
            {
                "type": at_least_one,
                "default": 3,
                "help": "how often the text is doubled for peak memory (default: %(default)s)",
            },
        ),
        ("--worker", {"choices": ["plain", *WAYS], "help": argparse.SUPPRESS}),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
