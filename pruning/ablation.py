"""The outputs of a model without one head, or with one head of a layer alone, and the score `ablation`.
Michel et al. 2019, section 3.

Outputs are written after every group of ablations, so that a repeated command continues after the last whole
group:

    NAME-outputs.json
        cache_key    what the outputs depend on
        drafts       the outputs of the model as it is
        changed      for every ablation [number of the line, output] of the lines that change; null where
                     it is not finished
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypedDict

import torch

from headgates.analysis.batches import sites_of
from headgates.analysis.significance import Scored, score, score_changed
from headgates.configs.cli import config_hash
from headgates.data.ranks import first, gathered, share
from headgates.data.text import digest_lines
from headgates.gates import HeadMap, HeadSite, Subnet
from headgates.models.ablated_search import Ablated, ablated_translations
from headgates.models.progress import say
from headgates.models.translator import Translator
from headgates.pruning.scores import beam_of
from headgates.records.source import Lines, Source, prediction_settings


class OutputsRecord(TypedDict):
    """NAME-outputs.json."""

    drafts: list[str]
    changed: list[list[tuple[int, str]] | None]


@dataclass(frozen=True)
class AblationScores:
    """The scores of the model as it is and of every ablation on one text."""

    base: Scored
    systems: list[Scored]  # one for each ablation
    changed_share: list[float]  # for every ablation, the share of lines that it translates differently


def ablation_key(source: Source, text: Lines, ablations: Sequence[HeadMap]) -> dict[str, Any]:
    """Everything the outputs depend on: weights, text, masks and search settings."""
    masks = config_hash({"closed": [closed.to_json() for closed in ablations]})
    key = {"weights": source.weights, "text": digest_lines(*text), "masks": masks}
    return key | prediction_settings(source)


def score_ablations(
    source: Source, text: Lines, ablations: Sequence[HeadMap], *, name: str, fresh: bool
) -> AblationScores:
    """Score the outputs under every ablation (each of one site, listed site after site) and keep them in
    `name`-outputs.json.

    Ablations that the file already holds are not repeated. Raises ValueError if the file has another
    fingerprint, unless `fresh`."""
    sources, references = text
    folder, file, cache_key = source.folder, f"{name}-outputs.json", ablation_key(source, text, ablations)
    kept = first(lambda: None if fresh else folder.stored(file, OutputsRecord, cache_key))
    drafts: list[str] | None = kept["drafts"] if kept else None
    changed: list[list[tuple[int, str]] | None] = kept["changed"] if kept else [None] * len(ablations)
    # those of a kind are translated together, or of a site where each needs a beam search of its own; the
    # unpruned model translates the text once for each group, which costs little beside its ablations
    sites = [next(iter(closed)) for closed in ablations]
    labels = [site.kind if beam_of(source) == 1 else site.name for site in sites]
    for label, group in groupby(range(len(labels)), key=labels.__getitem__):
        numbers = list(group)
        if all(changed[number] is not None for number in numbers):
            continue
        say(f"{name}: {label}, {len(numbers)} ablations of {len(sources)} sentences")
        found = ablated_outputs(source, sources, [ablations[number] for number in numbers])
        if drafts not in (None, found.drafts):
            raise ValueError(
                f"the unpruned model translates differently from when {folder / file} was begun (another "
                "machine, or other packages?); --fresh begins anew"
            )
        drafts = found.drafts
        for number, lines in zip(numbers, found.changed, strict=True):
            changed[number] = list(lines.items())
        folder.write_json(file, {"cache_key": cache_key, "drafts": drafts, "changed": changed})
    assert drafts is not None, "there is at least one ablation"
    lines_of = [dict(lines or ()) for lines in changed]
    base = score(drafts, references, source.task.metrics, sources)
    systems = [score_changed(base, drafts, lines, references, sources) for lines in lines_of]
    return AblationScores(base, systems, [len(lines) / len(sources) for lines in lines_of])


def ablated_outputs(source: Source, lines: Sequence[str], ablations: Sequence[HeadMap]) -> Ablated:
    """Outputs of the model as it is and, for every ablation, the lines that change; translation is one job
    for all ablations."""
    if isinstance(source.predictor, Translator):
        translator, mine = source.predictor, list(share(lines))
        found = Ablated([], [{} for _ in ablations], decoded=0)
        if mine:
            found = ablated_translations(translator, mine, ablations, beam=translator.search.beam)
        return joined(gathered(found), len(lines))
    drafts, changed = source.task.outputs(source.predictor, lines), []
    for closed in ablations:
        with Subnet.of(source.model).without(closed).closed(source.model):
            outputs = source.task.outputs(source.predictor, lines)
        changed.append({number: line for number, line in enumerate(outputs) if line != drafts[number]})
    return Ablated(drafts, changed, decoded=sum(map(len, changed)))


def joined(parts: Sequence[Ablated], lines: int) -> Ablated:
    """The outputs of all ranks, of which each had its share of the lines, in turns."""
    ranks = len(parts)
    drafts = [parts[line % ranks].drafts[line // ranks] for line in range(lines)]
    changed = [
        {line * ranks + rank: text for rank, each in enumerate(of_ranks) for line, text in each.items()}
        for of_ranks in zip(*(part.changed for part in parts), strict=True)
    ]
    return Ablated(drafts, changed, decoded=sum(part.decoded for part in parts))


def one_head_masks(sites: Sequence[HeadSite], *, closed: bool) -> list[HeadMap]:
    """For every head, site after site, the mask that closes it alone, or (closed=False) all others of its
    site."""
    return [
        HeadMap({site: (torch.arange(site.heads) == head) == closed})
        for site in sites
        for head in range(site.heads)
    ]


def main_by_head(sites: Sequence[HeadSite], found: AblationScores) -> HeadMap:
    """The deciding metric of every head's ablation."""
    values = torch.tensor([system.main for system in found.systems], dtype=torch.float64)
    return HeadMap(dict(zip(sites, values.split([site.heads for site in sites]), strict=True)))


def ablation_score(
    model: Any,
    _: Iterable[Any],
    *,
    source: Source,
    valid: Lines,
    kinds: Sequence[str] | None,
    file: str,
    fresh: bool,
) -> HeadMap:
    """The validation metric (such as BLEU) of the unpruned model minus that without the head: the dashed
    lines of Michel et al. 2019, figure 3; negative where the model is better without it. The batches are not
    read; outputs are kept in `file`-outputs.json of the run."""
    sites = list(sites_of(model, kinds))
    scored = score_ablations(source, valid, one_head_masks(sites, closed=True), name=file, fresh=fresh)
    return main_by_head(sites, scored).map(lambda row: scored.base.main - row)
