"""The loss from closing a head alone, as its score: the dashed lines of Michel et al. 2019, figure 3."""

from collections.abc import Iterable, Sequence
from typing import Any

from headgates.gates import HeadMap
from headgates.models.progress import Report
from headgates.workbench.ablated_stats import score_ablations
from headgates.workbench.ablation import chosen_sites, main_by_head, one_head_masks
from headgates.workbench.source import Lines, Source


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
    """The validation metric (such as BLEU) of the unpruned model minus that without the head; negative
    where the model is better without it. The batches are not read; outputs are kept in `file`-outputs.json of
    the run."""
    del model, batches
    sites = chosen_sites(source.predictor.model, kinds)
    alone = one_head_masks(sites, closed=True)
    scored = score_ablations(source, valid, alone, name=file, fresh=fresh, report=report)
    return main_by_head(sites, scored).map(lambda row: scored.base.main - row)
