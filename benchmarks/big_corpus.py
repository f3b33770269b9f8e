"""What does a large corpus cost?   The aims: private memory of all processes at most 500 MB above the
model's, a second start in under 10
seconds, and training on it at most 5% slower than on text in memory.

The corpus is made of toy pairs, drawn with repetition, as plain files. Each start is a process of its own,
from the interpreter's start to the end of some training steps of fit.py's default model: the first reads and
tokenises, the second finds that done. Private memory is what no file backs (Pss_Anon of /proc), summed over
the process and those that it starts, sampled twice a second; pages of mapped stores, which the kernel takes
back when it needs them, are listed beside it. The model's own memory is that of a start on a few pairs.

About 10 million pairs: 3 GB in --folder, which is emptied afterwards unless it is given.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, count_flag
from headgates.report.speed.measure import alternate, interval_text, ratio_by_round

POOL, SEED, FEW = (
    20_000,
    1,
    2_000,
)  # different pairs; seed; pairs of the start that shows the model's own memory
AIMS = {"private_mb": 500, "second_start_s": 10, "slower": 1.05}


def make_corpus(folder: Path, pairs: int) -> None:
    """Write so many training pairs, and some of validation and test."""
    from headgates.data.toy import generate

    pool, rng = [f"{pair.source}\t{pair.target}" for pair in generate(POOL, SEED)], random.Random(SEED)
    folder.mkdir(parents=True)
    for split, count in (("train", pairs), ("valid", 500), ("test", 500)):
        with (folder / f"{split}.en").open("w") as source, (folder / f"{split}.de").open("w") as target:
            for start in range(0, count, POOL):
                some = [pair.split("\t") for pair in rng.choices(pool, k=min(POOL, count - start))]
                source.write("".join(f"{side}\n" for side, _ in some))
                target.write("".join(f"{side}\n" for _, side in some))


def open_data(folder: Path, seconds: dict[str, float]) -> Any:
    """The batches of a corpus as fit.py has them; its vocabulary lies beside it. seconds: is told how long
    each part takes."""
    from headgates.configs.schema import FitConfig
    from headgates.data import load_corpus
    from headgates.data.corpus import TranslationData, make_vocabs

    text = FitConfig().text

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds[part] = time.perf_counter() - begin

    with timed("read"):
        corpus = load_corpus(folder, src="en", tgt="de")
    with timed("digest"):
        corpus.digest()
    with timed("vocabulary"):
        vocabs = make_vocabs(
            corpus, folder / "vocabulary", size=text.vocab_size, joint=True, pairs=text.vocab_pairs
        )
    with timed("tokenise"):
        how: Any = {"max_tokens": text.max_tokens, "max_length": text.max_length, "seed": SEED}
        data = TranslationData(corpus=corpus, source_vocab=vocabs[0], target_vocab=vocabs[1], **how)
    with timed("report"):
        _ = data.report
    return data


def trainer(data: Any) -> Any:
    """A function that trains fit.py's default model on a batch."""
    import torch

    from benchmarks.product_step import product_step
    from headgates.configs.schema import FitConfig
    from headgates.models.transformer import Transformer
    from headgates.workbench.source import best_device

    torch.manual_seed(SEED)
    device, config = best_device(), FitConfig()
    step = product_step(
        Transformer(config.model, len(data.source_vocab), len(data.target_vocab)).to(device),
        config.train,
        "32",
    )
    return lambda batch: step(batch.to(device))


def start(options: argparse.Namespace) -> None:
    """In a process of its own: open the corpus, train some steps, and print the seconds of each part."""
    seconds: dict[str, float] = {}
    data = open_data(Path(options.worker), seconds)
    batches = iter(data.train_dataloader())
    first = next(batches)
    seconds["first_batch"] = time.time() - options.began
    step = trainer(data)
    for batch in [first, *islice(batches, options.steps)]:
        step(batch)
    print(json.dumps({"pairs": len(data.train_pairs), "seconds": seconds}))


