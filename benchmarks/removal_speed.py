"""How much of the saved multiply-adds comes back as time when half of the heads of every site are removed?
The aim: at least 0.9 of it
for scoring in batches of 64, and a clear gain in batches of 16.

share of the ideal = (t_dense - t_removed) / (t_dense * saved share of the multiply-adds), round by round: 1
is all, 0 is nothing. Scoring is the teacher-forced pass that gives every target token its log probability;
beam-5 search runs to a fixed length. The same model with these heads closed by gates, whose weights stay, is
timed beside the two. Sizes: `base`, Vaswani et al.'s (6 + 6 layers, width 512, 8 heads, feed-forward 2,048),
and `multi30k`, configs/multi30k.yaml, both with random weights, in fp32; random ids, no padding. A run is
`--sentences` sentences in batches of the given size.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, at_least_one, count_flag
from headgates.report.speed.measure import (
    alternate,
    median_and_range,
    median_text,
    range_text,
    ratio_by_round,
)

if TYPE_CHECKING:
    from torch import Tensor

    from headgates.configs.schema import ModelConfig
    from headgates.models.transformer import Transformer

AIM = 0.9
SEED = 1
VOCABULARY = 8_000
BEAM = 5
WORK = {"base": ["scoring"], "multi30k": ["scoring", f"beam-{BEAM}"]}


def model_config(size: str) -> "ModelConfig":
    from headgates.configs.schema import ModelConfig
    from headgates.configs.yaml_file import load_yaml

    if size == "base":
        return ModelConfig(d_model=512, ffn=2048, heads=8, encoder_layers=6, decoder_layers=6)
    return ModelConfig(**load_yaml(str(ROOT / "configs" / f"{size}.yaml"))["model"])


def models(config: "ModelConfig", vocabulary: int) -> dict[str, "Transformer"]:
    """The dense model, the same with half of the heads of every site closed by gates, and without these
    heads."""
    import torch

    from headgates.gates import HeadMap, attach, find_sites, remove
    from headgates.models.transformer import Transformer

    made = {}
    for name in ("dense", "masked", "removed"):
        torch.manual_seed(SEED)
        model = Transformer(config, vocabulary, vocabulary)
        with torch.no_grad():
            model.output.weight[model.target_specials.end] = (
                0.0  # never among the best: every search goes on to its last step
            )
        closed = HeadMap({site: torch.randperm(site.heads) < site.heads // 2 for site in find_sites(model)})
        if name == "masked":
            attach(model, gate="mask").assign(closed.map(lambda row: (~row).double()))
        elif name == "removed":
            remove(model, closed)
        made[name] = model.to("cuda" if torch.cuda.is_available() else "cpu").eval().requires_grad_(False)
    return made


def timed_work(
    work: str, model: "Transformer", source: "Tensor", target: "Tensor", batch: int
) -> Callable[[], list["Tensor"]]:
    """The function that is timed: it scores or translates all sentences of source (N, S) and target (N, T +
    1) in batches, and returns tensors with a row for each sentence: every token's log probability, or the
    best hypothesis."""
    import torch

    from headgates.models.search import beam_search
    from headgates.models.translator import token_log_probs

    parts = list(zip(source.split(batch), target.split(batch), strict=True))
    steps = target.shape[1] - 1

    def score() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [token_log_probs(model, *part) for part in parts]

    def search() -> list[torch.Tensor]:
        found = [beam_search(model, part, beam=BEAM, max_ratio=0.0, max_extra=steps) for part, _ in parts]
        return [torch.tensor([best[0].ids for best in each]) for each in found]

    return score if work == "scoring" else search


def multiply_adds(work: str, model: "Transformer", *, sentences: int, length: int) -> dict[str, int]:
    from headgates.models.multiply_adds import decoding, scoring

    if work == "scoring":
        return scoring(model, sentences=sentences, source=length, target=length)
    return decoding(model, source=length, steps=[length] * sentences, beam=BEAM)


def time_figures(seconds: Mapping[str, Sequence[float]], saved: float) -> dict[str, Any]:
    """Ratios and the share of the ideal from the seconds of each round, and the share of the ideal of the
    medians."""
    dense, removed = seconds["dense"], seconds["removed"]
    middle = {name: median_and_range(values)["median"] for name, values in seconds.items()}
    return {
        "seconds": {name: median_and_range(values) for name, values in seconds.items()},
        "dense_over_removed": ratio_by_round(dense, removed),
        "dense_over_masked": ratio_by_round(dense, seconds["masked"]),
        "saved_share": saved,
        "ideal": 1 / (1 - saved),  # dense over removed if time went with the multiply-adds
        "share_of_ideal": median_and_range(
            [(d - r) / (d * saved) for d, r in zip(dense, removed, strict=True)]
        ),
        "share_of_ideal_of_medians": (middle["dense"] - middle["removed"]) / (middle["dense"] * saved),
    }


def agreement(masked: "Tensor", removed: "Tensor") -> float:
    """The share of sentences whose numbers agree; a near tie may turn a hypothesis another way. Raises
    ValueError if it is below 0.9, for the two are one model and their times would say nothing."""
    share = float(((masked - removed).abs().amax(1) < 1e-3).double().mean())
    if share < 0.9:
        raise ValueError(
            f"the masked and the removed model agree on {share:.0%} of the sentences only; expected one model twice"
        )
    return share


def measure(size: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind of work and batch size."""
    import torch

    from headgates.models.multiply_adds import saved_share

    made = models(model_config(size), VOCABULARY)
    sentences, length = options.sentences, options.length
    ids = torch.randint(
        4, VOCABULARY, (2, sentences, length + 1), generator=torch.Generator().manual_seed(SEED)
    )
    source, target = ids.to(made["dense"].output.weight.device)
    both = ("dense", "removed")
    facts = {
        "size": size,
        "parameters": {name: sum(weight.numel() for weight in made[name].parameters()) for name in both},
    }
    rows = []
    for work in WORK[size]:
        counts = {name: multiply_adds(work, made[name], sentences=sentences, length=length) for name in both}
        saved = saved_share(counts["dense"], counts["removed"])
        for batch in options.batches:
            blocks = {
                name: timed_work(work, model, source[:, :length], target, batch)
                for name, model in made.items()
            }
            same = agreement(*(torch.cat(blocks[name]()) for name in ("masked", "removed")))
            numbers = time_figures(alternate(blocks, rounds=options.rounds), saved)
            rows.append(
                {
                    **facts,
                    "work": work,
                    "batch": batch,
                    "same_as_masked": same,
                    **numbers,
                    "multiply_adds": counts,
                }
            )
            print(
                f"{size}, {work}, batch {batch}: removed {median_text(numbers['dense_over_removed'], 3)} times as fast",
                flush=True,
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]], sentences: int) -> list[list[str]]:
    """A line for each row: milliseconds a batch, dense over removed, the saved share, the share of the
    ideal."""
    lines = []
    for row in rows:
        batches = -(-sentences // row["batch"])
        times = [
            f"{1000 * row['seconds'][name]['median'] / batches:.1f}"
            for name in ("dense", "masked", "removed")
        ]
        gain, share = row["dense_over_removed"], row["share_of_ideal"]
        cells = [median_text(gain, 3), range_text(gain, 3), f"{row['ideal']:.3f}"]
        cells += [f"{row['saved_share']:.1%}", median_text(share), range_text(share)]
        lines.append([f"{row['size']}, {row['work']}", str(row["batch"]), *times, *cells])
    return lines


def answer(options: argparse.Namespace) -> Answer:
    rows = [row for size in options.sizes for row in measure(size, options)]
    header = [
        "size, work",
        "batch",
        "dense ms",
        "masked ms",
        "removed ms",
        "dense/removed",
        "lowest to highest",
        "ideal",
        "saved",
    ]
    header += ["share of ideal", "lowest to highest"]
    amount = {"sentences": options.sentences, "length": options.length, "rounds": options.rounds}
    numbers = {"aim": AIM, "measured": rows, "vocabulary": VOCABULARY, "beam": BEAM, **amount}
    return Answer(numbers, header, table(rows, options.sentences), seed=SEED)


SIZES = "batch sizes (default: 64 16 1)"
main = Benchmark(
    "removal_speed",
    "half of the heads of every site removed: share of the saved multiply-adds that comes back as time (aim: 0.9, scoring, batch 64)",
    __doc__,
    [
        ("--sizes", {"nargs": "+", "choices": list(WORK), "default": list(WORK), "help": "(default: both)"}),
        (
            "--batches",
            {"type": at_least_one, "nargs": "+", "default": [64, 16, 1], "metavar": "N", "help": SIZES},
        ),
        count_flag("--sentences", 64, "of a run"),
        count_flag("--length", 25, "source and target tokens"),
        count_flag("--rounds", 10, "timed runs of each"),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
