"""How much memory does training on a CPU take, step by step?   The aim: below 1,500 MB, for at most 3% more
CPU time.

Two processes side by side train the Multi30k model of configs/multi30k.yaml from the same weights on the same
batches, with fit.py's own step (benchmarks/product_step.py). One bounds its memory as fit.py does
(lightning_modules/memory.py: few prepared products are kept, and freed memory returns to the system every so
many batches), and the other leaves it as torch does. Memory is the resident size after each step, before any
is returned, and the peak within steps, both as Linux counts them. Time is that of the CPU, in user and system
mode, so that other work on the machine counts little; the ratio is taken block by block, without the first
block.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, count_flag
from benchmarks.costs import SEED, untrained
from headgates.report.speed.measure import interval_text, ratio_by_round

if TYPE_CHECKING:
    from headgates.data.batching import TokenBatches

AIM = 1.03
AIM_MB = 1500
BOUNDED, UNBOUNDED = "bounded", "as torch leaves it"


def kilobytes(name: str) -> int:
    """An entry of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def megabytes(name: str) -> int:
    return round(kilobytes(name) / 1024)


def all_batches(sampler: "TokenBatches") -> Iterator[tuple[list[int], int]]:
    """The batches of one epoch after the other, without an end."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from sampler


def train(options: argparse.Namespace) -> dict[str, Any]:
    """A worker process: resident MB before the first step and after each, the peak of the steps, and CPU
    seconds of each block of steps."""
    from benchmarks.product_step import product_step
    from headgates.lightning_modules.memory import EVERY, release_memory
    from headgates.lightning_modules.precision import resolve_precision
    from headgates.models.cpu_kernels import bound_caches

    if options.worker == BOUNDED:
        bound_caches()
    imports = megabytes("VmRSS")
    precision = resolve_precision(options.precision)
    config, data, model = untrained("multi30k", options.data_dir)
    step, split, sampler = product_step(model, config.train, precision), data.split("train"), data.sampler()
    release_memory()  # what making the vocabulary left
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins here
    before, resident, cpu = megabytes("VmRSS"), [], []
    for number, item in enumerate(itertools.islice(all_batches(sampler), options.blocks * EVERY)):
        if number % EVERY == 0:
            cpu.append(time.process_time())
        step(split[item])
        resident.append(megabytes("VmRSS"))
        if options.worker == BOUNDED and (number + 1) % EVERY == 0:
            release_memory()
    cpu.append(time.process_time())
    return {
        "precision": precision,
        "steps_per_epoch": sampler.steps,
        "steps_per_block": EVERY,
        "imports_mb": imports,
        "before_mb": before,
        "resident_mb": resident,
        "peak_mb": megabytes("VmHWM"),
        "cpu_seconds": [end - begin for begin, end in itertools.pairwise(cpu)],
    }


def side_by_side() -> dict[str, dict[str, Any]]:
    """The answers of both workers."""
    command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:]]
    workers = {
        how: subprocess.Popen([*command, f"--worker={how}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for how in (UNBOUNDED, BOUNDED)
    }
    said = {how: worker.communicate()[0] for how, worker in workers.items()}
    for how, worker in workers.items():
        if worker.returncode:
            raise ValueError(
                f"the process whose memory is {how} failed with {worker.returncode}; its message is above"
            )
    return {how: json.loads(text.splitlines()[-1]) for how, text in said.items()}


def answer(options: argparse.Namespace) -> Answer | None:
    if options.worker:
        print(json.dumps(train(options)))
        return None
    if options.blocks < 2:
        raise ValueError("--blocks 1: expected at least 2, for the first one is not counted")
    if not Path("/proc/self/clear_refs").is_file():
        raise ValueError(
            "resident memory is read from /proc, which this system does not have; measure on Linux"
        )
    measured = side_by_side()
    seconds = {how: worker["cpu_seconds"][1:] for how, worker in measured.items()}
    ratio = ratio_by_round(seconds[BOUNDED], seconds[UNBOUNDED])
    rows = [
        [how, worker["before_mb"], worker["resident_mb"][-1], worker["peak_mb"]]
        for how, worker in measured.items()
    ]
    title = f"CPU time of bounded memory: {interval_text(ratio)} times, at most {AIM}; peak below {AIM_MB} MB"
    numbers = {"aim": AIM, "aim_mb": AIM_MB, "measured": measured, "ratio": ratio}
    precision = measured[UNBOUNDED]["precision"]
    header = ["memory is", "before MB", "last step", "peak"]
    return Answer(numbers, header, rows, title, precision=precision, seed=SEED)


main = Benchmark(
    "memory",
    "training on a CPU: resident MB below 1,500 at every step, CPU time at most 1.03 of no bounds",
    __doc__,
    [
        ("--data-dir", {"help": "folder with a local copy of multi30k; without it the text is downloaded"}),
        count_flag("--blocks", 11, "blocks of 30 steps; 11 are two epochs"),
        (
            "--precision",
            {"choices": ["auto", "32", "bf16"], "default": "auto", "help": "(default: %(default)s)"},
        ),
        ("--worker", {"choices": [UNBOUNDED, BOUNDED], "help": argparse.SUPPRESS}),
    ],
    answer,
    peers=["pytorch-lightning"],
).main

if __name__ == "__main__":
    sys.exit(main())
