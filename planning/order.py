"""In which order the heads and neurons of a site close: by a score of this library, by a function of the
user's own, or by numbers that are there already.

Heads that share a key head can only go together, so each has the mean of its group.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headgates.analysis.batches import Draw, Loss, known_tokens, sampled_targets
from headgates.analysis.scores.exact_effects import exact_effects
from headgates.analysis.scores.fisher import fisher
from headgates.analysis.scores.fluctuation import fluctuation
from headgates.analysis.scores.importance import importance, raw_importance
from headgates.analysis.scores.obs import obs
from headgates.analysis.scores.random_score import random_score
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.gates import FFN_KINDS, HeadMap, HeadSite, find_sites
from headgates.gates.names import check_name
from headgates.gates.rules import rule_of
from headgates.gates.site_rule import group_of

BY_PLAN = "plan"
# (model, batches) -> HeadMap, which is given kinds=, loss= and queries= where it takes them
ScoreFunction = Callable[..., HeadMap]
ORDERS: dict[str, ScoreFunction] = {
    "obs": obs,
    "importance": importance,
    "raw-importance": raw_importance,
    "loss": exact_effects,
    "fisher": fisher,
    "fluctuation": fluctuation,
    "weight-norm": weight_norm,
    "random": partial(random_score, seed=0),
}


def order_of(
    model: nn.Module,
    batches: Sequence[Any],
    choose: str | ScoreFunction | HeadMap,
    *,
    kinds: Sequence[str],
    loss: Loss,
) -> HeadMap:
    """Of these kinds' heads and neurons, the highest stay. choose: "plan", whose order is that of `obs`, the
    name of a score, a function, or a HeadMap of numbers. Raises ValueError at a choice that is none of
    these, or of another model."""
    if isinstance(choose, str):
        own_obs = partial(obs, draw=draw_of(batches), queries=known_tokens)
        choose = own_obs if choose in (BY_PLAN, "obs") else ORDERS[choose]
    if not isinstance(choose, HeadMap):
        given = {"kinds": kinds, "loss": loss, "queries": one_for_each, **getattr(choose, "keywords", {})}
        takes = inspect.signature(choose).parameters
        every = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        choose = choose(
            model, batches, **{name: own for name, own in given.items() if every or name in takes}
        )
        if not isinstance(choose, HeadMap):
            raise ValueError(f"choose: expected a function that returns a HeadMap, got {choose!r} from it")
    modules, rows = find_sites(model, kinds), {}
    for site, row in choose.select(kinds).items():
        if site not in modules:
            raise ValueError(f"choose: the model has no site {site.name} of {site.heads} units")
        if row.dtype == torch.bool:
            raise ValueError("choose: expected numbers, the highest of which stay; got bools")
        if not row.isfinite().all():
            raise ValueError(f"choose: expected finite numbers, got {row.tolist()} for {site.name}"[:200])
        group = 1 if site.kind in FFN_KINDS else group_of(modules[site], rule_of(modules[site]))
        means = row.detach().cpu().double().unflatten(0, (-1, group)).mean(1)
        rows[site] = means.repeat_interleave(group)
    if nothing := [site.name for site, row in rows.items() if row.numel() and not row.any()]:
        shown = ", ".join(nothing[:3]) + f" and {len(nothing) - 3} more sites" * (len(nothing) > 3)
        warnings.warn(
            f"everything at {shown} scores 0, and goes first: either it does nothing, or no batch comes to "
            "it, as batches of words alone do not come to the layers of images",
            stacklevel=3,
        )
    if not rows:
        raise ValueError(f"choose: there are no numbers for any site of the kinds {', '.join(kinds)}")
    with_numbers = {site.kind for site in rows}
    own = (site for site in modules if site.heads and site.kind in with_numbers)
    if lacks := next((site for site in own if site not in rows), None):
        raise ValueError(f"choose: there are no numbers for {lacks.name}, only for others of its kind")
    return HeadMap(rows)


def check_choice(choose: str | ScoreFunction | HeadMap) -> None:
    """Raises ValueError at what is neither a known name nor a function or HeadMap."""
    if isinstance(choose, str):
        check_name("choice", choose, (BY_PLAN, *ORDERS))
    elif not (isinstance(choose, HeadMap) or callable(choose)):
        raise ValueError(
            "choose: expected the name of a score, a function (model, batches) -> HeadMap, or a HeadMap, got "
            f"{choose!r}"
        )


def draw_of(batches: Sequence[Any]) -> Draw:
    """Targets sampled from the model where labels are classes; else the batch's own."""
    labels = batches[0].get("labels") if batches and isinstance(batches[0], Mapping) else None
    if batches and not isinstance(batches[0], Mapping):
        return sampled_targets
    classes = isinstance(labels, Tensor) and labels.dtype == torch.long
    return sampled_targets if classes else given_targets


def one_for_each(model: Any, site: HeadSite, batch: Any) -> Tensor:
    """(B, L) bool: the positions that count; one of each image or sound, whose masks are not of the layers'
    positions and of which a gradient by sentence asks only how many there are."""
    if (known := known_tokens(model, site, batch)) is not None:
        return known
    first = next(each for each in batch.values() if isinstance(each, Tensor))
    return torch.ones(len(first), 1, dtype=torch.bool, device=first.device)


def given_targets(model: Any, batch: Any, generator: torch.Generator) -> Any:
    return batch
