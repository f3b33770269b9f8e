"""What benchmarks/fuzz.py tries of other people's models, and of the files that ours are exported to; and the
list of all kinds of cases.

The whole files are made once, of the small finished run in examples/."""

import functools
import json
import random
import shutil
import struct
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzz_cases import (
    BASE,
    EXAMPLES,
    Action,
    Kind,
    analysed_run,
    checkpoint,
    corpus,
    examples,
    marker,
    opened_run,
    script,
    settings,
    some_file,
    translated_text,
)
from benchmarks.fuzz_damage import TEXTS, changed_value, damage, hostile_pickle, object_array

FOREIGN = ("hf", "fairseq", "marian")


@functools.cache
def exported(kind: str, folder: Path) -> Path:
    """The example's base in a format, whole: what the cases of this format damage a copy of."""
    from headgates.bridges.formats import export
    from headgates.workbench.source import open_source

    translator = open_source(EXAMPLES / BASE, device="cpu").translator
    if kind == "marian":
        return marian_folder(translator, folder / kind)
    facts = {"src": "en", "tgt": "de"}
    export(
        translator,
        kind,
        folder / kind,
        lines=["The dog sleeps."],
        references=["Der Hund schläft."],
        facts=facts,
    )
    return folder / kind


def marian_folder(like: Any, folder: Path) -> Path:
    """An untrained model of Marian's kind, of the size of another, with its pieces: `export` writes only
    those that have Marian's."""
    from headgates.bridges.marian import MODEL, arrays, settings
    from headgates.bridges.marian import write_npz
    from headgates.models.transformer import Transformer

    config = replace(
        like.model.config, positions="tensor2tensor", norm="post", final_norm="none", output_bias=True
    )
    model = Transformer(config, like.model.source_vocab + 1, like.model.target_vocab + 1)
    folder.mkdir(parents=True)
    write_npz(folder / MODEL, arrays(model), settings(model))
    shutil.copyfile(like.source_vocab.path, folder / "vocab.spm")
    named = {"relative-paths": True, "models": [MODEL], "vocabs": ["vocab.spm", "vocab.spm"], "beam-size": 2}
    (folder / "decoder.yml").write_text(yaml.safe_dump(named), encoding="utf-8")
    return folder


def foreign(whole: Path, rng: random.Random, inside: Path) -> tuple[Action, str]:
    """A model of another library, read as a SOURCE: it becomes a run in the working folder, and
    translates."""
    read_whole(whole)
    kind = rng.choice(FOREIGN)
    folder = Path(shutil.copytree(exported(kind, whole), inside / "model"))
    path = some_file(rng, folder)
    turn = rng.random()
    if turn < 0.15:
        name = {"hf": "pytorch_model.bin", "fairseq": "model.pt", "marian": "model.npz"}[kind]
        for weights in [*folder.glob("*.safetensors"), *folder.glob("*.pt"), *folder.glob("*.npz")]:
            weights.unlink()
        way = object_array if kind == "marian" else hostile_pickle
        (folder / name).write_bytes(way(rng, marker(inside)))
        done = f"{name} {way.__name__}"
    elif kind == "hf" and turn < 0.3:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        extra = [
            {"auto_map": {"AutoModel": "evil.Evil"}},
            {"quantization_config": {}},
            {"architectures": ["../x"]},
            {"model_type": "x"},
        ]
        (folder / "config.json").write_text(json.dumps(content | rng.choice(extra)), encoding="utf-8")
        (folder / "evil.py").write_text(f"open({str(marker(inside))!r}, 'w')\n", encoding="utf-8")
        done = "config.json that asks for code"
    else:
        done = f"{path.name} {damage(rng, path, marker(inside))}"
    place: Path | str = folder
    if kind == "fairseq":
        place = next(iter(sorted(folder.glob("*.pt"))), folder / "model.pt")
    (inside / "in.txt").write_text("The dog sleeps.\n", encoding="utf-8")
    words = [
        f"{kind}:{place}",
        "--input",
        inside / "in.txt",
        "--output",
        inside / "out.txt",
        "--quiet",
        "--device",
        "cpu",
    ]
    return script("translate", *words), f"{kind} {done}"


