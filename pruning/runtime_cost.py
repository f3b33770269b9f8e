"""How long a model takes to translate, by the runtime that a user has: this project's search in torch, in
fp32 or bf16, or CTranslate2 in fp32 or int8.

A table of costs needs times of models whose outputs mean nothing, so every batch is searched for hypotheses
of a number of tokens that is set. In real batches sentences end one by one. A step that n of B sentences
still take costs about a + b n, so the steps of a batch whose sentences write l_1, ..., l_B tokens cost
a max(l) + b sum(l): those of sum(l) / max(l) sentences that all write max(l) tokens. The encoder reads all B.

    cost = encoder and start of B sentences + [sum(l) / max(l) sentences to max(l) tokens - to the start]

What a search that is free to end takes beside that (reading hypotheses, steps until the whole beam has
ended) is measured of the unpruned model and added to the cost of each: of the toy at one sentence at a time
by CTranslate2 a tenth, which no smaller model saves. A model that is not trained after pruning writes outputs
of other lengths, and one sentence that does not end keeps its batch: it is timed on its own outputs
(`compared`).

Each model is timed in turns with the unpruned one, batch by batch, and the median of their ratios is kept:
what else the machine does slows both then. Both are opened several times, as two openings of one model differ
by 3%, and by more on a machine in use, until their mean is known well enough. One thread is timed by the CPU
seconds of this process; several, which wait for each other, by the clock.
"""

import copy
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

from headgates.bridges.exported import FORMATS, require_packages
from headgates.data.ranks import first
from headgates.data.shortlist import Shortlist
from headgates.lab.measure import alternate, ratio_by_round
from headgates.models.checkpoint import architecture
from headgates.models.description import read_description
from headgates.models.line_translator import LineTranslator
from headgates.models.translator import Translator

RUNTIMES = {"torch": None, "bf16": None, "ct2": "float32", "int8": "int8"}  # -> compute type of CTranslate2
UNASKED = (
    "torch",
    "ct2",
    "int8",
)  # the fastest last; few machines are fast in bf16, which is for who names it
BATCHES = 4  # that are timed
OPENINGS, ENOUGH, MOST = 2, 4, 16  # of a model and of the unpruned one: from ENOUGH on until the
KNOWN = 0.005  # standard error of their ratio is no larger a share of it, or
SECONDS = 20.0  # have gone
REST_KNOWN, REST_MOST = 0.003, 30  # the same of what no smaller model saves, as a share of the whole
FREE_OPENINGS = 3  # of models that are free to end
TIMED = 200  # lines that suffice for them
START = 2  # tokens of the shortest search
SHORTEST = 0.05  # seconds of an opening's passes at least: a faster one is made in more rounds
SLOW = 2.0  # seconds of a batch from which on one batch is timed
TimedPair = tuple[list[list[list[int]]], dict[str, Any]]  # the outputs of two models, and what was measured


