"""How many sentences until the order of heads by importance stands?   Michel et al. 2019, section 4.1: I_h is
a mean over sentences.

|dL(x) / dxi_h| is computed once for every training pair x of a run; a sample's importance is the mean over
its pairs, and its order is compared with that of all pairs: Spearman's correlation of the scores that pruning
goes by (each layer divided by its l2 norm), and the share of the heads closed at half that are the same.
Samples are drawn without replacement. `first` is what the first pairs of the text say in place of a drawn
sample; where a text is sorted they say something else. Letters: N training pairs, H heads.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.benchmark import Answer, Benchmark, at_least_one, count_flag

if TYPE_CHECKING:
    from headgates.workbench.source import Source

SEED = 1
AIM = {"spearman": 0.99, "overlap": 0.95}  # of 19 samples in 20
SIZES = [100, 250, 500, 1000, 2000, 4000, 8000, 16000]


def sentence_gradients(source: "Source") -> "tuple[np.ndarray, list[int]]":
    """|dL(x) / dxi_h| of every training pair x and head: (N, H), in the order of the text, and the number of
    heads of each site."""
    import torch

    from headgates.analysis.gate_gradients import head_factors

    data = source.data()
    model, rows = source.model, np.empty((0, 0))
    with head_factors(model) as factors:
        for batch in data.batches("train", 4000):
            factors.renew(batch, per="sentence")
            with torch.enable_grad():
                loss = source.task.loss(model, batch)
            found = (
                torch.cat([gradient.abs() for gradient in factors.gradients(loss).values()], dim=1)
                .double()
                .numpy()
            )  # (B, H)
            if not len(rows):
                rows = np.full((len(data.corpus.train), found.shape[1]), np.nan)
            rows[batch.index.numpy()] = found
        heads = [site.heads for site in factors.sites]
    return rows[~np.isnan(rows).any(1)], heads  # pairs that were too long have no row


def normalised(rows: np.ndarray, heads: Sequence[int]) -> np.ndarray:
    """The scores (H,) that pruning goes by of the sentences' gradients (n, H): their mean, each layer divided
    by its l2 norm."""
    layers = np.split(rows.mean(0), np.cumsum(heads)[:-1])
    return np.concatenate([layer / np.linalg.norm(layer) for layer in layers])


def agreement(scores: np.ndarray, whole: np.ndarray) -> tuple[float, float]:
    """Spearman's correlation, and the share of the lower half of `whole` that is in the lower half of
    `scores`; both (H,)."""
    from scipy.stats import spearmanr  # type: ignore[import-untyped, unused-ignore]

    half = len(whole) // 2
    same = np.intersect1d(scores.argsort()[:half], whole.argsort()[:half])
    return float(spearmanr(scores, whole).statistic), len(same) / half


def answer(options: argparse.Namespace) -> Answer:
    from headgates.workbench.source import open_source

    source = open_source(options.run, options=None)
    if options.data_dir is not None:
        source.data_dir = options.data_dir
    gradients, heads = sentence_gradients(source)
    whole, rng = normalised(gradients, heads), np.random.default_rng(SEED)
    measured: list[dict[str, Any]] = []
    for size in [size for size in options.sizes if size < len(gradients)]:
        samples = (gradients[rng.choice(len(gradients), size, replace=False)] for _ in range(options.samples))
        found = np.array([agreement(normalised(sample, heads), whole) for sample in samples])  # (samples, 2)
        first = agreement(normalised(gradients[:size], heads), whole)
        numbers: dict[str, Any] = {"sentences": size}
        for name, column, of_first in zip(AIM, found.T, first, strict=True):
            lowest = {
                "median": float(np.median(column)),
                "low": float(np.quantile(column, 0.05)),
                "lowest": float(column.min()),
            }
            numbers[name] = lowest | {"first": of_first}
        measured.append(numbers | {"stands": all(numbers[name]["low"] >= aim for name, aim in AIM.items())})
    enough = next((numbers["sentences"] for numbers in measured if numbers["stands"]), None)
    rows = [
        [numbers["sentences"]]
        + [f"{numbers[name][key]:.3f}" for name in AIM for key in ("median", "low", "lowest", "first")]
        + ["yes" if numbers["stands"] else "no"]
        for numbers in measured
    ]
    header = [
        "sentences",
        *(f"{name} {key}" for name in ("rho", "same") for key in ("median", "5%", "lowest", "first")),
        "stands",
    ]
    facts = {
        "run": source.folder.path.name,
        "pairs": len(gradients),
        "heads": len(whole),
        "samples": options.samples,
        "aim": AIM,
    }
    title = f"{len(whole)} heads of {source.folder.path.name}, against all {len(gradients):,} pairs; {options.samples} samples each"
    return Answer({**facts, "enough": enough, "measured": measured}, header, rows, title=title, seed=SEED)


SIZES_HELP = f"sentences of a sample (default: {' '.join(map(str, SIZES))})"
main = Benchmark(
    "importance_sample",
    "how many sentences until the order of heads by importance stands: Spearman >= 0.99 and 95% of the closed half, in 19 samples of 20",
    __doc__,
    [
        ("run", {"help": "a finished run"}),
        ("--data-dir", {"help": "folder with local copies of named corpora (default: the run's own)"}),
        (
            "--sizes",
            {"type": at_least_one, "nargs": "+", "default": SIZES, "metavar": "N", "help": SIZES_HELP},
        ),
        count_flag("--samples", 200, "samples of each size"),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
