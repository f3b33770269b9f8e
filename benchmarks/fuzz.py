"""What do our readers make of damaged and hostile files?   Text, settings, run folders, checkpoints and
models of other libraries.

Each case damages one file of something whole (cut short, bits flipped, values of other types, links, names
with ../, pickles that run a command, archives with entries outside) and hands it to what reads it: a script's
main, or the reader that scripts call. It runs in a process of its own, with a limit of time and memory. An
audit hook sees every file that is opened to be written and every program that is started.

    fine              read, and what was damaged did not matter
    one clear error   ValueError or OSError in one line, or exit code 1 or 2 with one line of error
    traceback, hang, crash, wrote outside, executed code     defects

The same seed gives the same cases. `--only KIND` tries one kind alone, `--case N` one case, with its words.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, count_flag

SHOWN = 12  # defects of which the words are printed
# what cases import: in the process that they are forks of, so that none takes a second to import it again
READERS = (
    *(
        "headgates.workbench.analyses",
        "benchmarks.fuzz_foreign",
        "headgates.configs.prune",
        "headgates.data.conllu",
        "headgates.data.corpus",
        "headgates.data.labelled",
        "headgates.data.vocab",
    ),
    *(
        "headgates.bridges.fairseq",
        "headgates.bridges.parity",
        "headgates.bridges.hf",
        "headgates.bridges.marian",
        "headgates.report.fill",
        "headgates.report.head_figures",
    ),
    *(
        "headgates.workbench.run_rows",
        "headgates.workbench.source",
        "headgates.workbench.sweeps.sweep_file",
        "headgates.tasks.translation",
        "translate",
        "analyze",
    ),
)


def try_cases(options: argparse.Namespace, place: Path) -> dict[str, Counter[str]]:
    """kind -> outcome -> how many cases. place: an empty folder."""
    from benchmarks.fuzz_child import tried
    from benchmarks.fuzz_foreign import kinds_of

    found: dict[str, Counter[str]] = {}
    started, defects = time.monotonic(), 0
    (place / "whole").mkdir()
    kinds = kinds_of(place / "whole")
    if options.only and options.only not in kinds:
        raise ValueError(f"--only {options.only}: expected one of {', '.join(kinds)}")
    names = [options.only] if options.only else list(kinds)
    for number in range(options.cases) if options.case is None else [options.case]:
        if time.monotonic() - started > options.minutes * 60:
            print(
                f"--minutes {options.minutes}: {number} of {options.cases} cases were tried", file=sys.stderr
            )
            break
        rng = random.Random(f"{options.seed} {number}")
        name = rng.choices(names, [kinds[one].share for one in names])[0]
        inside = place / f"{number}/inside"
        for folder in (inside / "work", inside.parent / "outside"):
            folder.mkdir(parents=True)
        (inside.parent / "outside/kept").write_text("kept\n", encoding="utf-8")
        action, done = kinds[name].make(rng, inside)
        outcome, words = tried(action, inside, seconds=kinds[name].seconds)
        found.setdefault(name, Counter())[outcome] += 1
        if outcome not in ("fine", "one clear error"):
            defects += 1
        if options.case is not None or (
            outcome not in ("fine", "one clear error") and defects <= options.shown
        ):
            print(f"case {number}, {name}, {done}: {outcome}: {words}", file=sys.stderr, flush=True)
        shutil.rmtree(inside.parent, ignore_errors=True)
    return found


def answer(options: argparse.Namespace) -> Answer:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # cases are forks of this process
    sys.dont_write_bytecode = True
    for reader in READERS:
        import_module(reader)
    from benchmarks.fuzz_child import OUTCOMES

    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        found = try_cases(options, Path(place).resolve())
    total = sum(found.values(), Counter())
    rows = [
        [name, sum(counts.values()), *(counts[outcome] for outcome in OUTCOMES)]
        for name, counts in sorted(found.items())
    ]
    rows.append(["all", sum(total.values()), *(total[outcome] for outcome in OUTCOMES)])
    counts: dict[str, Any] = {
        name: {outcome: each[outcome] for outcome in OUTCOMES} for name, each in sorted(found.items())
    }
    numbers = {
        "cases": sum(total.values()),
        "all": {outcome: total[outcome] for outcome in OUTCOMES},
        "by_kind": counts,
    }
    return Answer(
        numbers, ["input", "cases", *OUTCOMES], rows, title="damaged and hostile inputs", seed=options.seed
    )


main = Benchmark(
    name="fuzz",
    question="what do our readers make of damaged and hostile files?",
    about=__doc__,
    flags=[
        count_flag("--cases", 2000, "how many"),
        count_flag("--minutes", 10, "at most so many, then what was tried is recorded"),
        count_flag("--shown", SHOWN, "defects whose words are printed"),
        ("--seed", {"type": int, "default": 1, "help": "of all that is drawn (default: %(default)s)"}),
        ("--only", {"help": "one kind of input"}),
        ("--case", {"type": int, "help": "the number of one case, which is tried alone"}),
    ],
    answer=answer,
).main

if __name__ == "__main__":
    sys.exit(main())