@dataclass(frozen=True)
class TimedBatch:
    """sources: longest first. written: the tokens that the unpruned model writes for each."""

    sources: list[list[int]]
    written: list[int]

    @property
    def longest(self) -> int:
        return max(START, *self.written)

    @property
    def decoded(self) -> list[list[int]]:
        """The sources of so many sentences as all of the longest take as many steps as these: a sample of all
        lengths."""
        count, total = max(1, round(sum(self.written) / self.longest)), len(self.sources)
        return [self.sources[i * total // count] for i in range(count)]


@dataclass(frozen=True)
class TimedText:
    """What is timed, in batches: in so many rounds of each opening."""

    batches: Sequence[TimedBatch]
    beam: int
    rounds: int = 1

    @property
    def sentences(self) -> int:
        return sum(len(batch.sources) for batch in self.batches)

    @property
    def searches(self) -> dict[str, list[tuple[list[list[int]], int]]]:
        """What adds to the cost and what is taken off it: sources and the tokens that they are searched
        to."""
        added = [(batch.sources, START) for batch in self.batches]
        added += [(batch.decoded, batch.longest) for batch in self.batches]
        return {"added": added, "taken": [(batch.decoded, START) for batch in self.batches]}


def runtimes_of(model: Any) -> list[str]:
    """The runtimes that can run a model, the fastest last; torch alone where CTranslate2 is missing, or has
    no such decoder. UNASKED alone."""
    found = []
    for runtime in UNASKED:
        with suppress(ValueError):
            check_runtime(runtime, model)
            found.append(runtime)
    return found


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
def exported_once(
    translator: Translator, runtime: str, threads: int
) -> Iterator[Callable[[], LineTranslator]]:
    """What opens, at each call, what translates by a runtime as a translator does by its own search; it is
    exported once. threads: CPU threads, 0 for those that torch has."""
    compute_type = RUNTIMES[runtime]
    if compute_type is None:
        found = translator.in_bf16() if runtime == "bf16" else translator
        yield lambda: found
        return
    from headgates.bridges.ct2 import write
    from headgates.bridges.ct2_search import CTranslate2Model
    from headgates.bridges.formats import copy_vocabs

    with tempfile.TemporaryDirectory(prefix="headgates-") as place:
        folder = Path(place)
        copy_vocabs(translator, folder)
        write(translator, folder)
        shape = read_description(architecture(translator.model))

        def opened() -> LineTranslator:
            found = CTranslate2Model(
                folder, shape, threads or torch.get_num_threads(), compute_type=compute_type
            )
            found.search = translator.search
            return found

        yield opened


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
    parts = [chosen[begin : begin + batch] for begin in range(0, len(chosen), batch)]
    clock = clock_of(threads)
    with exported_once(translator, runtime, threads) as opened:
        run = opened()
        search = replace(run.search, beam=beam)
        begin, middle = clock(), len(parts) // 2
        run.search_batch(parts[middle], search)
        if clock() - begin > SLOW:
            parts = [parts[middle]]
        begin = clock()
        written = [[1 + len(best[0].ids) for best in run.search_batch(part, search)] for part in parts]
        seconds = clock() - begin
    batches = [TimedBatch(*pair) for pair in zip(parts, written, strict=True)]
    return TimedText(batches, beam, max(1, round(SHORTEST / seconds)))


@dataclass(frozen=True)
class TimedLines:
    """Lines to translate in batches, longest first; an empty line stays empty. Encoded once, so that what is
    timed is search alone. once: by one opening of each model, where others tell how fast they are."""

    ids: Sequence[list[int]]
    batch: int
    beam: int
    once: bool = False

    @property
    def parts(self) -> list[list[int]]:
        """The numbers of the lines of each batch."""
        order = sorted((i for i, row in enumerate(self.ids) if row), key=lambda i: -len(self.ids[i]))
        return [order[begin : begin + self.batch] for begin in range(0, len(order), self.batch)]

    def search(self, run: LineTranslator, part: Sequence[int], outputs: list[list[int]]) -> None:
        """Put the best hypothesis of each of these lines among the outputs."""
        found = run.search_batch([self.ids[i] for i in part], replace(run.search, beam=self.beam))
        for i, best in zip(part, found, strict=True):
            outputs[i] = best[0].ids


def clock_of(threads: int) -> Callable[[], float]:
    """What times so many threads, 0 for those that torch has."""
    return time.process_time if (threads or torch.get_num_threads()) == 1 else time.perf_counter


def seconds_of(
    blocks: Mapping[tuple[str, int], Callable[[], object]], rounds: int, threads: int
) -> dict[str, list[float]]:
    """Name -> the seconds of all of its blocks in each round, made in turns in this order."""
    found: dict[str, list[float]] = {}
    for (name, _), each in alternate(blocks, rounds=rounds, warm_up=0, clock=clock_of(threads)).items():
        found[name] = [sum(pair) for pair in zip(found.get(name, [0.0] * rounds), each, strict=True)]
    return found


def standard_error(shares: Sequence[float]) -> float:
    """Of the mean, of which there are at least two."""
    return stdev(shares) / math.sqrt(len(shares))


def until_known(
    measured: Callable[[int], float], known: Callable[[Sequence[float]], float], most: int
) -> list[float]:
    """What was measured, by its number, until the standard error of the mean is as small as wanted."""
    begin, found = time.perf_counter(), list[float]()
    while len(found) < OPENINGS or (
        len(found) < most
        and time.perf_counter() - begin < SECONDS
        and (len(found) < ENOUGH or standard_error(found) > known(found))
    ):
        found.append(measured(len(found)))
    return found


def how_searched(batch: int, beam: int, threads: int) -> str:
    """How lines are searched, as it stands beside every speed. threads: 0 for those that torch has."""
    threads = threads or torch.get_num_threads()
    return f"batch {batch}, beam {beam}, {threads} thread{'s' * (threads > 1)}"


def on_other_lines(over: Sequence[float], under: Sequence[float]) -> tuple[float, float] | None:
    """95% interval of sum(over) / sum(under) on as many batches of other lines; None of one batch.

    Batches are in the order of their lengths, in the other text too, so what differs by length is no luck of
    the lines. Only neighbours are compared (von Neumann 1941). With r = sum(a) / sum(b) and d = a - r b of n
    batches, d varies by s^2 = sum (d_i+1 - d_i)^2 / 2 (n - 1), which has about 2 (n - 1)^2 / (3 n - 4)
    degrees of freedom, and r -+ t sqrt(2 n) s / sum(b) counts the luck of both texts."""
    from scipy import special  # type: ignore[import-untyped]

    if (n := len(over)) < 2:
        return None
    ratio = sum(over) / sum(under)
    left = [a - ratio * b for a, b in zip(over, under, strict=True)]
    variance = sum((after - before) ** 2 for before, after in pairwise(left)) / (2 * (n - 1))
    t = float(special.stdtrit(2 * (n - 1) ** 2 / (3 * n - 4), 0.975))
    margin = t * math.sqrt(2 * n * variance) / sum(under)
    return max(0.0, ratio - margin), ratio + margin


def compared(this: Translator, whole: Translator, runtime: str, threads: int, text: TimedLines) -> TimedPair:
    """Two models' translations of some lines, free to end, how many times as fast the first model makes
    them, in turns with the other, and may make others, the milliseconds a line of both, and the tokens that
    it writes for each of the other's. Of several ranks the first alone times them."""
    return first(lambda: timed_pair(this, whole, runtime, threads, text))


def timed_pair(
    this: Translator, whole: Translator, runtime: str, threads: int, text: TimedLines
) -> TimedPair:
    outputs: dict[str, list[list[int]]] = {name: [[] for _ in text.ids] for name in ("this", "whole")}
    rounds: dict[str, list[list[float]]] = {name: [] for name in outputs}  # the seconds of each batch
    with (
        exported_once(this, runtime, threads) as open_this,
        exported_once(whole, runtime, threads) as open_whole,
    ):
        for _ in range(1 if text.once else FREE_OPENINGS):
            runs = {"this": open_this(), "whole": open_whole()}
            blocks = {
                (name, number): partial(text.search, run, part, outputs[name])
                for number, part in enumerate(text.parts)
                for name, run in runs.items()
            }
            if text.once:  # a median of several openings leaves a cold first batch out, one opening cannot
                for name in runs:
                    blocks[name, 0]()
            found = alternate(blocks, rounds=1, warm_up=0, clock=clock_of(threads))
            for name, own in rounds.items():
                own.append([found[name, number][0] for number in range(len(text.parts))])
    seconds = {name: [*map(sum, own)] for name, own in rounds.items()}
    by_batch = {name: [*map(median, zip(*own, strict=True))] for name, own in rounds.items()}
    written, before = (sum(len(row) + 1 for row in found) for found in outputs.values())
    return [*outputs.values()], {
        "measured": ratio_by_round(seconds["whole"], seconds["this"]),
        "other_lines": on_other_lines(by_batch["whole"], by_batch["this"]),
        "milliseconds": [1000 * median(each) / len(text.ids) for each in seconds.values()],
        "tokens": written / before,
    }


class RuntimeCost:
    """Milliseconds a sentence of models, by one runtime on one text; a measure of planning/cost_table.py. Of
    several ranks the first alone times them: by clocks of their own they would go on with other plans."""

    def __init__(self, translator: Translator, text: TimedText, runtime: str, *, threads: int = 0):
        self.text, self.runtime, self.threads = text, runtime, threads
        # a copy: heads of the model are closed in place while smaller ones are compared with it
        self.copied = translator.with_model(copy.deepcopy(translator.model))
        self.stack = ExitStack()  # until this goes, which may be with the process
        self.rest, self.whole, self.seconds_each = first(self.time_whole)

    def time_whole(self) -> tuple[float, float, float]:
        """Of the unpruned model: the share of its time that no smaller model saves, milliseconds a sentence,
        and about the seconds, by the clock, that each further model will take to time."""
        self.open_whole = self.stack.enter_context(exported_once(self.copied, self.runtime, self.threads))
        begin, whole = time.perf_counter(), list[float]()

        def saved_by_none(number: int) -> float:
            found = self.seconds({"whole": self.open_whole()}, free=True)
            whole.extend(found["whole"])
            return 1 - ratio_by_round(found["whole"], found["free"])["median"]

        shares = until_known(saved_by_none, lambda shares: REST_KNOWN, REST_MOST)
        # of a model that is 3 times as fast, an error of a hundredth here is one of 2 to 3 in its speed
        rest = max(0.0, median(shares))
        milliseconds = 1000 * median(whole) / (1 - rest) / self.text.sentences
        # two models are timed then, by two passes each in place of three
        return rest, milliseconds, ENOUGH * (4 / 3) * (time.perf_counter() - begin) / len(shares)

    def seconds(self, runs: Mapping[str, LineTranslator], *, free: bool = False) -> dict[str, list[float]]:
        """What models take for the text in each round, in turns, batch by batch; a start of each before them
        is not timed. free: also what `whole` takes where its search is free to end."""
        blocks = dict[tuple[str, int], Callable[[], object]]()
        for part, searches in self.text.searches.items():
            for number, (sources, tokens) in enumerate(searches):
                for name, run in runs.items():
                    blocks[f"{name} {part}", number] = partial(run.search_to, sources, self.text.beam, tokens)
        for number, batch in enumerate(self.text.batches if free else ()):
            search = replace(runs["whole"].search, beam=self.text.beam)
            blocks["free", number] = partial(runs["whole"].search_batch, batch.sources, search)
        for run in runs.values():
            run.search_to(self.text.batches[0].sources, self.text.beam, START)
        found = seconds_of(blocks, self.text.rounds, self.threads)
        times = {
            name: [a - t for a, t in zip(found[f"{name} added"], found[f"{name} taken"], strict=True)]
            for name in runs
        }
        return times | {"free": found["free"]} if free else times

    def timed_list(self, shortlist: Shortlist) -> Shortlist:
        """The list with as many pieces more, always computed, as the sentences that are decoded have
        candidates less than their whole batches, on average: the rows stay a batch's to its last step."""
        listed, missing, seen = self.copied.with_shortlist(shortlist), 0, set[int]()
        for batch in self.text.batches:
            whole, decoded = listed.candidates(batch.sources), listed.candidates(batch.decoded)
            assert whole is not None  # as there is a list
            assert decoded is not None
            missing += len(whole) - len(decoded)
            seen.update(whole.tolist())
        others = (i for i in range(listed.model.target_vocab) if i not in seen)
        more = [*islice(others, round(missing / len(self.text.batches)))]
        return shortlist.with_more(listed.model.source_specials.end, more)

    def __call__(self, model: Any, shortlist: Shortlist | None = None) -> float:
        """Milliseconds a sentence. shortlist: in place of the base's own."""
        share = first(lambda: self.share_of(model, shortlist))
        return self.whole * (self.rest + (1 - self.rest) * share)

    def share_of(self, model: Any, shortlist: Shortlist | None) -> float:
        """What a model takes of what the unpruned one takes, both without the rest."""
        smaller = self.copied.with_model(model)
        smaller = smaller if shortlist is None else smaller.with_shortlist(self.timed_list(shortlist))
        with exported_once(smaller, self.runtime, self.threads) as open_this:
            opened = {"whole": self.open_whole, "this": open_this}

            def ratio(number: int) -> float:
                order = ("whole", "this") if number % 2 else ("this", "whole")  # neither always first
                seconds = self.seconds({name: opened[name]() for name in order})
                return ratio_by_round(seconds["this"], seconds["whole"])["median"]

            return median(until_known(ratio, lambda shares: KNOWN * fmean(shares), MOST))
