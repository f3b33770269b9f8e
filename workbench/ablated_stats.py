"""Sentence statistics of many ablations of one text, kept in the run folder: for every ablation, those of the
lines that changed.

The file is written after every group of ablations, so that a repeated command continues after the last whole
group. In the .npz file:

    cache_key                   the fingerprint of the outputs, as JSON
    base_bleu, base_chrf        (N, 10), (N, 18): the unpruned model's statistics, an array for each metric of
    the task
    changed_lines               (A,): how many lines each ablation translates differently; -1 where it is not
    finished
    ablation, line              (n,): for every line whose statistics changed, its ablation and its number ...
    bleu, chrf                  (n, 10), (n, 18): ... and its statistics

analysis/metrics.py explains the columns. Letters: A ablations, N lines, n changed lines of all ablations.
"""

import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from headgates.analysis.metrics import Metric
from headgates.analysis.significance import Scored, score, score_changed, scored
from headgates.data.atomic_file import atomic_file
from headgates.data.ranks import gathered, share
from headgates.gates import HeadMap, attach, detach
from headgates.models.ablated_search import Ablated, ablated_translations
from headgates.models.checkpoint import weights_digest
from headgates.models.progress import Report
from headgates.models.translator import Translator
from headgates.workbench.folder import RunFolder, check_cache_key
from headgates.workbench.scores import beam_of
from headgates.workbench.source import Lines, Source, prediction_settings


@dataclass(frozen=True)
class AblationScores:
    """The scores of the unpruned model and of every ablation on one text."""

    base: Scored
    systems: list[Scored]  # one for each ablation
    changed_share: list[float]  # for every ablation, the share of lines that it translates differently


def fingerprint(source: Source, text: Lines, ablations: Sequence[HeadMap]) -> dict[str, Any]:
    """Everything the statistics depend on: weights, text, masks and search settings."""
    masks = json.dumps([closed.to_json() for closed in ablations])
    weights = weights_digest(source.predictor.model)
    lines = digest(str(len(text[0])), *text[0], *text[1])
    return {"weights": weights, "text": lines, "masks": digest(masks), **prediction_settings(source)}


def score_ablations(
    source: Source,
    text: Lines,
    ablations: Sequence[HeadMap],
    *,
    name: str,
    fresh: bool = False,
    report: Report,
) -> AblationScores:
    """Score the outputs under every ablation (each of one site, listed site after site) and keep their
    statistics in `name`.npz.

    Ablations that the file already holds are not repeated. Raises ValueError if the file has another
    fingerprint, unless `fresh`."""
    sources, references = text
    folder = source.folder
    cache_key = fingerprint(source, text, ablations)
    kept = None if fresh else read_statistics(folder, f"{name}.npz", cache_key, source.task.metrics)
    if kept is None:
        base: Scored | None = None
        finished: dict[int, tuple[Scored, int]] = {}
    else:
        base, finished = kept
    for label, numbers in ablation_groups(ablations, beam_of(source)):
        if all(number in finished for number in numbers):
            continue
        report(f"{name}: {label}, {len(numbers)} ablations of {len(sources)} sentences")
        found = ablated_outputs(source, sources, [ablations[number] for number in numbers])
        drafted = score(found.drafts, references, source.task.metrics)
        if base is not None and not np.array_equal(base.main_statistics, drafted.main_statistics):
            raise ValueError(
                f"the unpruned model translates differently from when {folder / name}.npz was begun "
                f"(another machine, or other packages?); "
                "--fresh begins anew"
            )
        base = base or drafted
        for number, changed in zip(numbers, found.changed, strict=True):
            finished[number] = score_changed(base, found.drafts, changed, references), len(changed)
        write_statistics(folder, f"{name}.npz", cache_key, base, finished, len(ablations))
    assert base is not None, "there is at least one ablation"
    scores = [finished[number] for number in range(len(ablations))]
    return AblationScores(
        base, [system for system, _ in scores], [count / len(sources) for _, count in scores]
    )


def ablated_outputs(source: Source, lines: Sequence[str], ablations: Sequence[HeadMap]) -> Ablated:
    """Outputs of the unpruned model and, for every ablation, the lines that change; translation is one job
    for all ablations."""
    if isinstance(source.predictor, Translator):
        predictor, mine = source.predictor, list(share(lines))
        nothing = Ablated([], [{} for _ in ablations], decoded=0)
        found = (
            ablated_translations(predictor, mine, ablations, beam=predictor.search.beam) if mine else nothing
        )
        return joined(gathered(found), len(lines))
    drafts, changed = source.task.outputs(source.predictor, lines), []
    bank = attach(source.predictor.model, gate="mask")
    try:
        for closed in ablations:
            bank.assign(
                {site: torch.ones(site.heads) for site in bank.sites}
                | dict(closed.map(lambda row: (~row).double()))
            )
            outputs = source.task.outputs(source.predictor, lines)
            changed.append({number: line for number, line in enumerate(outputs) if line != drafts[number]})
    finally:
        detach(source.predictor.model)
    return Ablated(drafts, changed, decoded=sum(map(len, changed)))


