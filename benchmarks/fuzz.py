"""What do our readers make of damaged and hostile files?

Each case copies something whole (a corpus, a configuration, a run folder, a checkpoint, a model of another
library), damages one file of it, and gives it to what reads it: a script's main, or the reader that scripts
call. Damage is bytes cut, flipped or spliced, JSON of other types, a link outside, or a pickle that runs a
command. The case is a process of its own, with a limit of time and memory and an audit hook that sees every
file that is opened to be written and every program that is started.

    fine              read, and what was damaged did not matter
    one clear error   ValueError or OSError in one line, or an exit code with one line of error
    traceback, hang, crash, wrote outside, executed code     defects

The same seed gives the same cases; `--case N` tries one, with its words. It needs Linux.
"""

import argparse
import contextlib
import faulthandler
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, count_flag

OUTCOMES = ("fine", "one clear error", "traceback", "hang", "crash", "wrote outside", "executed code")
EXAMPLES, BASE, GATED = ROOT / "examples/toy_run", "toy-en-de-none-s1", "toy-en-de-l0-0.05-s1"
MEMORY, SECONDS = 6 * 2**30, 60  # bytes of address space beside what is there, and processor time of a case
RUNS = {"os.system", "os.exec", "os.posix_spawn", "os.forkpty", "subprocess.Popen"}
ASKED = {"git", "nvidia-smi", "lscpu", "uname"}  # what a command asks about the machine and the checkout
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
VALUES: list[Any] = [
    None,
    True,
    -1,
    1e308,
    float("nan"),
    "",
    "\x00",
    "../../outside/x",
    "</script>",
    [],
    {},
    {"": None},
]
Action = Callable[[], int | None]


class Command:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


def hostile_pickle(rng: random.Random, marker: Path) -> bytes:
    """A pickle that runs a command, bare or as torch.save packs it."""
    import torch

    content = rng.choice([Command(marker), {"model": Command(marker), "architecture": {}}])
    if rng.random() < 0.4:
        return pickle.dumps(content)
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=rng.random() < 0.7)
    return file.getvalue()