def binary_marian(whole: Path, rng: random.Random, inside: Path) -> tuple[Action, str]:
    """Marian's own binary format, of a few arrays."""
    settings = yaml.safe_dump({"type": "transformer", "dim-emb": 8}).encode() + b"\0"
    arrays = [("special:model.yml", 0x101, [len(settings)], settings), ("Wemb", 0x404, [5, 8], bytes(160))]
    names = [name.encode() + b"\0" for name, *_ in arrays]
    content = struct.pack("<2Q", 1, len(arrays))
    for name, (_, kind, shape, data) in zip(names, arrays, strict=True):
        content += struct.pack("<4Q", len(name), kind, len(shape), len(data))
    content += b"".join(names) + b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in arrays)
    content += struct.pack("<Q", 0) + b"".join(data for *_, data in arrays)
    path = inside / "model.bin"
    path.write_bytes(content)
    done = damage(rng, path, marker(inside))

    def read() -> None:
        from headgates.bridges.marian import load

        load(path)

    return read, f"model.bin {done}"


def vocabulary(whole: Path, rng: random.Random, inside: Path) -> tuple[Action, str]:
    """vocab.json and the files of a tokenizer beside it, as a foreign model's run folder holds them."""
    from headgates.data.vocab import load_vocabs
    from headgates.workbench.folder import find_runs

    read_whole(whole)
    runs = [run.path for run in find_runs(whole / "runs")]
    run = rng.choice(runs)
    for path in run.glob("vocab*"):
        shutil.copyfile(path, inside / path.name)
    path = some_file(rng, inside)
    done = damage(rng, path, marker(inside))
    if path.name == "vocab.json" and rng.random() < 0.3:
        about = json.loads((run / "vocab.json").read_text(encoding="utf-8"))
        path.unlink(missing_ok=True) if not path.is_dir() else path.rmdir()
        path.write_text(
            json.dumps(changed_value(rng, about, ["../../outside/kept", "/dev/zero", "vocab.json"])),
            encoding="utf-8",
        )

    def read() -> None:
        for vocab in load_vocabs(inside):
            vocab.decode(vocab.encode(["The dog sleeps.", *TEXTS]))

    return read, f"{run.name} {path.name} {done}"


def pruned_or_exported(whole: Path, rng: random.Random, inside: Path) -> tuple[Action, str]:
    """A folder of `save_pruned`, or of `export.py --to torch`, often without the digests that would tell a
    damaged file at once."""
    kind = rng.choice(["hf", "torch"])
    folder = Path(shutil.copytree(exported(kind, whole), inside / "model"))
    if rng.random() < 0.7:
        about = json.loads((folder / "export.json").read_text(encoding="utf-8"))
        (folder / "export.json").write_text(
            json.dumps({key: value for key, value in about.items() if key != "sha256"}), encoding="utf-8"
        )
    path = some_file(rng, folder)
    done = damage(rng, path, marker(inside))

    def read() -> None:
        from headgates.bridges.formats import open_exported
        from headgates.gates import load_pruned

        if kind == "hf":
            load_pruned(folder)
        else:
            open_exported(folder).translate(["The dog sleeps."])

    return read, f"{kind} {path.name} {done}"


@functools.cache
def read_whole(whole: Path) -> None:
    """Read every foreign model whole: cases are forks of this process, and find what that imported; the runs
    are in whole/runs."""
    (whole / "in.txt").write_text("The dog sleeps.\n", encoding="utf-8")
    for kind in FOREIGN:
        path = exported(kind, whole)
        place = next(iter(path.glob("*.pt"))) if kind == "fairseq" else path
        words = [
            f"{kind}:{place}",
            "--input",
            whole / "in.txt",
            "--output",
            whole / "out.txt",
            "--quiet",
            "--device",
            "cpu",
        ]
        with chdir(whole):  # where it becomes a run
            if script("translate", *words)():
                raise ValueError(f"the whole model of {kind} cannot be read")


def kinds_of(whole: Path) -> dict[str, Kind]:
    """The kinds of cases. whole: a folder for the files that cases copy, which are made for the first case
    that needs them."""
    of_whole = {
        "foreign model": (foreign, 16, 60.0),
        "Marian's .bin": (binary_marian, 6, 30.0),
        "vocabulary": (vocabulary, 8, 30.0),
    }
    of_whole["pruned or exported folder"] = (pruned_or_exported, 6, 60.0)
    return {
        "corpus": Kind(corpus, 14),
        "text to translate": Kind(translated_text, 6),
        "trees and labels": Kind(examples, 10),
        "settings": Kind(settings, 20),
        "run folder": Kind(opened_run, 30),
        "run folder, analyze.py": Kind(analysed_run, 2, 120.0),
        "checkpoint": Kind(checkpoint, 24),
        **{
            name: Kind(functools.partial(make, whole), share, seconds)
            for name, (make, share, seconds) in of_whole.items()
        },
    }
