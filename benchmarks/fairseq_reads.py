"""Does fairseq itself read what export.py --to fairseq writes, and does it say the same?

Each run is exported, and its checkpoint loaded by fairseq's own checkpoint_utils. All that follows is
fairseq's code too: dictionaries, BPE or SentencePiece, padded batches, SequenceScorer for the
log-probabilities of the references' pieces, SequenceGenerator for greedy and beam-5 translations. Both sides
search as fairseq-generate does, with --min-len 0. The aims are those of every export: log-probabilities
within 1e-4 nats, and the same translations but where the scores of two are a tie; what misses them is an
error that names the sentence.

It runs where `import fairseq` works; docs/sources-fairseq.md says what fairseq 0.12.2 needs for that today.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Answer, Benchmark, Flag, count_flag
from headgates.models.line_translator import LineTranslator, Translation

FLAGS: list[Flag] = [
    (
        "runs",
        {
            "nargs": "+",
            "metavar": "RUN",
            "help": "finished runs of translation with text of their own, each exported and read",
        },
    ),
    ("--system", {"help": "system of the runs, with all its heads; default their own"}),
    (
        "--patched",
        {"default": "", "help": "what was changed in fairseq so that it runs, in words, for the record"},
    ),
    ("--data-dir", {"help": "folder with local copies of named corpora"}),
    count_flag("--sentences", 100, "first test sentences"),
]


def fairseq_checkpoints() -> Any:
    """fairseq's module that loads checkpoints. Raises ValueError where fairseq cannot be imported."""
    try:
        from fairseq import checkpoint_utils  # type: ignore[import-not-found]
    except Exception as error:  # on a Python too new for it, its dataclasses raise ValueError
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"fairseq cannot be imported here ({reason}); docs/sources-fairseq.md says what it needs"
        ) from error
    return checkpoint_utils


class InFairseq(LineTranslator):
    """The exported folder of a translator as fairseq itself has it."""

    def __init__(self, translator: LineTranslator, folder: Path, src: str, tgt: str) -> None:
        self.search, self.source_vocab, self.target_vocab = (
            translator.search,
            translator.source_vocab,
            translator.target_vocab,
        )
        from torch.serialization import safe_globals

        logging.getLogger("fairseq").setLevel(logging.WARNING)
        with safe_globals(
            [argparse.Namespace]
        ):  # all that fairseq must admit to read the file where torch.load reads weights alone
            checkpoint = [str(folder / "checkpoint.pt")]
            self.models, _, self.task = fairseq_checkpoints().load_model_ensemble_and_task(
                checkpoint, arg_overrides={"data": str(folder)}
            )
        for model in self.models:
            model.eval()
        self.sides = [
            (self.task.source_dictionary, cutting(folder, src, "src")),
            (self.task.target_dictionary, cutting(folder, tgt, "tgt")),
        ]

    def translate_n_best(
        self, lines: Sequence[str], *, beam: int | None = None, length_penalty: float | None = None
    ) -> list[list[Translation]]:
        settings = argparse.Namespace(
            beam=beam, min_len=0
        )  # else fairseq-generate's: 200 tokens at most, length penalty 1
        dictionary, bpe = self.sides[1]
        return [
            [
                Translation(
                    bpe.decode(dictionary.string(each["tokens"])),
                    float(each["positional_scores"].sum()),
                    float(each["score"]),
                    len(each["tokens"]),
                )
                for each in best
            ]
            for best in self.hypotheses(settings, lines)
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        return [
            best[0]["positional_scores"].tolist()
            for best in self.hypotheses(argparse.Namespace(score_reference=True), sources, targets)
        ]

    def hypotheses(self, settings: argparse.Namespace, *texts: Sequence[str]) -> list[list[dict[str, Any]]]:
        """What fairseq's generator of these settings says of each line of one padded batch; texts: sources,
        and maybe references."""
        from fairseq.data import LanguagePairDataset  # type: ignore[import-not-found]

        parts: list[Any] = []
        for (dictionary, bpe), lines in zip(self.sides, texts, strict=False):
            ids = [dictionary.encode_line(bpe.encode(line), add_if_not_exist=False).long() for line in lines]
            parts += [ids, [len(row) for row in ids], dictionary]
        data = LanguagePairDataset(*parts)
        batch = data.collater([data[i] for i in range(len(data))])
        found = self.task.inference_step(self.task.build_generator(self.models, settings), self.models, batch)
        return [
            best
            for _, best in sorted(zip(batch["id"].tolist(), found, strict=True), key=lambda pair: pair[0])
        ]


class Uncut:
    """Text that is cut already, and stays so."""

    def encode(self, line: str) -> str:
        return line

    decode = encode


def cutting(folder: Path, language: str, side: str) -> Any:
    """fairseq's own BPE or SentencePiece, with the file that the folder has for a side."""
    from fairseq.data.encoders import build_bpe  # type: ignore[import-not-found]

    if (codes := folder / f"bpe.codes.{language}").is_file():
        return build_bpe(argparse.Namespace(bpe="subword_nmt", bpe_codes=str(codes)))
    for name in ("vocab.model", f"vocab.{side}.model"):
        if (model := folder / name).is_file():
            return build_bpe(argparse.Namespace(bpe="sentencepiece", sentencepiece_model=str(model)))
    return Uncut()


def measure(run: str, options: argparse.Namespace) -> dict[str, Any]:
    """The run, its architecture, and how far fairseq is from it. Raises ValueError as `export` does, and
    where they are too far apart."""
    from headgates.bridges.fairseq import SEARCH
    from headgates.bridges.formats import export
    from headgates.bridges.parity import parity
    from headgates.configs.source import SourceOptions
    from headgates.models.translator import Translator
    from headgates.workbench.source import open_source

    source = open_source(
        run, options.system, finished=True, device="cpu", options=SourceOptions(data_dir=options.data_dir)
    )
    own, config = source.translator, source.config
    translator = Translator(own.model, own.source_vocab, own.target_vocab, SEARCH)
    text = [pair for pair in zip(*source.lines("test", options.sentences), strict=True) if pair[0].strip()]
    lines, references = [pair[0] for pair in text], [pair[1] for pair in text]
    languages = {side: str(config.get(side) or side) for side in ("src", "tgt")}
    facts = {"run": source.folder.path.resolve().name, "system": source.system}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "exported"
        about = export(
            translator, "fairseq", folder, lines=lines, references=references, facts={**facts, **languages}
        )
        found = parity(translator, InFairseq(translator, folder, **languages), lines, references)
    return {**facts, "text": source.corpus.name, "architecture": about["architecture"], **found}


def answer(options: argparse.Namespace) -> Answer:
    fairseq_checkpoints()  # before anything is exported
    measured = [measure(run, options) for run in options.runs]
    header = ["run", "sentences", "pieces", "largest difference, nats", "greedy, same", "beam 5, same"]
    rows = [
        [
            each["run"],
            each["sentences"],
            each["pieces"],
            f"{each['log_prob_max_difference']:.1e}",
            *(each["sentences"] - each[search]["differing"] for search in ("greedy", "beam_5")),
        ]
        for each in measured
    ]
    return Answer({"patched": options.patched, "measured": measured}, header, rows, seed=0)


main = Benchmark(
    "fairseq_reads",
    "fairseq on the checkpoints that export.py --to fairseq writes: log-probabilities and translations",
    __doc__,
    FLAGS,
    answer,
    peers=["fairseq", "hydra-core", "omegaconf"],
).main

if __name__ == "__main__":
    sys.exit(main())
