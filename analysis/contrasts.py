"""Which heads a contrast needs: what closing a head, or all but a few, does to a number that a model has for
each of some pairs, such as log p(right output) - log p(wrong output).

    a head    m(all heads) - m(without it), exact; above 0 where the head works for the contrast
    a set     m without its heads (are they necessary?) and with them alone (are they enough?), beside random
              sets of as many heads at the same sites

Heads are named on other pairs than these sets are measured on, or their luck would count as skill. Letters: N
pairs, C closings, R resamples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import frozen, on_device, sites_of
from headgates.analysis.patching import Value
from headgates.analysis.significance import holm, interval, p_value, resample_counts
from headgates.gates import HeadMap, attach, detach
from headgates.gates.headmap import Head


@torch.no_grad()
def values_without(
    model: nn.Module, batches: Iterable[Any], closings: Sequence[HeadMap], value: Value
) -> Tensor:
    """The value of every pair under each closing, (C, N), float64.

    closings: bool, True for heads whose output is 0; sites that one does not name stay open. value (model,
    batch): (N,), a number for each pair of the batch. Raises ValueError for a model that has gates."""
    device, rows = next(model.parameters()).device, []
    with frozen(model):
        masks = attach(model, gate="mask")
        try:
            for batch in batches:
                batch, of_batch = on_device(batch, device), []
                for closed in closings:
                    masks.assign({site: (~row).float() for site, row in closed.items()})
                    of_batch.append(value(model, batch).double().cpu())
                    masks.assign({site: torch.ones(site.heads) for site in closed})
                rows.append(torch.stack(of_batch))
        finally:
            detach(model)
    return torch.cat(rows, 1)


def all_heads(model: nn.Module) -> list[Head]:
    """Every head of the model's attentions, site after site."""
    return [(site, head) for site in sites_of(model, None) for head in range(site.heads)]


def mean_changes(changes: Tensor, resamples: int) -> list[dict[str, float]]:
    """For each row of (tests, N): its mean over the pairs, the middle 95% of the bootstrap's means over
    resampled pairs, the two-sided p that the mean is 0, and p by Holm for all rows."""
    rows, found = changes.double().numpy(), []
    counts = resample_counts(rows.shape[1], resamples)
    for row in rows:
        means = counts @ row / len(row)
        low, high = interval(means)
        p = p_value(means, 0 * means, float(row.mean()))
        found.append({"mean": float(row.mean()), "low": low, "high": high, "p_value": p})
    adjusted = holm([each["p_value"] for each in found])
    return [{**each, "p_value_holm": p} for each, p in zip(found, adjusted, strict=True)]


# ---------------------------------------------------------------- necessity and sufficiency


@dataclass(frozen=True)
class SetEffect:
    """What some heads do to the mean value, and where that stands among random sets of as many heads at the
    same sites.

    value: the mean with them closed, or with them alone open; random: that of the random sets, ascending.
    percentile: the share of random sets that do less, ties by half; p_value: that of a random set doing as
    much, one-sided."""

    value: float
    random: list[float]
    percentile: float
    p_value: float


def set_effects(
    model: nn.Module, batches: Iterable[Any], heads: HeadMap, value: Value, *, sets: int = 100, seed: int = 1
) -> tuple[SetEffect, SetEffect]:
    """Necessity and sufficiency of these heads (True): closing them only, and closing all others.

    Raises ValueError where they are none or all, or for sites that the model lacks."""
    own = {site: heads.get(site, torch.zeros(site.heads, dtype=torch.bool)) for site in sites_of(model, None)}
    if unknown := [site.name for site in heads if site not in own]:
        raise ValueError(f"the model has no {unknown[0]} as these heads name it; take heads of this model")
    named = HeadMap(own)
    if not 0 < named.count() < named.heads_total:
        raise ValueError(
            f"expected some heads of {named.heads_total}, got {named.count()}; a set is compared with random "
            "ones"
        )
    chosen = [named, *random_sets(named, sets, seed)]
    means = values_without(model, batches, [*chosen, *map(HeadMap.__invert__, chosen)], value).mean(1)
    necessity, sufficiency = means.split(len(chosen))
    return ranked_effect(necessity, least=True), ranked_effect(sufficiency, least=False)


def random_sets(heads: HeadMap, count: int, seed: int) -> list[HeadMap]:
    """Sets of as many heads at each site, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    return [heads.map(lambda row: row[torch.randperm(len(row), generator=generator)]) for _ in range(count)]


def ranked_effect(means: Tensor, *, least: bool) -> SetEffect:
    """The first of the means (1 + R,) among the others. least: it does more where it is lower."""
    named, *random = (means if not least else -means).tolist()
    below, ties = sum(each < named for each in random), sum(each == named for each in random)
    return SetEffect(
        float(means[0]),
        sorted(means[1:].tolist()),
        (below + ties / 2) / len(random),
        (len(random) - below + 1) / (len(random) + 1),
    )