def compare_paths(options: argparse.Namespace) -> None:
    """In a process of its own: seconds of the same training steps on stored text and on text in memory."""
    import headgates.data.parallel

    opened: dict[str, Any] = {}
    for path, largest in (("stored", 0), ("in memory", sys.maxsize)):
        headgates.data.parallel.IN_MEMORY = largest
        opened[path] = open_data(Path(options.worker), {})
    step = trainer(opened["stored"])

    def block(path: str) -> None:
        for batch in islice(opened[path].train_dataloader(), options.steps):
            step(batch)

    seconds = alternate({path: lambda path=path: block(path) for path in opened}, rounds=options.rounds)  # type: ignore[misc]
    print(
        json.dumps(
            {"slower": ratio_by_round(seconds["stored"], seconds["in memory"]), "steps": options.steps}
        )
    )


def measured(folder: Path, options: argparse.Namespace, what: str) -> dict[str, Any]:
    """Run a process on the corpus of a folder; what it printed, and the largest memory of it and its
    children. Raises ValueError where it fails."""
    import os

    command = [
        sys.executable,
        "-m",
        "benchmarks.big_corpus",
        "--worker",
        str(folder),
        "--what",
        what,
        "--began",
        str(time.time()),
    ]
    command += [
        "--steps",
        str(options.steps),
        "--rounds",
        str(options.rounds),
        "--threads",
        str(options.threads),
    ]
    cache = {"HEADGATES_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | cache, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peaks = {"private_mb": 0.0, "mapped_mb": 0.0}
    watcher = threading.Thread(target=watch, args=(process, peaks), daemon=True)
    watcher.start()
    out, error = process.communicate()
    watcher.join()
    if process.returncode:
        raise ValueError(f"a process of {what} failed: {error.strip()[-500:]}")
    return {**json.loads(out.splitlines()[-1]), **peaks}


def watch(process: subprocess.Popen[str], peaks: dict[str, float]) -> None:
    """Raise the peaks to the memory of the process and its children until it ends."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    own = psutil.Process(process.pid)
    while process.poll() is None:
        now = dict.fromkeys(peaks, 0.0)
        for pid in (own.pid, *(child.pid for child in own.children(recursive=True))):
            try:
                fields = dict(
                    line.split(":") for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                )
            except OSError:  # it has ended
                continue
            now["private_mb"] += float(fields["Pss_Anon"].split()[0]) / 1e3
            now["mapped_mb"] += float(fields["Pss_File"].split()[0]) / 1e3
        peaks |= {name: max(peaks[name], now[name]) for name in peaks}
        time.sleep(0.5)


def answer(options: argparse.Namespace) -> Answer | None:
    if options.worker:
        {"start": start, "paths": compare_paths}[options.what](options)
        return None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        for name, pairs in (("few", FEW), ("small", options.small), ("big", options.pairs)):
            if not (folder / name).is_dir():
                make_corpus(folder / name, pairs)
        model = measured(folder / "few", options, "start")
        first, second = (measured(folder / "big", options, "start") for _ in range(2))
        paths = measured(folder / "small", options, "paths")
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
        "pairs_per_second_tokenised": first["pairs"] / first["seconds"]["tokenise"],
        "store_mb": stored,
        "throughput": paths | {"pairs": options.small},
    }
    rows = [
        [
            "private memory above the model's, MB: first, second start",
            *(f"{mb:.0f}" for mb in above.values()),
        ],
        ["seconds to the first batch", *(f"{run['seconds']['first_batch']:.1f}" for run in (first, second))],
        ["steps on stored text over text in memory", interval_text(paths["slower"]), ""],
    ]
    title = f"{options.pairs:,} pairs; stores of {stored:,.0f} MB; throughput on {options.small:,} pairs"
    return Answer(numbers, ["", "first", "second"], rows, title=title, seed=SEED)


main = Benchmark(
    "big_corpus",
    "a large corpus: at most 500 MB above the model's, second start in 10 s, steps at most 1.05 of memory's",
    __doc__,
    [
        count_flag("--pairs", 10_000_000, "training pairs"),
        count_flag("--small", 200_000, "training pairs of the comparison with text in memory"),
        count_flag("--steps", 60, "training steps of a start and of a timed block"),
        count_flag("--rounds", 5, "timed blocks of each"),
        (
            "--folder",
            {"help": "where the corpora are made and kept (default: a temporary folder)"},
        ),
        ("--worker", {"help": argparse.SUPPRESS}),
        ("--what", {"help": argparse.SUPPRESS}),
        ("--began", {"type": float, "help": argparse.SUPPRESS}),
    ],
    answer,
    peers=["pyarrow", "sentencepiece", "psutil"],
).main

if __name__ == "__main__":
    sys.exit(main())
