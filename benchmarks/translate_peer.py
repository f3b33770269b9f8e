"""How fast does translate.py translate with CTranslate2, beside a program that calls CTranslate2 itself?

Both read the folder that `export.py RUN --to ct2` wrote and translate the same lines: sentencepiece, a
search in batches of as many pieces, sorted by length, and sentencepiece again. What translate.py does more is
to hold back what is no translation, to rank and to stream. Without the start of either program.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece

from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.bridges.exported import open_exported
from headgates.lab.measure import alternate, ratio_by_round, spread_text
from headgates.models.line_translator import LineTranslator
from headgates.models.stream import as_text, split_lines, translated, windows
from headgates.pruning.runtime_cost import clock_of

QUESTION = "how fast is translate.py beside a program that calls CTranslate2 itself?"
OUR_PROGRAM, PEER_PROGRAM = "translate.py", "CTranslate2"
READ_AHEAD = 1000  # lines read ahead, and pieces of a line: the defaults of translate.py


class Bare:
    """What CTranslate2's documentation shows."""

    def __init__(self, folder: str, compute_type: str, threads: int, search: Any):
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/vocab.model")
        self.translator = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads)
        self.search = search

    def translate(self, lines: Sequence[str], beam: int) -> list[str]:
        found = self.translator.translate_batch(
            self.tokenizer.encode(lines, out_type=str),
            beam_size=beam,
            length_penalty=self.search.length_penalty,
            max_batch_size=self.search.batch_tokens // beam,
            batch_type="tokens",
        )
        return self.tokenizer.decode([result.hypotheses[0] for result in found])


def ours(translator: LineTranslator, text: str, beam: int) -> list[str]:
    """What translate.py writes."""
    lines = split_lines([Path(text).read_bytes()], name=text)
    texts = windows(lines, most=READ_AHEAD)
    found = translated(translator, texts, longest=READ_AHEAD, beam=beam)
    return [as_text(best, 0, n_best=0, scores=False).rstrip("\n") for each in found for best in each]


def answer(options: argparse.Namespace) -> Answer:
    lines, measured, rows = Path(options.text).read_text("utf-8").splitlines(), [], []
    for compute_type in ("float32", "int8"):
        translator = open_exported(options.folder, threads=options.threads, compute_type=compute_type)
        bare = Bare(options.folder, compute_type, options.threads, translator.search)
        for beam in options.beams:
            both = {
                OUR_PROGRAM: partial(ours, translator, options.text, beam),
                PEER_PROGRAM: partial(bare.translate, lines, beam),
            }
            outputs = [translate() for translate in both.values()]
            same = sum(a == b for a, b in zip(*outputs, strict=True))
            seconds = alternate(both, rounds=options.rounds, clock=clock_of(options.threads))
            ratio = ratio_by_round(seconds[PEER_PROGRAM], seconds[OUR_PROGRAM])
            setting = {"compute_type": compute_type, "beam": beam}
            measured.append(
                {**setting, "same": same, "lines": len(lines), "seconds": seconds, "ratio": ratio}
            )
            rows.append([compute_type, beam, spread_text(ratio), f"{same} of {len(lines)}"])
    header = ["precision", "beam", f"times as fast as {PEER_PROGRAM}", "same lines"]
    return Answer({"measurements": measured}, header, rows)


FLAGS: list[Flag] = [
    ("folder", {"help": "what `export.py RUN --to ct2` wrote"}),
    ("text", {"help": "lines to translate"}),
    ("--beams", {"type": int, "nargs": "+", "default": [1, 5], "help": "beam widths (default: 1 5)"}),
    count_flag("--rounds", 5, "times that each translates the text"),
]

if __name__ == "__main__":
    sys.exit(run("translate_peer", QUESTION, __doc__, FLAGS, answer, peers=("ctranslate2", "sentencepiece")))
