"""How fast is beam search?   Sentences per second against the same search without kept keys and values, and
against CTranslate2 in fp32.

The aims: at least 2 times the uncached loop, at least half of CTranslate2. The uncached loop is our own beam
search over a model that runs its whole decoder again at every step, so it too drops finished sentences and
sorts by length. Each has its best batch size of those tried. The test set is cut into parts; all run in turns
on each, with the same number of threads.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from benchmarks.split_test_set import FLAGS, open_base, set_best_batch, time_parts
from headgates.report.speed.measure import interval_text, median_and_range, median_text, ratio_by_round

if TYPE_CHECKING:
    from torch import Tensor

    from headgates.models.line_translator import LineTranslator
    from headgates.models.transformer import Transformer
    from headgates.models.translator import Translator

AIMS = {"uncached": 2.0, "ctranslate2": 0.5}
BATCH_TOKENS = (2_000, 4_000, 8_000, 16_000, 32_000)  # padded source pieces times beam


@dataclass
class Prefixes:
    """The state of the uncached loop: the memory of each remaining sentence and the tokens of each row so
    far."""

    memory: "Tensor"  # (B, S, D)
    bias: "Tensor"  # (B, 1, 1, S)
    ids: "Tensor"  # (N, length)
    sentences: "Tensor"  # (B,)

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    def select(self, rows: "Tensor", sentences: "Tensor | None" = None) -> None:
        self.ids = self.ids[rows]
        if sentences is not None:
            self.memory, self.bias, self.sentences = (
                self.memory[sentences],
                self.bias[sentences],
                self.sentences[sentences],
            )


class Uncached:
    """A Transformer whose every step runs the decoder over all tokens so far, cross-attention's keys and
    values included."""

    def __init__(self, model: "Transformer"):
        self.model, self.config, self.target_vocab = model, model.config, model.target_vocab
        self.source_specials, self.target_specials = model.source_specials, model.target_specials

    def start(self, source: "Tensor", beam: int = 1) -> Prefixes:
        import torch

        memory, bias = self.model.encode(source)
        return Prefixes(memory, bias, source.new_empty(len(source) * beam, 0), torch.arange(len(source)))

    def step(self, ids: "Tensor", state: Prefixes) -> "Tensor":
        import torch

        state.ids = torch.cat([state.ids, ids[:, None]], dim=1)
        beams = len(state.ids) // len(state.sentences)
        memory, bias = state.memory.repeat_interleave(beams, 0), state.bias.repeat_interleave(beams, 0)
        return self.model.output(self.model.decode(memory, bias, state.ids)[:, -1])


def uncached_translations(translator: "Translator", lines: Sequence[str], beam: int) -> list[str]:
    """The lines translated with a beam by the uncached loop, in the translator's own batches."""
    import torch

    from headgates.data.batch import pad
    from headgates.models.search import beam_search

    search, ids = translator.search, translator.encode(lines)
    options: dict[str, Any] = {
        name: getattr(search, name) for name in ("length_penalty", "max_ratio", "max_extra")
    }
    translations = [""] * len(lines)
    with torch.inference_mode():
        for chosen in translator.search_batches([len(sentence) for sentence in ids], beam):
            source = pad([ids[i] for i in chosen], translator.model.source_specials, end=True)
            n_best = beam_search(Uncached(translator.model), source, beam=beam, **options)
            best = translator.target_vocab.decode([hypotheses[0].ids for hypotheses in n_best])
            for i, text in zip(chosen, best, strict=True):
                translations[i] = text
    return translations


def measure(
    dense: "Translator", peer: "LineTranslator", parts: Sequence[Sequence[str]], beam: int
) -> dict[str, Any]:
    """Seconds of the three on every part, their ratios, and how many lines they translate as we do."""
    from headgates.models.translator import Translator

    slow = Translator(dense.model, dense.source_vocab, dense.target_vocab, dense.search)
    systems: dict[str, tuple[Any, Callable[[Sequence[str]], list[str]]]] = {
        "ours": (dense, lambda lines: dense.translate(lines, beam=beam)),
        "uncached": (slow, lambda lines: uncached_translations(slow, lines, beam)),
        "ctranslate2": (peer, lambda lines: peer.translate(lines, beam=beam)),
    }
    batches = {
        name: set_best_batch(system, partial(translate, parts[0]), BATCH_TOKENS)
        for name, (system, translate) in systems.items()
    }
    for _, translate in systems.values():  # warm-up
        translate(parts[0])
    seconds, outputs = time_parts({name: translate for name, (_, translate) in systems.items()}, parts)
    lines_alike = {
        name: sum(a == b for output in outputs for a, b in zip(output["ours"], output[name], strict=True))
        for name in AIMS
    }
    sizes = [len(lines) for lines in parts]
    speeds = {
        name: median_and_range([n / s for n, s in zip(sizes, times, strict=True)])
        for name, times in seconds.items()
    }
    return {
        "sentences": sum(sizes),
        "beam": beam,
        "batch_tokens": {
            name: min(tried, key=lambda tokens: tried[tokens]) for name, tried in batches.items()
        },
        "sentences_per_second": speeds,
        "over": {name: ratio_by_round(seconds[name], seconds["ours"]) for name in AIMS},
        "lines_alike": lines_alike,
    }


def answer(options: argparse.Namespace) -> Answer:
    from headgates.bridges.formats import export, open_exported

    dense, parts = open_base(options)
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "ct2"
        lines, references = (side[:50] for side in dense.test)
        export(dense.translator, "ct2", exported, lines=lines, references=references, facts=dense.facts)
        peer = open_exported(exported, threads=options.threads, compute_type="float32")
        measured = measure(dense.translator, peer, parts, options.beam)
    rows = []
    for name, speed in measured["sentences_per_second"].items():
        over = measured["over"].get(name)
        alike = measured["lines_alike"].get(name, "")
        rows.append(
            [
                name,
                median_text(speed, 0),
                measured["batch_tokens"][name],
                interval_text(over) if over else "",
                alike,
            ]
        )
    header = [
        "system",
        "sentences/s",
        "batch tokens",
        "ours over it",
        f"lines alike of {measured['sentences']}",
    ]
    return Answer({"aims": AIMS, "run": dense.folder.path.name, **measured}, header, rows)


main = Benchmark(
    "beam_speed",
    "beam search, fp32: sentences per second over those of an uncached loop (at least 2) and of CTranslate2 (at least 0.5)",
    __doc__,
    [*FLAGS, count_flag("--beam", 5, "beam width")],
    answer,
    peers=["ctranslate2"],
).main

if __name__ == "__main__":
    sys.exit(main())
