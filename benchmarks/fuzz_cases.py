"""What benchmarks/fuzz.py tries of our own files: for each kind of input the whole files, and the function of
ours that reads them.

A case is made in an empty folder `inside`, damaged there, and then read by the returned function, in a
process of its own. The function is a script's `main` with its words, or the reader that the scripts call."""

import gzip
import json
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.benchmark import ROOT
from benchmarks.fuzz_damage import JSON_VALUES, TEXTS, damage

Action = Callable[[], int | None]
EXAMPLES = ROOT / "examples/toy_run"
BASE, GATED = "toy-en-de-none-s1", "toy-en-de-l0-0.05-s1"


@dataclass(frozen=True)
class Kind:
    """make: fills `inside`, damages something and returns what reads it, with what was done; share: of the
    cases, relative to the others; seconds: the limit of one case."""

    make: Callable[[random.Random, Path], tuple[Action, str]]
    share: int
    seconds: float = 30.0


def quiet(read: Callable[[], object]) -> Action:
    """A reader whose result is no exit code."""

    def call() -> None:
        read()

    return call


def script(name: str, *words: object) -> Action:
    """The `main` of a root script with these words."""

    def call() -> int | None:
        module = __import__(name)
        sys.argv = [f"{name}.py", *map(str, words)]
        code: int | None = module.main()
        return code

    return call


def marker(inside: Path) -> Path:
    return inside.parent / "outside/marker"


def some_file(rng: random.Random, folder: Path) -> Path:
    return rng.choice(sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()))


# ---------------------------------------------------------------- text


def some_text(rng: random.Random, lines: int) -> bytes:
    """So many lines, most of them plain, some hostile, now and then with bytes that are no UTF-8, or
    packed."""
    kinds = [
        lambda: b"The dog sees a cat .",
        lambda: rng.choice(TEXTS).encode(),
        lambda: rng.randbytes(rng.randrange(40)),
    ]
    weights = rng.choice([[1, 0, 0], [8, 1, 0], [1, 1, 0], [20, 0, 1], [1, 1, 1]])
    content = b"\n".join(rng.choices(kinds, weights)[0]() for _ in range(lines)) + rng.choice([b"", b"\n"])
    turn = rng.random()
    if turn < 0.1:
        content = gzip.compress(content, mtime=0)
        return content[: rng.randrange(len(content) + 1)] if rng.random() < 0.7 else content
    if turn < 0.15:
        return gzip.compress(b"\0" * 2**27, 1, mtime=0)
    return rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\0"]) + content if turn < 0.2 else content


def corpus(rng: random.Random, inside: Path) -> tuple[Action, str]:
    lines, files = rng.choice([0, 1, 5, 50, 400]), {}
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            files[split, side] = inside / f"{split}.{side}"
            files[split, side].write_text("The dog sees a cat , Ä %d .\n" * lines, encoding="utf-8")
    for path in rng.sample(sorted(files.values()), rng.choice([0, 1, 1, 2])):
        path.write_bytes(some_text(rng, max(0, lines + rng.choice([0] * 9 + [-1, 1, 30]))))
    if rng.random() < 0.1:
        damage(rng, files["train", "de"], marker(inside))

    def read() -> None:
        from headgates.data import load_corpus
        from headgates.data.corpus import TranslationData, make_vocabs

        named = {
            f"{split}_files": [str(files[split, side]) for side in ("en", "de")]
            for split in ("train", "valid", "test")
        }
        text = load_corpus(None, src="en", tgt="de", **named)  # type: ignore[arg-type]
        source, target = make_vocabs(text, inside / "work", size=100, joint=True)
        data = TranslationData(
            corpus=text, source_vocab=source, target_vocab=target, max_tokens=500, max_length=100, seed=1
        )
        for _ in data.batches("train", 500):
            pass

    return read, f"{lines} lines"


def translated_text(rng: random.Random, inside: Path) -> tuple[Action, str]:
    (inside / "in.txt").write_bytes(some_text(rng, rng.choice([0, 1, 3, 7])))
    flags = rng.choice([[], ["--beam", "1"], ["--n-best", "2"], ["--scores"], ["--too-long", "empty"]])
    words = [
        EXAMPLES / BASE,
        "--input",
        inside / "in.txt",
        "--output",
        inside / "work/out.txt",
        "--quiet",
        "--device",
        "cpu",
        *flags,
    ]
    return script("translate", *words), " ".join(flags)


TREE = "# text = The dog sleeps.\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tdog\tdog\tNOUN\tNN\t_\t3\tnsubj\t_\t_\n"
TREE += "3\tsleeps\tsleep\tVERB\tVBZ\t_\t0\troot\t_\tSpaceAfter=No\n4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_\n\n"


def examples(rng: random.Random, inside: Path) -> tuple[Action, str]:
    """Trees of CoNLL-U, and labelled sentences."""
    name, text = rng.choice(
        [
            ("x.conllu", TREE),
            ("x.tsv", "sentence\tlabel\nGood.\t1\n"),
            ("x.jsonl", '{"sentence": "Good.", "label": 1}\n'),
        ]
    )
    path = inside / name
    path.write_text(text * rng.choice([1, 3, 40]), encoding="utf-8")
    done = damage(rng, path, marker(inside))

    def read() -> None:
        from headgates.data.conllu import read_conllu
        from headgates.data.labelled import read_labelled

        (read_conllu if name == "x.conllu" else read_labelled)(path)

    return read, f"{name} {done}"


# ---------------------------------------------------------------- settings


