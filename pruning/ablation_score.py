"""What is lost when a head alone is closed, as a score: the dashed lines of Michel et al. 2019, figure 3."""

from collections.abc import Iterable, Sequence
from typing import Any

from gates import HeadMap
from models.progress import Report
from pruning.ablated_stats import measure
from pruning.ablation import by_site, chosen_sites, only
from runfolder.source import Lines, Source


def ablation_score(
    model: Any,
    batches: Iterable[Any] = (),
    *,
    source: Source,
    valid: Lines,
    kinds: Sequence[str] | None,
    file: str,
    fresh: bool,
    report: Report,
) -> HeadMap:
    """The validation score (BLEU, for translation) of the whole model minus that without the head; below 0 where the model is better
    without it. The batches are not read; statistics are kept in `file`.npz of the run."""
    del model, batches
    sites = chosen_sites(source.predictor.model, kinds)
    alone = [only(site, head, closed=True) for site in sites for head in range(site.heads)]
    found = measure(source, valid, alone, name=file, fresh=fresh, report=report)
    return HeadMap(by_site(sites, [found.base.main - system.main for system in found.systems]))
