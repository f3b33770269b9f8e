"""The table of what `peers.py` measured: a line for each peer and size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from headgates.lab.measure import spread_text

HEADER = ["what", "of", "peer", "times as fast", "ours"]


def training_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for row in found:
        own = f"{row['tokens_per_second']['ours']['median']:,.0f} target tokens/s"
        own += f"; a step takes {row['times_the_products_at_peak']:.1f} times as long as its products"
        precision = row["precision"].replace("32", "fp32")  # Lightning's name
        yield [f"d={row['d_model']}, {precision}", row["fastest_peer"], spread_text(row["ratio"]), own]


def search_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Medians by batch: their ranges are in the record."""
    for (width, beam), group in groupby(found, key=lambda row: (row["d_model"], row["beam"])):
        rows = [*group]
        sizes = " / ".join(str(row["batch"]) for row in rows)
        own = " / ".join(f"{row['sentences_per_second']['ours']['median']:.0f}" for row in rows)
        for peer in rows[0]["over"]:
            over = " / ".join(f"{row['over'][peer]['median']:.2f}" for row in rows)
            yield [f"d={width}, beam {beam}, batch {sizes}", peer, over, f"{own} sentences/s"]


def start_rows(found: Mapping[str, Any]) -> Iterator[list[str]]:
    runtimes = {"CTranslate2": "int8", "HF generate": "torch"}
    for peer, ratio in found["over"].items():
        own = f"{found['seconds']['ours, ' + runtimes[peer]]['median']:.1f} s"
        yield [f"one line by {runtimes[peer]}", peer, spread_text(ratio), own]


def plan_rows(found: Mapping[str, Any]) -> Iterator[list[str]]:
    said = ", ".join(
        f"{name} {each['median']:.2f} times as fast at loss {found['losses'][name]:.3f}"
        for name, each in found["reached"].items()
    )
    own = f"{found['seconds']['ours']:.0f} CPU s; {said}"
    yield ["`hg.prune` of a BERT to 2 times the speed", "Torch-Pruning", f"{found['over']:.2f}", own]


ROWS: dict[str, Callable[[Any], Iterator[list[str]]]] = {
    "training": training_rows,
    "search": search_rows,
    "start": start_rows,
    "plan": plan_rows,
}


def peer_rows(measured: Mapping[str, Any]) -> list[list[str]]:
    return [[name, *row] for name, found in measured.items() for row in ROWS[name](found)]
