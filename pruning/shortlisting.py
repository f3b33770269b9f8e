"""A run whose output layer computes few rows: for each source piece the target pieces that it is translated
into, and those that come most often. Nothing else of the model changes.

Which these are is counted on the run's training pairs, or on the model's own translations of their sources
(`calibration_targets`), by analysis/word_links.py. The model's cross-attention says it worse: on the toy
language the ten pieces that IBM's Model 1 links most often hold all of 99.0% of the base's translations,
those of the largest mean weight all of 79.7%. Marian's file of a shortlist may take their place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np

from headgates.analysis.word_links import expected_links
from headgates.configs.recipe import Listed, Recipe
from headgates.data.shortlist import Shortlist, read_marian_list, strongest
from headgates.lab.lab import Run
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.closing import Calibration
from headgates.records.row import BASE, PRUNED
from headgates.records.source import Source

AT_ONCE_COUNTED = (1, 32)  # lines at once whose candidates are counted
MOST_PAIRS = 50_000  # of sentences that are counted, a sample of more


class ShortlistRecord(TypedDict):
    """pieces: of the target side. candidates: lines at once -> how many of them a batch of test lines has on
    average. listed: the share of the pieces of the base's translations of the test set that are among the
    candidates of their line. lines, translated_otherwise: of the test set."""

    pieces: int
    candidates: dict[str, float]
    listed: float
    lines: int
    translated_otherwise: int


def shortlisted(run: Run, recipe: Recipe) -> ShortlistRecord:
    """Write the shortlist and the model into the run's folder, add its row, and return what its result.json
    says of it. Raises ValueError at a model that does not translate, and DataError at a file that is no
    shortlist for it."""
    assert isinstance(recipe.budget, Listed)
    source = run.text.source(run.base)
    whole, by = source.translator, recipe.budget.by
    found = LinkedPieces(run, source, recipe.seed).shortlist(by)
    short = whole.with_shortlist(found)
    weights = run.folder / "best.pt"
    run.task.save_model(weights, short)
    say("translating the test set with the shortened output layer")
    run.evaluation.add(PRUNED, weights, short, None, recipe=recipe)
    before, after = (run.folder.outputs(system) for system in (BASE, PRUNED))
    return {
        "pieces": whole.model.target_vocab,
        "candidates": {str(size): mean_candidates(short, run.text.test[0], size) for size in AT_ONCE_COUNTED},
        "listed": listed_share(short, run.text.test[0], before),
        "lines": len(after),
        "translated_otherwise": sum(one != two for one, two in zip(before, after, strict=True)),
    }


@dataclass(eq=False)
class LinkedPieces:
    """How often the pieces of a base's training text are linked, counted when that is first asked for."""

    run: Run
    source: Source
    seed: int

    @cached_property
    def counted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids (K, 2) of a source and a target piece, how often (K,) they are linked, and the target
        pieces (V,) from the most frequent on."""
        calibration = Calibration(self.source, MOST_PAIRS, self.run.settings.calibration_targets, self.seed)
        text, translator = calibration.targeted, self.source.translator
        say(f"linking the pieces of {len(text):,} sentence pairs")
        targets = translator.target_vocab.encode(text.targets)
        links, counts = expected_links([*zip(translator.encode(text.sources), targets, strict=True)])
        frequency = np.bincount(list(chain(*targets)), minlength=translator.model.target_vocab)
        return links.numpy(), counts.numpy(), frequency.argsort(kind="stable")[::-1]

    def shortlist(self, by: str) -> Shortlist:
        """Of a number, so many target pieces that each source piece is linked with most often, and as many of
        the most frequent ones, which belong to the end that every source has; else Marian's file of this
        name. Raises DataError at a file that is no shortlist for the base."""
        if not by.isdigit():
            translator = self.source.translator
            vocabs = translator.source_vocab, translator.target_vocab
            return read_marian_list(Path(by), *vocabs, translator.model.source_vocab)
        (links, counts, frequent), best, model = self.counted, int(by), self.source.model
        lists, end = strongest(links, counts, model.source_vocab, best), model.source_specials.end
        lists[end] = np.concatenate([lists[end], frequent[:best]])
        return Shortlist.of(lists, best=best)


def mean_candidates(translator: Translator, lines: Sequence[str], size: int) -> float:
    """The mean number of candidates of batches of so many lines, in the order of their lengths."""
    ids = sorted(filter(None, translator.encode(lines)), key=len, reverse=True)
    return mean_rows(translator, (ids[at : at + size] for at in range(0, len(ids), size)))


def mean_rows(translator: Translator, batches: Iterable[Sequence[Sequence[int]]]) -> float:
    """The mean number of rows of the output layer that batches of sources compute."""
    found = map(translator.candidates, batches)
    return float(np.mean([translator.model.target_vocab if ids is None else len(ids) for ids in found]))


def listed_share(translator: Translator, lines: Sequence[str], outputs: Sequence[str]) -> float:
    """The share of the pieces of outputs that are among the candidates of their line."""
    inside = total = 0
    for source, target in zip(
        translator.encode(lines), translator.target_vocab.encode(list(outputs)), strict=True
    ):
        own = translator.candidates([source])
        assert own is not None
        inside += int(np.isin(target, own).sum())
        total += len(target)
    return inside / max(1, total)