def changed(rng: random.Random, value: Any) -> Any:
    """The value with one of its parts, or itself, of another kind."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value, key=str))
        return value | {key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(rng, value[at]), *value[at + 1 :]]
    return rng.choice(VALUES)


def damage(rng: random.Random, path: Path, marker: Path) -> str:
    """Damage a file in place, or put a hostile one in its place; what was done."""
    content = path.read_bytes()
    if path.suffix in (".pt", ".bin", ".npz", ".safetensors") and rng.random() < 0.3:
        path.write_bytes(hostile_pickle(rng, marker))
        return "a pickle that runs a command"
    if path.suffix == ".json" and rng.random() < 0.6:
        path.write_text(json.dumps(changed(rng, json.loads(content))), encoding="utf-8")
        return "a value of another kind"
    done = rng.choice(["cut", "flipped", "spliced", "drawn", "deleted", "linked"])
    if done == "cut":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif done == "flipped":
        flipped = bytearray(content)
        for _ in range(rng.choice([1, 8, 64]) if content else 0):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(flipped))
    elif done == "spliced":
        a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        path.write_bytes(content[:b] + content[a:b] + content[b:])
    elif done == "drawn":
        path.write_bytes(rng.randbytes(rng.choice([0, 1, 64, 4096])))
    else:
        path.unlink()
        if done == "linked":
            path.symlink_to(marker.parent / "kept")
    return done


def script(name: str, *words: object) -> Action:
    """The `main` of a command with these words."""

    def call() -> int | None:
        from importlib import import_module

        sys.argv = [f"{name}.py", *map(str, words)]
        code: int | None = import_module(f"headgates.commands.{name}").main()
        return code

    return call


def translated(source: object, inside: Path) -> Action:
    (inside / "in.txt").write_text("The dog sleeps.\n", encoding="utf-8")
    words = ["--input", inside / "in.txt", "--output", inside / "work/out.txt", "--quiet", "--device", "cpu"]
    return script("translate", source, *words)


def corpus(inside: Path, whole: Path) -> Action:
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            (inside / f"{split}.{side}").write_text("The dog sees a cat , Ä .\n" * 50, encoding="utf-8")

    def read() -> None:
        from headgates.data import load_corpus
        from headgates.data.corpus import make_vocabs

        make_vocabs(load_corpus(inside, src="en", tgt="de"), inside / "work", size=60, joint=True)

    return read


def settings(inside: Path, whole: Path) -> Action:
    from headgates.configs.cli import parse
    from headgates.configs.schema import FitConfig

    shutil.copyfile(ROOT / "configs/multi30k.yaml", inside / "x.yaml")

    def read() -> None:
        parse(FitConfig, ["--config", str(inside / "x.yaml")], prog="fit.py")

    return read


def run_folder(inside: Path, whole: Path) -> Action:
    shutil.copytree(EXAMPLES / GATED, inside / GATED)
    return translated(inside / GATED, inside)


def analysed_run(inside: Path, whole: Path) -> Action:
    shutil.copytree(EXAMPLES / GATED, inside / GATED)
    return script("analyze", inside / GATED, "--what", "confidence", "--sentences", "5")


def checkpoint(inside: Path, whole: Path) -> Action:
    shutil.copyfile(EXAMPLES / GATED / "best.pt", inside / "best.pt")

    def read() -> None:
        from headgates.models.checkpoint import load_model

        load_model(inside / "best.pt")

    return read


def foreign(kind: str) -> Callable[[Path, Path], Action]:
    """A model of Hugging Face's or fairseq's form, exported once of the example's base."""

    def make(inside: Path, whole: Path) -> Action:
        if not (whole / kind).is_dir():
            from headgates.bridges.formats import export
            from headgates.workbench.source import open_source

            base = open_source(EXAMPLES / BASE, device="cpu").translator
            text: dict[str, Any] = {"lines": ["The dog sleeps."], "references": ["Der Hund schläft."]}
            export(base, kind, whole / kind, **text, facts={"src": "en", "tgt": "de"})
        folder = Path(shutil.copytree(whole / kind, inside / "model"))
        place = folder / "checkpoint.pt" if kind == "fairseq" else folder
        return translated(f"{kind}:{place}", inside)

    return make


KINDS: dict[str, Callable[[Path, Path], Action]] = {
    "corpus": corpus,
    "settings": settings,
    "run folder": run_folder,
    "run folder, analyze": analysed_run,
    "checkpoint": checkpoint,
    "model of Hugging Face": foreign("hf"),
    "model of fairseq": foreign("fairseq"),
}


def make_case(name: str, rng: random.Random, inside: Path, whole: Path) -> tuple[Action, str]:
    """Fill `inside` with what is whole, and damage one file of it."""
    action = KINDS[name](inside, whole)
    path = rng.choice(sorted(path for path in inside.rglob("*") if path.is_file() and path.name != "in.txt"))
    return action, f"{path.name} {damage(rng, path, inside.parent / 'outside/marker')}"


def tried(action: Action, inside: Path, *, seconds: float = SECONDS) -> tuple[str, str]:
    """One of OUTCOMES and the case's words. It may write in `inside` alone; the folder `outside` beside it
    must stay as it is."""
    outside, report = inside.parent / "outside", inside.parent / "report.json"
    child = os.fork()
    if child == 0:
        try:
            report.write_text(json.dumps(alone(action, inside, report, seconds)), encoding="utf-8")
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    if (outside / "marker").exists():
        return "executed code", "the marker was made"
    if [path.name for path in outside.iterdir()] != ["kept"] or (outside / "kept").read_text() != "kept\n":
        return "wrote outside", "the folder beside it has changed"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return "hang", f"longer than {seconds:g} s"
    if not report.is_file():
        return "crash", f"wait status {status}"
    outcome, words = json.loads(report.read_text(encoding="utf-8"))
    return outcome, words