def joined(parts: Sequence[Ablated], lines: int) -> Ablated:
    """The outputs of all ranks, of which each had its share of the lines, in turns."""
    ranks = len(parts)
    drafts = [parts[line % ranks].drafts[line // ranks] for line in range(lines)]
    changed: list[dict[int, str]] = []
    for of_ranks in zip(*(part.changed for part in parts), strict=True):
        changed.append(
            {line * ranks + rank: text for rank, each in enumerate(of_ranks) for line, text in each.items()}
        )
    return Ablated(drafts, changed, decoded=sum(part.decoded for part in parts))


def ablation_groups(ablations: Sequence[HeadMap], beam: int) -> list[tuple[str, list[int]]]:
    """A label and the indices of each group of ablations that are translated together: those of a kind, or
    those of a site if each needs a beam search of its own. The unpruned model translates the text once for
    each group, which costs little
    beside its ablations."""
    sites = [next(iter(closed)) for closed in ablations]
    labels = [site.kind if beam == 1 else site.name for site in sites]
    return [(label, list(numbers)) for label, numbers in groupby(range(len(labels)), key=labels.__getitem__)]


def write_statistics(
    folder: RunFolder,
    name: str,
    cache_key: dict[str, Any],
    base: Scored,
    finished: dict[int, tuple[Scored, int]],
    count: int,
) -> None:
    """Replace the file in one step, so that a crash leaves the old file whole."""
    lines: dict[int, np.ndarray] = {}
    for number, (system, _) in sorted(finished.items()):
        differs = np.any(
            [(rows != base.statistics[metric]).any(axis=1) for metric, rows in system.statistics.items()],
            axis=0,
        )
        lines[number] = np.flatnonzero(differs)
    shares = np.full(count, -1, dtype=np.int32)
    for number, (_, changed) in finished.items():
        shares[number] = changed
    arrays = {
        "cache_key": np.array(json.dumps(cache_key)),
        "signatures": np.array(json.dumps(base.signatures)),
        **{f"base_{metric}": rows.astype(np.int32) for metric, rows in base.statistics.items()},
        "changed_lines": shares,
        "ablation": np.concatenate(
            [np.full(len(rows), number, dtype=np.int32) for number, rows in lines.items()]
        ),
        "line": np.concatenate([rows.astype(np.int32) for rows in lines.values()]),
        **{
            metric: np.concatenate(
                [finished[number][0].statistics[metric][rows] for number, rows in lines.items()]
            ).astype(np.int32)
            for metric in base.statistics
        },
    }
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for allow_pickle


def read_statistics(
    folder: RunFolder, name: str, cache_key: dict[str, Any], metrics: Sequence[Metric]
) -> tuple[Scored, dict[int, tuple[Scored, int]]] | None:
    """The scores of the unpruned model, and those of the finished ablations with their numbers of changed
    lines; None if there is no file.

    Raises ValueError if the file is broken or has another fingerprint."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        theirs, found = json.loads(str(arrays["cache_key"])), restore(arrays, metrics)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is broken ({error}); --fresh makes it anew") from error
    check_cache_key(path, theirs, cache_key)
    return found


def restore(
    arrays: dict[str, np.ndarray], metrics: Sequence[Metric]
) -> tuple[Scored, dict[int, tuple[Scored, int]]]:
    base = {metric.name: arrays[f"base_{metric.name}"].astype(np.float64) for metric in metrics}
    finished = {}
    for number in np.flatnonzero(arrays["changed_lines"] >= 0).tolist():
        changed_here = arrays["ablation"] == number
        statistics = {name: rows.copy() for name, rows in base.items()}
        for name, rows in statistics.items():
            rows[arrays["line"][changed_here]] = arrays[name][changed_here]
        finished[number] = scored(statistics, metrics), int(arrays["changed_lines"][number])
    return scored(base, metrics), finished


def digest(*lines: str) -> str:
    """12 hexadecimal digits of the SHA-256 of lines."""
    sha = hashlib.sha256()
    for line in lines:
        sha.update(line.encode() + b"\0")
    return sha.hexdigest()[:12]
