"""How fast is beam search?   Sentences per second against the same search without kept keys and values, and against CTranslate2 in fp32.

The aims: at least 2 times the uncached loop, at least half of CTranslate2. The uncached loop is our own beam search over a model that runs
its whole decoder again at every step, so it too drops finished sentences and sorts by length. Each has its best batch size of those tried.
The test set is cut into parts; all run in turns on each, with the same number of threads.
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
from benchmarks.split_test_set import FLAGS, open_base, set_best_batch
from speed.measure import alternate, interval_text, median_and_range, median_text, ratio_by_round

if TYPE_CHECKING:
    from torch import Tensor

    from models.line_translator import LineTranslator
    from models.transformer import Transformer
    from models.translator import Translator

AIMS = {"uncached": 2.0, "ctranslate2": 0.5}
BATCH_TOKENS = (2_000, 4_000, 8_000, 16_000, 32_000)  # padded source pieces times beam


@dataclass
class Prefixes:
    """The state of the uncached loop: the memory of each remaining sentence and the tokens of each row so far."""

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
            self.memory, self.bias, self.sentences = self.memory[sentences], self.bias[sentences], self.sentences[sentences]


class Uncached:
    """A Transformer whose every step runs the decoder over all tokens so far, cross-attention's keys and values included."""

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


def uncached(translator: "Translator") -> Callable[[Sequence[str], int], list[str]]:
    """Translation of lines with a beam by the uncached loop, in the translator's own batches."""
    import torch

    from data.batch import pad
    from models.search import beam_search

    @torch.inference_mode()
    def translate(lines: Sequence[str], beam: int) -> list[str]:
        search, ids = translator.search, translator.encode(lines)
        translations = [""] * len(lines)
        for chosen in translator.search_batches([len(sentence) for sentence in ids], beam):
            source = pad([ids[i] for i in chosen], translator.model.source_specials, end=True)
            options: dict[str, Any] = {name: getattr(search, name) for name in ("length_penalty", "max_ratio", "max_extra")}
            best = [each[0].ids for each in beam_search(Uncached(translator.model), source, beam=beam, **options)]
            for i, text in zip(chosen, translator.target_vocab.decode(best), strict=True):
                translations[i] = text
        return translations

    return translate


def keep_output(outputs: dict[str, list[str]], name: str, translate: Callable[[Sequence[str]], list[str]], lines: Sequence[str]) -> None:
    outputs[name] = translate(lines)


def measure(dense: "Translator", peer: "LineTranslator", parts: Sequence[Sequence[str]], beam: int) -> dict[str, Any]:
    """Seconds of the three on every part, their ratios, and how many lines they translate as we do."""
    from models.translator import Translator

    slow = Translator(dense.model, dense.source_vocab, dense.target_vocab, dense.search)
    uncached_translate = uncached(slow)
    systems: dict[str, tuple[Any, Callable[[Sequence[str]], list[str]]]] = {
        "ours": (dense, lambda lines: dense.translate(lines, beam=beam)),
        "uncached": (slow, lambda lines: uncached_translate(lines, beam)),
        "ctranslate2": (peer, lambda lines: peer.translate(lines, beam=beam)),
    }
    batches = {name: set_best_batch(system, partial(translate, parts[0]), BATCH_TOKENS) for name, (system, translate) in systems.items()}
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    lines_alike = dict.fromkeys(AIMS, 0)
    for number, lines in enumerate(parts):
        outputs: dict[str, list[str]] = {}
        blocks = {name: partial(keep_output, outputs, name, translate, lines) for name, (_, translate) in systems.items()}
        order = list(systems) if number % 2 == 0 else list(systems)[::-1]
        for name, (once,) in alternate({name: blocks[name] for name in order}, rounds=1, warmup=1 if number == 0 else 0).items():
            seconds[name].append(once)
        for name in AIMS:
            lines_alike[name] += sum(a == b for a, b in zip(outputs["ours"], outputs[name], strict=True))
        print(f"part {number + 1} of {len(parts)}: " + ", ".join(f"{name} {seconds[name][-1]:.1f} s" for name in systems), flush=True)
    sizes = [len(lines) for lines in parts]
    speeds = {name: median_and_range([n / s for n, s in zip(sizes, times, strict=True)]) for name, times in seconds.items()}
    return {
        "sentences": sum(sizes),
        "beam": beam,
        "batch_tokens": {name: min(tried, key=lambda tokens: tried[tokens]) for name, tried in batches.items()},
        "sentences_per_second": speeds,
        "over": {name: ratio_by_round(seconds[name], seconds["ours"]) for name in AIMS},
        "lines_alike": lines_alike,
    }


def answer(options: argparse.Namespace) -> Answer:
    from models.formats import export, open_exported

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
        rows.append([name, median_text(speed, 0), measured["batch_tokens"][name], interval_text(over) if over else "", alike])
    header = ["system", "sentences/s", "batch tokens", "ours over it", f"lines alike of {measured['sentences']}"]
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