def alone(action: Action, inside: Path, report: Path, seconds: float) -> tuple[str, str]:
    """The outcome of a case in this process, which is changed for it."""
    (inside / "work").mkdir(exist_ok=True)
    os.environ |= {"TMPDIR": str(inside / "work"), "HOME": str(inside / "work")}
    tempfile.tempdir = str(inside / "work")
    os.chdir(inside / "work")
    faulthandler.disable()  # a crash is told by its outcome
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (used + int(seconds) + 1, resource.RLIM_INFINITY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 10 * seconds)  # what waits for something that does not come
    seen: list[tuple[str, str]] = []
    sys.addaudithook(watch(seen, inside, report))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        outcome, words = judged(action, said)
    return seen[0] if seen else (outcome, words)


def judged(action: Action, said: io.StringIO) -> tuple[str, str]:
    try:
        code = action()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except (ValueError, OSError) as error:
        clear = not isinstance(error, UnicodeError) and str(error) and "\n" not in str(error).strip()
        return ("one clear error", str(error)) if clear else ("traceback", traceback.format_exc()[-1500:])
    except BaseException:
        return "traceback", traceback.format_exc()[-1500:]
    lines = [line for line in said.getvalue().splitlines() if "error:" in line]
    if not code:
        return "fine", ""
    return ("one clear error", lines[0]) if len(lines) == 1 else ("traceback", said.getvalue()[-1500:])


def watch(seen: list[tuple[str, str]], inside: Path, report: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes in `seen` what is written outside of `inside`, and programs that start."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        paths: list[Any] = []
        if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            paths = [arguments[0]]
        elif event in WRITES:
            paths = list(arguments)
        elif event in RUNS:
            first = arguments[1][0] if event == "subprocess.Popen" else arguments[0]
            if Path(os.fsdecode(first)).name not in ASKED:
                seen.append(("executed code", f"{event} {first}"))
        for path in (os.fsdecode(path) for path in paths if isinstance(path, str | bytes)):
            real = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
            if not real.startswith((f"{inside}{os.sep}", "/dev/")) and real != str(report):
                seen.append(("wrote outside", f"{event} {path}"))

    return hook


def answer(options: argparse.Namespace) -> Answer:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # cases are forks of this process
    sys.dont_write_bytecode = True
    found: dict[str, Counter[str]] = {name: Counter() for name in KINDS}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        place = Path(scratch).resolve()
        for number in range(options.cases) if options.case is None else [options.case]:
            rng, inside = random.Random(f"{options.seed} {number}"), place / f"{number}/inside"
            (inside / "work").mkdir(parents=True)
            (inside.parent / "outside").mkdir()
            (inside.parent / "outside/kept").write_text("kept\n", encoding="utf-8")
            name = rng.choice(list(KINDS))
            action, done = make_case(name, rng, inside, place / "whole")
            outcome, words = tried(action, inside)
            found[name][outcome] += 1
            if options.case is not None or outcome not in OUTCOMES[:2]:
                print(f"case {number}, {name}, {done}: {outcome}: {words}", file=sys.stderr, flush=True)
            shutil.rmtree(inside.parent, ignore_errors=True)
    total = sum(found.values(), Counter())
    numbers = {
        "cases": sum(total.values()),
        "all": {outcome: total[outcome] for outcome in OUTCOMES},
        "by_kind": {name: dict(counts) for name, counts in found.items()},
    }
    rows = [[name, *(counts[outcome] for outcome in OUTCOMES)] for name, counts in found.items()]
    return Answer(numbers, ["input", *OUTCOMES], rows, seed=options.seed)


main = Benchmark(
    "fuzz",
    "what do our readers make of damaged and hostile files?",
    __doc__,
    [
        count_flag("--cases", 500, "how many"),
        ("--seed", {"type": int, "default": 1, "help": "of all that is drawn (default: %(default)s)"}),
        ("--case", {"type": int, "help": "the number of one case, which is tried alone"}),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
