"""Learning from the base's own translations: training pairs whose target it wrote.   Kim & Rush 2016
(arXiv:1606.07947), section 3.2.

The base translates the sources of a fixed sample of the training pairs once, by the run's search, and its
folder keeps the file. All stages that start from the base train on these pairs, whatever was done to its
heads; scores, calibration and validation read the text as it is.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any, TypedDict

from headgates.configs.cli import config_hash
from headgates.data.corpus import TranslationData
from headgates.data.text import SAMPLE_SEED, ParallelText
from headgates.lab.experiment_text import ExperimentText
from headgates.models.progress import reported, say
from headgates.records.folder import RunFolder
from headgates.records.source import drop_batch

DISTILLED_AT_ONCE = 2000  # lines that are translated between two looks at the clock


def distilled_data(text: ExperimentText, folder: RunFolder, base: RunFolder) -> TranslationData:
    """Batches of the text of a configuration for stages that start from `base`: with the base's translations
    for the share of the targets that `--distill.sequences` says, which are made where they are not there yet.
    folder: a run, for its
    vocabulary."""
    key = f"{base.path.resolve()} {distilled_file(text)}"
    if key not in text.distilled:
        corpus = replace(
            text.corpus,
            train=with_targets(training_text(text), distilled_pairs(text), distilled_lines(text, base)),
        )
        text.distilled[key] = text.task.data(folder.path, corpus, text.settings)
    return text.distilled[key]


class Distilled(TypedDict):
    """The file of the base's translations."""

    lines: list[str]
    seconds: float


def distilled_lines(text: ExperimentText, base: RunFolder) -> list[str]:
    """The base's translations of the pairs of `distilled_pairs`, in their order, from its folder, or made and
    kept there."""
    numbers = distilled_pairs(text)

    def make() -> Distilled:
        sources = [training_text(text).sources[number] for number in numbers]
        longest_first = sorted(range(len(sources)), key=lambda place: (-len(sources[place]), place))
        say(f"{base.path}: the base translates {len(sources):,} training sentences, to be learned from")
        predictor, lines, begin = text.load(base), [""] * len(sources), time.perf_counter()
        chunks = (
            longest_first[start : start + DISTILLED_AT_ONCE]
            for start in range(0, len(sources), DISTILLED_AT_ONCE)
        )
        for places in reported(chunks, len(sources), len, what="translated", report=say):
            outputs = text.task.outputs(predictor, [sources[place] for place in places])
            for place, line in zip(places, outputs, strict=True):
                lines[place] = line
        return {"lines": lines, "seconds": time.perf_counter() - begin}

    kept = base.cached(distilled_file(text), Distilled, distilled_key(text), make, fresh=text.config.fresh)
    return kept["lines"]


def distilled_seconds(text: ExperimentText, base: RunFolder) -> float:
    """The seconds that `distilled_lines` took, then or now; 0 where the configuration asks for none."""
    if not text.config.distill.sequences:
        return 0.0
    content = base.stored(distilled_file(text), Distilled, distilled_key(text))
    return content["seconds"] if content else 0.0


def training_text(text: ExperimentText) -> ParallelText:
    """The pairs that may be trained on."""
    return text.corpus.train.first(text.config.text.train_sentences)


def distilled_pairs(text: ExperimentText) -> Sequence[int]:
    """The numbers of the pairs whose target the base writes: all, or a fixed sample of at least one."""
    pairs, share = len(training_text(text)), text.config.distill.sequences
    return (
        range(pairs)
        if share == 1
        else sorted(Random(SAMPLE_SEED).sample(range(pairs), max(1, round(share * pairs))))
    )


def distilled_key(text: ExperimentText) -> dict[str, Any]:
    """All that the lines depend on beside the base."""
    return {
        "text_digest": text.corpus.digest(),
        "train_sentences": text.config.text.train_sentences,
        "share": text.config.distill.sequences,
        **drop_batch(asdict(text.config.search)),
    }


def distilled_file(text: ExperimentText) -> str:
    """The name of the file in the base's folder."""
    return f"distilled/{config_hash(distilled_key(text))}.json"


def with_targets(text: ParallelText, numbers: Sequence[int], lines: Sequence[str]) -> ParallelText:
    """The pairs with other targets at these numbers; where the line is empty, as when a search found no
    words, the written one stays."""
    targets = list(text.targets)
    for number, line in zip(numbers, lines, strict=True):
        targets[number] = line or targets[number]
    return ParallelText(text.sources, targets, text.skipped)