def settings(rng: random.Random, inside: Path) -> tuple[Action, str]:
    """A configuration or a sweep file, damaged as YAML, as a value or as bytes; or flags with values of other
    kinds."""
    from headgates.configs.cli import parse
    from headgates.configs.fields import all_settings
    from headgates.configs.prune import PruneConfig
    from headgates.configs.schema import FitConfig
    from headgates.configs.translate import TranslateConfig
    from headgates.workbench.sweeps.sweep_file import read_sweep

    if rng.random() < 0.4:
        config: Any = rng.choice([FitConfig, PruneConfig, TranslateConfig])
        values = [
            *map(str, JSON_VALUES),
            *TEXTS,
            "1,2,,3",
            "[1, 2",
            "-1",
            "1e9",
            "base,l0",
            "!!python/object/apply:os.system [true]",
        ]
        flags = [rng.choice([one.flag for one in all_settings(config)]) for _ in range(rng.choice([1, 2, 3]))]
        words = [word for flag in flags for word in (flag, rng.choice(values))]
        return quiet(lambda: parse(config, ["some", *words], prog="x.py")), " ".join(words)[:200]
    name = rng.choice(
        ["toy.yaml", "toy_tiny.yaml", "multi30k.yaml", "sweeps/lambda.yaml", "sweeps/compare.yaml"]
    )
    path = inside / Path(name).name
    shutil.copyfile(ROOT / "configs" / name, path)
    if rng.random() < 0.9:
        done = damage(rng, path, marker(inside))
    else:
        done = "a tag that asks for code"
        path.write_text(
            f"seed: !!python/object/apply:os.system ['touch {marker(inside)}']\n", encoding="utf-8"
        )
    if name.startswith("sweeps/"):
        return quiet(lambda: read_sweep(path)), f"{name} {done}"
    return quiet(lambda: parse(FitConfig, ["--config", str(path)], prog="fit.py")), f"{name} {done}"


# ---------------------------------------------------------------- run folders and checkpoints


def copied_runs(inside: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES, inside / "work/runs"))


def hostile_name(rng: random.Random, run: Path) -> str:
    """A system of the run has a name that leads out of its folder, in every file that names it."""
    name = rng.choice(
        ["../../../../outside/x", "../../x", "/outside", "a/b", "..", "", "\u202e", "</script>", "x\n"]
    )
    own = json.loads((run / "result.json").read_text(encoding="utf-8"))
    systems = json.loads((run / "systems.json").read_text(encoding="utf-8"))
    systems[name] = systems[own["system"]] | rng.choice(
        [{}, {"weights": "../" + BASE + "/best.pt"}, {"xi": None}]
    )
    (run / "result.json").write_text(json.dumps(own | {"system": name}), encoding="utf-8")
    (run / "systems.json").write_text(json.dumps(systems), encoding="utf-8")
    return f"system {name!r}"


def run_folder(rng: random.Random, inside: Path) -> tuple[Path, str]:
    """A run of two, one file of which is damaged, often one that every reader needs."""
    runs = copied_runs(inside)
    run = runs / rng.choice([BASE, GATED, GATED])
    if rng.random() < 0.1:
        return run, hostile_name(rng, run)
    needed = [run / name for name in ("config.yaml", "result.json", "systems.json", "best.pt", "vocab.model")]
    path = rng.choice(needed) if rng.random() < 0.5 else some_file(rng, runs)
    return run, f"{path.relative_to(runs)} {damage(rng, path, marker(inside))}"


def opened_run(rng: random.Random, inside: Path) -> tuple[Action, str]:
    run, done = run_folder(rng, inside)

    def read() -> None:
        from headgates.gates import HeadMap
        from headgates.report.report_data import gate_history
        from headgates.workbench.folder import find_runs
        from headgates.workbench.related import open_gate_run, siblings
        from headgates.workbench.run_rows import finished_runs, run_rows
        from headgates.workbench.source import open_source
        from headgates.workbench.table import read_table

        source = open_source(run, device="cpu")
        source.translator.translate(["The dog sleeps."])
        folder = source.folder
        found = (
            [open_gate_run(folder)]
            if (folder / "gates.json").is_file()
            else siblings(folder, report=lambda text: None)
        )
        rows = run_rows(finished_runs(find_runs(run.parent), report=lambda text: None))
        assert found is not None
        assert rows is not None
        gate_history(folder)
        for path in sorted(folder.path.rglob("*.csv")):
            read_table(folder, str(path.relative_to(folder.path)))
        for path in sorted((folder / "scores").glob("*.json")):
            HeadMap.load(path)

    return read, done


def analysed_run(rng: random.Random, inside: Path) -> tuple[Action, str]:
    """The whole of analyze.py, which writes tables, figures and pages; of one analysis, so that it takes
    seconds."""
    run, done = run_folder(rng, inside)
    return script("analyze", run, "--what", "confidence", "--sentences", "5"), done


def checkpoint(rng: random.Random, inside: Path) -> tuple[Action, str]:
    name = rng.choice(["best.pt", "best.pt", "vocab.model", "gates.json", "gates_history.npz"])
    path = inside / name
    shutil.copyfile(EXAMPLES / GATED / name, path)
    done = damage(rng, path, marker(inside))

    def read() -> None:
        from headgates.data.vocab import Vocab
        from headgates.gates import HeadMap
        from headgates.models.checkpoint import check_bytes, load_model
        from headgates.report.report_data import gate_history
        from headgates.workbench.folder import RunFolder

        if name == "best.pt":
            load_model(path)
            check_bytes(path)
        elif name == "vocab.model":
            vocab = Vocab.load(path)
            vocab.decode(vocab.encode(["The dog sleeps.", *TEXTS]))
        elif name == "gates.json":
            HeadMap.load(path)
        else:
            gate_history(RunFolder(inside))

    return read, f"{name} {done}"
