"""The text that a plan is made on: three quarters of the batches for statistics and refits, a quarter held
out for the losses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from headgates.analysis.batches import A_BATCH, count_labels, is_named
from headgates.gates.on_device import on_device
from headgates.gates.sites import device_of

HELD_OUT_EVERY = 4  # one batch of so many; fewer batches serve for both


@dataclass(frozen=True)
class PlanText:
    """fit, held_out: batches on the model's device. units: of the loss of the latter. unit: their name."""

    fit: list[Any]
    held_out: list[Any]
    units: int
    unit: str

    @classmethod
    def of(cls, model: nn.Module, batches: Iterable[Any]) -> "PlanText":
        """Raises ValueError without any batch, and at one that is none, or has nothing in it."""
        if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
            came = type(batches).__name__
            raise ValueError(f"expected a list of batches or a loader, got a {came}; {A_BATCH}")
        device = device_of(model)
        given = [on_device(checked(batch), device) for batch in batches]
        if not given:
            raise ValueError(
                "there are no batches; give some with a few hundred sentences, labels included (a generator "
                "that was read before is empty)"
            )
        held_out = given[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY] or given
        fit = [batch for place, batch in enumerate(given) if (place + 1) % HELD_OUT_EVERY]
        counts = [labels_in(model, batch) for batch in held_out]
        if all(counts):
            return cls(fit, held_out, sum(counts), "label")
        return cls(fit, held_out, len(held_out), "batch")


def checked(batch: Any) -> Any:
    """The batch. Raises ValueError at one of another kind, or without a row."""
    if not is_named(batch):
        return batch
    for name, each in batch.items():
        if isinstance(each, Tensor) and not each.numel():
            raise ValueError(f"{name} of a batch has the shape {tuple(each.shape)}; leave empty batches out")
    return batch


def sizes_of_batches(batches: Sequence[Any]) -> str:
    """How many batches there are, and how many rows they have, such as `4 batches of 8 rows`."""
    rows = set[int]()
    for batch in batches:
        values = batch.values() if isinstance(batch, Mapping) else [batch.target_in]
        rows |= {len(next((each for each in values if isinstance(each, Tensor) and each.dim()), ()))}
    sizes = " to ".join(str(number) for number in sorted({min(rows), max(rows)}))
    return f"{len(batches)} batch{'es' * (len(batches) > 1)} of {sizes} rows"


def labels_in(model: nn.Module, batch: Any) -> int:
    """The labels with a loss; 0 where the batch names none."""
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
        return count_labels(model, labels) if isinstance(labels, Tensor) else 0
    padding: int = cast(Any, model).target_specials.padding
    return int((batch.target_out != padding).sum())
