"""Copy finished runs in half precision, small enough to be committed: this made examples/toy_run/.

    python fit.py --config configs/toy_example.yaml --runs runs/example
    python examples/make.py runs/example

The runs with gates in a folder and their bases are copied, each with its record (config.yaml, command.txt,
result.json, gates.json, gates_history.npz, scores/, hypotheses/) as it is. What is smaller than in the run:

    best.pt       weights in half precision, which load as float32; every system is translated again and has
    its BLEU, or nothing is written
    systems.json  the systems whose weights are copied; of the others (base-continued, *:trained,
    l0-removed) rows and hypotheses stay
    metrics.csv   without rows that repeat the row before
    vocab.model   without SentencePiece's table of compatibility characters, 240 kB, of which the run's text
    must have none
    config.yaml   `runs` and `base` say where the copy lies

Then prune.py and analyze.py look at the copy; of what they write, pictures, pages and the largest tables are
left out: the same commands make them again in seconds.
"""

import argparse
import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from headgates.records.folder import RunFolder

MOST_BYTES = 900_000
MOST_BLEU = 0.3  # between the run's weights and the copy's
AS_IT_IS = (
    "command.txt",
    "result.json",
    "gates.json",
    "gates_history.npz",
    "hypotheses/*.txt",
)  # and the scores of a gated run; a base's are those of its weights, made again below
MADE_AGAIN = (
    "*.png",
    "*.svg",
    "report.html",
    "cards.json",
    "positions.json",
    "offsets.csv",
    "sentences.json",
    "sentences.csv",
    "ablation/*-outputs.json",
)  # in seconds
Looks = Callable[[str, dict[str, Any]], list[list[str]]]  # of a base's name and settings: words of commands


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="examples/make.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", help="folder of the runs")
    parser.add_argument(
        "out",
        nargs="?",
        default="examples/toy_run",
        help="folder of the copies, replaced when all is well (%(default)s)",
    )
    given = parser.parse_args(argv)
    try:
        make(Path(given.runs), Path(given.out))
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"examples/make.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def make(runs: Path, out: Path, *, looks: Looks | None = None, most_bytes: int = MOST_BYTES) -> None:
    """Copies of the gated runs in `runs` and of their bases, in `out`. looks: gives the commands that look at
    a base's copy.

    Raises ValueError at runs that are not finished, at paths of a machine in their settings, where half
    precision or the smaller vocabulary changes what is translated, and above `most_bytes`; `out` is as it was
    then."""
    check_replaceable(out)
    chosen = runs_to_copy(runs)
    names = {run.path.resolve(): run.path.name for run in chosen}
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        for run in chosen:
            copy(run, part / run.path.name, names, out=out)
        for run in chosen:
            check_translations(part / run.path.name)
        for run in chosen:
            look(run, part, looks)
        size = check_size(part, most_bytes)
        replace(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(f"{out}: {', '.join(run.path.name for run in chosen)}; {size:,} bytes")


def runs_to_copy(runs: Path) -> "list[RunFolder]":
    """The run folders with gates and their bases, by name. Raises ValueError if there is none, or one is not
    finished."""
    from headgates.records.folder import base_of, find_runs

    gated = [run for run in find_runs(runs) if run.config().get("gate", "none") != "none"]
    if not gated:
        raise ValueError(
            f"no run with gates in {runs}; expected what "
            "`fit.py --config configs/toy_example.yaml` was given as --runs"
        )
    chosen = {run.path.resolve(): run for run in [*gated, *map(base_of, gated)]}
    for run in chosen.values():
        if not run.finished():
            raise ValueError(
                f"{run.path} is not finished; the command in its command.txt with --resume continues it"
            )
    return sorted(chosen.values(), key=lambda run: run.path.name)


def default_looks(base: str, config: dict[str, Any]) -> list[list[str]]:
    """Two curves, translated as the runs' own rows are to stand beside them; the ablation of each head; all
    analyses."""
    alike = ["--beam", str(config["search"]["beam"]), "--test-sentences", str(config["test_sentences"])]
    return [
        ["prune.py", base, "--by", "importance", "--step", "0.25", *alike],
        ["prune.py", base, "--by", "loss", "--step", "0.25", *alike],
        ["prune.py", base, "--ablate", "one"],
        ["analyze.py", base, "--siblings"],
    ]


def look(run: "RunFolder", part: Path, looks: Looks | None) -> None:
    """Run the commands of a base in the folder of the copies, which they name without a path, and drop what
    can be drawn again."""
    config = run.config()
    if config["gate"] != "none":
        return
    for words in (looks or default_looks)(run.path.name, config):
        print("python", *words, flush=True)
        subprocess.run(
            [sys.executable, str(ROOT / words[0]), *words[1:]],
            cwd=part,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    for pattern in MADE_AGAIN:
        for path in part.rglob(pattern):
            path.unlink()


# ---------------------------------------------------------------- copying a run


def copy(run: "RunFolder", to: Path, names: dict[Path, str], *, out: Path) -> None:
    """One run into the new folder `to`, which will lie in `out`. names: of all runs that are copied."""
    from headgates.records.folder import RunFolder

    here = RunFolder(to)
    gated = run.config()["gate"] != "none"
    for pattern in (*AS_IT_IS, "scores/*.json") if gated else AS_IT_IS:
        for path in sorted(run.path.glob(pattern)):
            (to / path.relative_to(run.path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to / path.relative_to(run.path))
    here.write_text("config.yaml", settings_in(run, names, out))
    here.write_text("metrics.csv", without_repeats((run / "metrics.csv").read_text(encoding="utf-8")))
    here.write_json("systems.json", dict(systems_in(run, names)))
    for vocab in sorted(run.path.glob("vocab*.model")):
        smaller_vocab(vocab, here / vocab.name, run)
    halve(run / "best.pt", here / "best.pt")


def settings_in(run: "RunFolder", names: dict[Path, str], out: Path) -> str:
    """config.yaml with `runs` and `base` where the copies will lie. Raises ValueError where another setting
    has an absolute path."""
    from headgates.records.folder import base_of

    config, where = run.config(), out if not out.is_absolute() else Path(out.name)
    text = (run / "config.yaml").read_text(encoding="utf-8")
    places = {"runs": where.as_posix()}
    if config.get("base"):
        base = base_of(run).path.resolve() if config["gate"] != "none" else Path(config["base"])
        places["base"] = (where / names.get(base, base.name)).as_posix()
    for key, value in config.items():
        for each in value if isinstance(value, list) else [value]:
            if key not in places and isinstance(each, str) and Path(each).is_absolute():
                raise ValueError(
                    f"{run / 'config.yaml'} has {key}: {each}, a place on this machine; "
                    "expected a run on built-in text"
                )
    for key, place in places.items():
        text = re.sub(
            rf"^{key}: .*$", lambda _, line=f"{key}: {place}": line, text, count=1, flags=re.MULTILINE
        )  # type: ignore[misc]
    return text


def systems_in(run: "RunFolder", names: dict[Path, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The systems whose weights are the best.pt of a run that is copied."""
    for name, system in run.systems().items():
        weights = (run.path / system["weights"]).resolve()
        if weights.name == "best.pt" and weights.parent in names:
            own = weights.parent == run.path.resolve()
            yield (
                name,
                {"weights": "best.pt" if own else f"../{names[weights.parent]}/best.pt", "xi": system["xi"]},
            )


def without_repeats(text: str) -> str:
    """metrics.csv without the rows that say of a later step what the row before says; the last of a stage
    stays."""
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    said = [{column: cell for column, cell in row.items() if column != "step"} for row in rows]
    last = {i for i in range(len(rows)) if i + 1 == len(rows) or rows[i + 1]["stage"] != rows[i]["stage"]}
    kept = [row for i, row in enumerate(rows) if i == 0 or said[i] != said[i - 1] or i in last]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    return out.getvalue()


def smaller_vocab(path: Path, to: Path, run: "RunFolder") -> None:
    """The vocabulary without its table of compatibility characters (ligatures, full-width letters, ...).
    Raises ValueError if the run's text is not cut into the same pieces then."""
    from sentencepiece import sentencepiece_model_pb2

    from headgates.data.vocab import Vocab
    from headgates.records.source import run_corpus

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # protobuf makes it when it is imported
    model.ParseFromString(path.read_bytes())
    if not model.normalizer_spec.precompiled_charsmap:  # a copy itself
        shutil.copyfile(path, to)
        return
    model.normalizer_spec.ClearField("precompiled_charsmap")
    to.write_bytes(model.SerializeToString())
    corpus = run_corpus(run)
    lines = [
        line for text in (corpus.train, corpus.valid, corpus.test) for line in (*text.sources, *text.targets)
    ]
    if Vocab.load(path).encode(lines) != Vocab.load(to).encode(lines):
        raise ValueError(
            f"the text of {run.path} has compatibility characters, "
            "which its vocabulary needs the whole table for"
        )


def halve(path: Path, to: Path) -> None:
    """The checkpoint with its model's weights in half precision, tables that are shared still shared.
    `load_model` makes float32 of it."""
    import torch

    from headgates.models.checkpoint import load_file, save_file

    content = load_file(path)
    weights = {(tensor.data_ptr(), tensor.shape): tensor for tensor in content["model"].values()}
    flat = torch.cat(
        [tensor.flatten().half() for tensor in weights.values()]
    )  # one storage: every other costs the file 200 bytes
    parts = flat.split([tensor.numel() for tensor in weights.values()])
    halves = {key: part.view(key[1]) for key, part in zip(weights, parts, strict=True)}
    content["model"] = {
        name: halves[tensor.data_ptr(), tensor.shape] for name, tensor in content["model"].items()
    }
    save_file(to, content)


# ---------------------------------------------------------------- checks


def check_replaceable(out: Path) -> None:
    """Raises ValueError where `out` holds anything but copies."""
    for path in sorted(out.iterdir()) if out.is_dir() else [out] if out.exists() else []:
        if not (path / "config.yaml").is_file() or (path / "last.pt").exists():
            raise ValueError(
                f"{path} is no copy of a run, and all of {out} would be replaced; give a new folder as OUT"
            )


def check_translations(path: Path) -> None:
    """Translate the test set with every system of a copy. Raises ValueError where BLEU is another."""
    from headgates.analysis.significance import score
    from headgates.configs.systems import file_name
    from headgates.records.folder import RunFolder
    from headgates.records.source import open_source, run_corpus

    run = RunFolder(path)
    test = run_corpus(run).test
    rows = {row["system"]: row for row in run.read_json("result.json")["rows"]}
    for system in run.systems():
        row = rows[system]
        count = row["evaluation"]["sentences"]
        lines = open_source(path, system).translator.translate(test.sources[:count])
        bleu = score(lines, test.targets[:count]).main
        before = (path / f"hypotheses/{file_name(system)}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        changed = sum(a != b for a, b in zip(lines, before, strict=True))
        said = f"{path.name}: {system} has BLEU {bleu:.2f} in half precision, {row['bleu']:.2f} before"
        print(f"{said}; {changed} of {count} lines differ", flush=True)
        if abs(bleu - row["bleu"]) > MOST_BLEU:
            raise ValueError(f"{said}; expected at most {MOST_BLEU} between them")


def check_size(part: Path, most_bytes: int) -> int:
    """Bytes of all files. Raises ValueError above the limit, naming the largest."""
    sizes = {
        path.relative_to(part).as_posix(): path.stat().st_size for path in part.rglob("*") if path.is_file()
    }
    total = sum(sizes.values())
    if total > most_bytes:
        largest = ", ".join(
            f"{name} {sizes[name]:,}" for name in sorted(sizes, key=lambda name: -sizes[name])[:4]
        )
        raise ValueError(
            f"the copies have {total:,} bytes, expected at most {most_bytes:,}; "
            f"the largest: {largest}; take a smaller model"
        )
    return total


def replace(part: Path, out: Path) -> None:
    """Put `part` where `out` is; the old folder goes when the new one stands."""
    old = out.with_name(f"{out.name}.old.part")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.replace(out, old)
    os.replace(part, out)
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
