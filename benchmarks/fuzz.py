"""What do our readers make of damaged and hostile files?

Each case takes a file that is whole or attacks its reader (tests/worlds/attacks.py), damages one file of it,
and gives it to the reader: bytes cut, flipped or spliced, numbers changed, JSON of other types, or a link
outside. The case is a process of its own, with a limit of time and memory and an audit hook that sees every
file that is opened and every program that is started.

    fine              read, and what was damaged did not matter
    one clear error   ValueError or OSError in one line
    traceback, hang, crash, wrote outside, read outside, executed code     defects

The same seed gives the same cases; `--case N` tries one, with its words. It needs Linux.
"""

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Answer, count_flag, run
from tests.worlds.attacks import ATTACKS, WHOLE, tried

GOOD = ("fine", "one clear error")
OUTCOMES = (*GOOD, "traceback", "hang", "crash", "wrote outside", "read outside", "executed code")
VALUES: list[Any] = [None, True, -1, 10**12, 1e308, "", "\x00", "../../outside/key", [], {}, {"": None}]
ODD_NUMBERS = [b"-1", b"0", b"99999999999", b"1e309", b"nan"]


def changed(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts, or itself, of another kind."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value, key=str))
        return value | {key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(rng, value[at]), *value[at + 1 :]]
    return rng.choice(VALUES)


def damage(rng: random.Random, path: Path, outside: Path) -> str:
    """Damage a file in place; what was done. The checkpoint that the user names may be a link."""
    content = path.read_bytes() if path.stat().st_size < 2**28 else b""
    done = rng.choice(["cut", "flipped", "flipped", "spliced", "numbers", "numbers", "drawn", "linked"])
    if path.suffix == ".json" and content and rng.random() < 0.6:
        done = "a value of another kind"
        try:
            content = json.dumps(changed(rng, json.loads(content))).encode()
        except (ValueError, RecursionError):
            done = "cut"
    if done == "cut":
        content = content[: rng.randrange(len(content) + 1)]
    elif done == "flipped" and content:
        flipped = bytearray(content)
        for _ in range(rng.choice([1, 8, 64])):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        content = bytes(flipped)
    elif done == "spliced":
        a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        content = content[:b] + content[a:b] + content[b:]
    elif done == "numbers" and (found := list(re.finditer(rb"\d+", content[: 10**6]))):
        begin, end = rng.choice(found).span()
        content = content[:begin] + rng.choice(ODD_NUMBERS) + content[end:]
    elif done == "drawn":
        content = rng.randbytes(rng.choice([0, 1, 64, 4096]))
    path.unlink()
    if done == "linked" and path.parent.name == "inside" and path.suffix == ".pt":
        return "deleted"
    if done == "linked":
        path.symlink_to(outside / "key")
    else:
        path.write_bytes(content)
    return done


def answer(options: argparse.Namespace) -> Answer:
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # cases are forks of this process, which pools do not survive
    )
    import torch
    import transformers

    torch.set_num_threads(1)

    for name in ("BartForConditionalGeneration", "BertForSequenceClassification", "PegasusModel"):
        getattr(transformers, name)
    found: dict[str, Counter[str]] = {"whole": Counter(), "attack": Counter()}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        for number in range(options.cases) if options.case is None else [options.case]:
            rng, place = random.Random(f"{options.seed} {number}"), Path(scratch).resolve() / str(number)
            inside, outside = place / "inside", place / "outside"
            for folder in (inside, outside):
                folder.mkdir(parents=True)
            (outside / "key").write_text("the user's own\n", encoding="utf-8")
            kind = rng.choice(["whole", "whole", "attack"])
            name = rng.choice(list(WHOLE if kind == "whole" else ATTACKS))
            action = WHOLE[name](inside, outside) if kind == "whole" else ATTACKS[name][0](inside, outside)
            files = sorted(path for path in inside.rglob("*") if path.is_file() and not path.is_symlink())
            path = rng.choice(files)
            done = f"{path.name} {damage(rng, path, outside)}"
            outcome, words = tried(action, inside, outside)
            found[kind][outcome] += 1
            if options.case is not None or outcome not in GOOD:
                print(f"case {number}, {name}, {done}: {outcome}: {words}", file=sys.stderr, flush=True)
            shutil.rmtree(place, ignore_errors=True)
    total = sum(found.values(), Counter())
    numbers = {
        "cases": sum(total.values()),
        "all": {outcome: total[outcome] for outcome in OUTCOMES},
        "by_kind": {name: dict(counts) for name, counts in found.items()},
    }
    rows = [[name, *(counts[outcome] for outcome in OUTCOMES)] for name, counts in found.items()]
    return Answer(numbers, ["file", *OUTCOMES], rows, seed=options.seed)


QUESTION = "what do our readers make of damaged and hostile files?"
FLAGS = [
    count_flag("--cases", 500, "how many"),
    ("--seed", {"type": int, "default": 1, "help": "of all that is drawn (default: %(default)s)"}),
    ("--case", {"type": int, "help": "the number of one case, which is tried alone"}),
]

if __name__ == "__main__":
    sys.exit(run("fuzz", QUESTION, __doc__, FLAGS, answer))
