"""Learning from a teacher's translations, the base's own or a better run's: pairs whose target it wrote.
Kim & Rush 2016 (arXiv:1606.07947), section 3.2.

The teacher translates the sources of a fixed sample of the training pairs once, by the run's search, and its
folder keeps the file. All stages that start from the base train on these pairs, whatever was done to its
heads; scores, calibration and validation read the text as it is.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any, TypedDict

from headgates.configs.cli import config_hash
from headgates.configs.settings import Settings
from headgates.data.corpus import TranslationData
from headgates.data.ranks import first
from headgates.data.text import SAMPLE_SEED, ParallelText
from headgates.lab.experiment_text import ExperimentText
from headgates.models.progress import reported, say
from headgates.records.folder import RunFolder
from headgates.records.source import drop_batch

DISTILLED_AT_ONCE = 2000  # lines that are translated between two looks at the clock


def teacher_of(settings: Settings, base: RunFolder) -> RunFolder:
    """The run that stages on a base learn from, the base unless --distill.teacher names one. Raises
    ValueError where that is no finished run."""
    if not (named := settings.distill.teacher):
        return base
    teacher = RunFolder.open(named)
    if not first(teacher.finished):
        raise ValueError(f"--distill.teacher {named}: this run is not finished; finish it first, by --resume")
    return teacher


def distilled_data(text: ExperimentText, folder: RunFolder, teacher: RunFolder) -> TranslationData:
    """Batches of the text of a configuration: with the teacher's translations
    for the share of the targets that `--distill.sequences` says, which are made where they are not there yet.
    folder: a run, for its
    vocabulary."""
    key = f"{teacher.path.resolve()} {distilled_file(text)}"
    if key not in text.distilled:
        corpus = replace(
            text.corpus,
            train=with_targets(training_text(text), distilled_pairs(text), distilled_lines(text, teacher)),
        )
        text.distilled[key] = text.task.data(folder.path, corpus, text.settings)
    return text.distilled[key]


class Distilled(TypedDict):
    """The file of the teacher's translations."""

    lines: list[str]
    seconds: float


def distilled_lines(text: ExperimentText, teacher: RunFolder) -> list[str]:
    """The teacher's translations of the pairs of `distilled_pairs`, in their order, from its folder, or made
    and kept there."""
    numbers = distilled_pairs(text)

    def make() -> Distilled:
        train = training_text(text)
        sources = [train.sources[number] for number in numbers]
        longest_first = sorted(range(len(sources)), key=lambda place: (-len(sources[place]), place))
        say(f"{teacher.path}: it translates {len(sources):,} training sentences, to be learned from")
        predictor, lines, begin = text.load(teacher), [""] * len(sources), time.perf_counter()
        chunks = (
            longest_first[start : start + DISTILLED_AT_ONCE]
            for start in range(0, len(sources), DISTILLED_AT_ONCE)
        )
        for places in reported(chunks, len(sources), len, what="translated", report=say):
            outputs = text.task.outputs(predictor, [sources[place] for place in places])
            for place, line in zip(places, outputs, strict=True):
                lines[place] = line
        return {"lines": lines, "seconds": time.perf_counter() - begin}

    kept = teacher.cached(distilled_file(text), Distilled, distilled_key(text), make, fresh=text.config.fresh)
    return kept["lines"]


def distilled_seconds(text: ExperimentText, teacher: RunFolder) -> float:
    """The seconds that `distilled_lines` took, then or now; 0 where the configuration asks for none."""
    if not text.config.distill.sequences:
        return 0.0
    content = teacher.stored(distilled_file(text), Distilled, distilled_key(text))
    return content["seconds"] if content else 0.0


def training_text(text: ExperimentText) -> ParallelText:
    """The pairs that may be trained on."""
    return text.corpus.train.first(text.config.text.train_sentences)


def distilled_pairs(text: ExperimentText) -> Sequence[int]:
    """The numbers of the pairs whose target the teacher writes: all, or a fixed sample of at least one."""
    pairs, share = len(training_text(text)), text.config.distill.sequences
    return (
        range(pairs)
        if share == 1
        else sorted(Random(SAMPLE_SEED).sample(range(pairs), max(1, round(share * pairs))))
    )


def distilled_key(text: ExperimentText) -> dict[str, Any]:
    """All that the lines depend on beside the teacher."""
    return {
        "text_digest": text.corpus.digest(),
        "train_sentences": text.config.text.train_sentences,
        "share": text.config.distill.sequences,
        **drop_batch(asdict(text.config.search)),
    }


def distilled_file(text: ExperimentText) -> str:
    """The name of the file in the teacher's folder."""
    return f"distilled/{config_hash(distilled_key(text))}.json"


def with_targets(text: ParallelText, numbers: Sequence[int], lines: Sequence[str]) -> ParallelText:
    """The pairs with other targets at these numbers; where the line is empty, as when a search found no
    words, the written one stays."""
    targets = list(text.targets)
    for number, line in zip(numbers, lines, strict=True):
        targets[number] = line or targets[number]
    return ParallelText(text.sources, targets, text.skipped)
