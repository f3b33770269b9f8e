"""How long a model takes to translate, by the runtime that a user has: this project's search in torch, or
CTranslate2 in fp32 or int8.

A table of costs needs times of models whose outputs mean nothing, so every batch is searched for hypotheses
of the same number of tokens, that which the unpruned model writes there. Each model is timed in turns with
the unpruned one, and the ratio is kept, so that a machine that slows down slows both. One thread is timed by
the CPU seconds of this process, which other work on the machine hardly moves; several, which wait for each
other, by the clock.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headgates.bridges.exported import FORMATS, require_packages
from headgates.models.checkpoint import architecture
from headgates.models.description import read_description
from headgates.models.line_translator import LineTranslator
from headgates.models.translator import Translator
from headgates.workbench.measure import alternate, ratio_by_round

RUNTIMES = {"torch": None, "ct2": "float32", "int8": "int8"}  # -> compute type of CTranslate2
BATCHES = 4  # that are timed
ROUNDS = 12  # of a model in turns with the unpruned one; fewer, at least 3, where they take longer than
SECONDS = 4.0
FREE_ROUNDS = 3  # of whole test sets
SHORTEST = 0.1  # seconds of a timed pass at least: batches repeat in a faster one


@dataclass(frozen=True)
class TimedText:
    """Batches of sources, longest first, each with the tokens that the unpruned model writes there."""

    batches: Sequence[tuple[list[list[int]], int]]
    beam: int
    repeats: int = 1

    @property
    def sentences(self) -> int:
        return self.repeats * sum(len(sources) for sources, _ in self.batches)


def default_runtime(model: Any) -> str:
    """int8 of CTranslate2, or torch where that package or its kind of decoder is missing."""
    try:
        check_runtime("int8", model)
    except ValueError:
        return "torch"
    return "int8"


def check_runtime(runtime: str, model: Any) -> None:
    """Raises ValueError where the runtime cannot run such a model, or its package is missing."""
    if RUNTIMES[runtime] is None:
        return
    require_packages(FORMATS["ct2"].packages)
    if (mixer := model.config.decoder_mixer) != "attention":
        raise ValueError(
            f"--runtime {runtime}: CTranslate2 has no decoder with {mixer!r}; take --runtime torch"
        )


@contextmanager
def opened(translator: Translator, model: Any, runtime: str, threads: int) -> Iterator[LineTranslator]:
    """A model with the vocabularies and the search of a translator, run by a runtime. threads: CPU threads, 0
    for those that torch has."""
    own = Translator(model, translator.source_vocab, translator.target_vocab, translator.search)
    compute_type = RUNTIMES[runtime]
    if compute_type is None:
        yield own
        return
    from headgates.bridges.ct2 import write
    from headgates.bridges.ct2_search import CTranslate2Model
    from headgates.bridges.formats import copy_vocabs

    with tempfile.TemporaryDirectory(prefix="headgates-") as place:
        folder = Path(place)
        copy_vocabs(own, folder)
        write(own, folder)
        shape = read_description(architecture(model))
        found = CTranslate2Model(folder, shape, threads or torch.get_num_threads(), compute_type=compute_type)
        found.search = translator.search
        yield found


def timed_text(
    translator: Translator, lines: Sequence[str], *, batch: int, beam: int, runtime: str, threads: int
) -> TimedText:
    """Lines in batches of so many, and what the model writes there. Raises ValueError without a line that is
    not empty."""
    ids = [row for row in translator.source_vocab.encode(list(lines)) if row]
    if not ids:
        raise ValueError("there is no line to time: the validation text is empty")
    chosen = [ids[i * len(ids) // (BATCHES * batch)] for i in range(BATCHES * batch)]
    chosen.sort(key=len, reverse=True)
    batches = []
    with opened(translator, translator.model, runtime, threads) as run:
        for begin in range(0, len(chosen), batch):
            part = chosen[begin : begin + batch]
            best = run.search_batch(part, beam, translator.search.length_penalty)
            written = [1 + len(one[0].ids) for one in best]
            batches.append((part, max(2, round(sum(written) / len(written)))))
        text = TimedText(batches, beam)
        seconds = min(alternate({"": partial(one_pass, run, text)}, rounds=2)[""])
    return TimedText(batches, beam, repeats=max(1, round(SHORTEST / seconds)))


def one_pass(run: LineTranslator, text: TimedText) -> None:
    for _ in range(text.repeats):
        for sources, tokens in text.batches:
            run.search_to(sources, text.beam, tokens)


@dataclass(frozen=True)
class Lines:
    """Lines to translate in batches, longest first; an empty line stays empty. Encoded once, so that what is
    timed is search alone."""

    ids: Sequence[list[int]]
    batch: int
    beam: int

    def search(self, run: LineTranslator) -> list[list[int]]:
        """The best hypothesis of every line."""
        order = sorted((i for i, row in enumerate(self.ids) if row), key=lambda i: -len(self.ids[i]))
        outputs: list[list[int]] = [[] for _ in self.ids]
        for begin in range(0, len(order), self.batch):
            part = order[begin : begin + self.batch]
            found = run.search_batch([self.ids[i] for i in part], self.beam, run.search.length_penalty)
            for i, best in zip(part, found, strict=True):
                outputs[i] = best[0].ids
        return outputs


class RuntimeCost:
    """Milliseconds a sentence of models, by one runtime on one text; a measure of cost_table.py."""

    def __init__(self, translator: Translator, text: TimedText, runtime: str, *, threads: int = 0):
        self.translator, self.text, self.runtime, self.threads = translator, text, runtime, threads
        self.stack = ExitStack()
        self.unpruned = self.stack.enter_context(opened(translator, translator.model, runtime, threads))
        seconds = alternate({"": partial(one_pass, self.unpruned, text)}, rounds=3, clock=self.clock)[""]
        self.rounds = max(3, min(ROUNDS, round(SECONDS / sum(seconds) * 3 / 2)))
        self.whole = 1000 * sum(seconds) / len(seconds) / text.sentences

    @property
    def clock(self) -> Callable[[], float]:
        return time.process_time if (self.threads or torch.get_num_threads()) == 1 else time.perf_counter

    def __enter__(self) -> "RuntimeCost":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def seconds(self, model: Any) -> dict[str, list[float]]:
        """Of the unpruned model and this one, in turns."""
        with opened(self.translator, model, self.runtime, self.threads) as run:
            blocks = {
                "whole": partial(one_pass, self.unpruned, self.text),
                "this": partial(one_pass, run, self.text),
            }
            return alternate(blocks, rounds=self.rounds, clock=self.clock)

    def compared(
        self, model: Any, lines: Sequence[str], batch: int
    ) -> tuple[list[str], dict[str, Any] | None]:
        """A model's translations of some lines, free to end, and how many times as fast as the unpruned
        model's they were made, in turns with it, with the tokens that it writes for each of the unpruned
        model's; None for the unpruned model itself."""
        vocab = self.translator.target_vocab
        text = Lines(self.translator.source_vocab.encode(list(lines)), batch, self.text.beam)
        if model is self.translator.model:
            return vocab.decode(text.search(self.unpruned)), None
        with opened(self.translator, model, self.runtime, self.threads) as run:
            outputs, whole = text.search(run), text.search(self.unpruned)
            blocks = {"whole": partial(text.search, self.unpruned), "this": partial(text.search, run)}
            seconds = alternate(blocks, rounds=FREE_ROUNDS, clock=self.clock)
        written, before = (sum(len(row) + 1 for row in found) for found in (outputs, whole))
        speed = {"measured": ratio_by_round(seconds["whole"], seconds["this"]), "tokens": written / before}
        return vocab.decode(outputs), speed

    def __call__(self, model: Any) -> float:
        """Milliseconds a sentence."""
        if model is self.translator.model:
            return self.whole
        seconds = self.seconds(model)
        return self.whole * sum(seconds["this"]) / sum(seconds["whole"])
