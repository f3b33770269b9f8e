"""What does a large corpus cost?   The aims: private memory of all processes at most 500 MB above the
model's, a second start in under 10
seconds, and training on it at most 5% slower than on text in memory.

The corpus is made of toy pairs, drawn with repetition, as plain files. Each start is a process of its own,
from the interpreter's start to the end of some training steps of fit.py's default model: the first reads and
tokenises, the second finds that done. Private memory is what no file backs (Pss_Anon of /proc), summed over
the process and those that it starts, sampled twice a second. The model's own memory is that of a start on a
few pairs.

About 10 million pairs: 3 GB in --folder, which is emptied afterwards unless it is given.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from benchmarks.benchmark import ROOT, Answer, Flag, count_flag, run
from benchmarks.costs import COSTS_SEED, open_batches, untrained
from benchmarks.product_step import product_step
from headgates.configs.settings import Settings
from headgates.data import load_corpus, parallel
from headgates.data.toy import generate
from headgates.lab.measure import alternate, ratio_by_round, spread_text

DIFFERENT_PAIRS = 20_000  # different pairs
FEW_PAIRS = 2_000  # pairs of the start that shows the model's own memory
VOCABULARY = "vocabulary"  # the folder of its files, beside the corpus
AIMS = {"private_mb": 500, "second_start_s": 10, "slower": 1.05}


def make_corpus(folder: Path, pairs: int) -> None:
    """Write so many training pairs, and some of validation and test."""
    pool, rng = generate(DIFFERENT_PAIRS, COSTS_SEED), random.Random(COSTS_SEED)
    folder.mkdir(parents=True)
    for split, count in (("train", pairs), ("valid", 500), ("test", 500)):
        with (folder / f"{split}.en").open("w") as source, (folder / f"{split}.de").open("w") as target:
            for start in range(0, count, DIFFERENT_PAIRS):
                some = rng.choices(pool, k=min(DIFFERENT_PAIRS, count - start))
                source.write("".join(f"{pair.source}\n" for pair in some))
                target.write("".join(f"{pair.target}\n" for pair in some))


def open_data(folder: Path) -> Any:
    """The batches of a corpus as fit.py has them; its vocabulary lies beside it."""
    data = open_batches(load_corpus(folder, src="en", tgt="de"), Settings(), folder / VOCABULARY)
    _ = data.report
    return data


def trainer(folder: Path) -> Any:
    """A function that trains fit.py's default model on a batch of the corpus in a folder."""
    model = untrained(Settings(), folder / VOCABULARY)
    step = product_step(model, Settings().train, "32")
    return lambda batch: step(batch.to(model.output.weight.device))


def start_training(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: open the corpus and train some steps."""
    data = open_data(Path(options.worker))
    batches = iter(data.train_dataloader())
    first = next(batches)
    seconds = time.time() - options.began
    step = trainer(Path(options.worker))
    for batch in [first, *islice(batches, options.steps)]:
        step(batch)
    return {"pairs": len(data.train_pairs), "seconds_to_first_batch": seconds}


def compare_paths(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own: seconds of the same training steps on stored text and on text in memory."""
    texts: dict[str, Any] = {}
    for path, largest in (("stored", 0), ("in memory", sys.maxsize)):
        parallel.IN_MEMORY = largest
        texts[path] = open_data(Path(options.worker))
    step = trainer(Path(options.worker))

    def block(data: Any) -> None:
        for batch in islice(data.train_dataloader(), options.steps):
            step(batch)

    seconds = alternate({path: partial(block, data) for path, data in texts.items()}, rounds=options.rounds)
    return {"slower": ratio_by_round(seconds["stored"], seconds["in memory"]), "steps": options.steps}


WORK = {"start": start_training, "paths": compare_paths}


def measured_process(folder: Path, what: str) -> dict[str, Any]:
    """Run an entry of WORK in a process on the corpus of a folder; what it printed, and its largest private
    memory. Raises ValueError where it fails."""
    command = [sys.executable, "-m", "benchmarks.big_corpus", *sys.argv[1:], f"--worker={folder}"]
    process = subprocess.Popen(
        [*command, f"--what={what}", f"--began={time.time()}"],
        cwd=ROOT,
        env=os.environ | {"HEADGATES_CACHE": str(folder / "cache")},
        stdout=subprocess.PIPE,
        text=True,
    )
    own, peak = psutil.Process(process.pid), 0.0
    while process.poll() is None:
        pids = [own.pid, *(child.pid for child in own.children(recursive=True))]
        peak = max(peak, sum(map(private_mb, pids)))
        time.sleep(0.5)
    printed, _ = process.communicate()
    if process.returncode:
        raise ValueError(f"a process of {what} failed with {process.returncode}; its message is above")
    return {**json.loads(printed.splitlines()[-1]), "private_mb": peak}


def private_mb(pid: int) -> float:
    """What no file backs of a process' memory; 0 once it has ended."""
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(kilobytes) for kilobytes in re.findall(r"Pss_Anon: +(\d+)", rollup)) / 1e3
    return 0.0


def answer(options: argparse.Namespace) -> Answer | None:
    if options.worker:
        print(json.dumps(WORK[options.what](options)))
        return None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        for name, pairs in (("few", FEW_PAIRS), ("small", options.small), ("big", options.pairs)):
            if not (folder / name).is_dir():
                make_corpus(folder / name, pairs)
        model = measured_process(folder / "few", "start")
        first, second = (measured_process(folder / "big", "start") for _ in range(2))
        paths = measured_process(folder / "small", "paths")
        stored = sum(path.stat().st_size for path in (folder / "big" / "cache").rglob("*.arrow")) / 1e6
    above = {
        name: run["private_mb"] - model["private_mb"] for name, run in (("first", first), ("second", second))
    }
    numbers: dict[str, Any] = {
        "aims": AIMS,
        "pairs": options.pairs,
        "model": model,
        "first": first,
        "second": second,
        "private_mb_above_model": above,
        "store_mb": stored,
        "throughput": paths | {"pairs": options.small},
    }
    starts = [run["seconds_to_first_batch"] for run in (first, second)]
    rows = [
        ["private memory above the model's, MB: first, second start", *map(round, above.values())],
        ["seconds to the first batch", *(f"{seconds:.1f}" for seconds in starts)],
        ["steps on stored text over text in memory", spread_text(paths["slower"]), ""],
    ]
    title = f"{options.pairs:,} pairs; stores of {stored:,.0f} MB; throughput on {options.small:,} pairs"
    return Answer(numbers, ["", "first", "second"], rows, title=title, seed=COSTS_SEED, peers=PEERS)


QUESTION = (
    "a large corpus: at most 500 MB above the model's, second start in 10 s, steps at most 1.05 of memory's"
)
PEERS = ["pyarrow", "sentencepiece", "psutil"]
FLAGS: list[Flag] = [
    count_flag("--pairs", 10_000_000, "training pairs"),
    count_flag("--small", 200_000, "training pairs of the comparison with text in memory"),
    count_flag("--steps", 60, "training steps of a start and of a timed block"),
    count_flag("--rounds", 5, "timed blocks of each"),
    ("--folder", {"help": "where the corpora are made and kept (default: a temporary folder)"}),
    ("--worker", {"help": argparse.SUPPRESS}),
    ("--what", {"help": argparse.SUPPRESS}),
    ("--began", {"type": float, "help": argparse.SUPPRESS}),
]

if __name__ == "__main__":
    sys.exit(run("big_corpus", QUESTION, __doc__, FLAGS, answer))
