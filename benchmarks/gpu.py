"""What does a GPU give?   Training and search in bf16 beside transformers, and `hg.prune` to a speed.

One MarianMTModel of random weights and our Transformer with the same ones, on one device. Before a clock
starts both are shown to compute the same: equal logits in fp32, and the same greedy lines. Then, in turns:

    training    target tokens/s under bf16 autocast, the same batches
    search      sentences/s in bf16, greedy, every output as long as asked
    prune       a copy of the peer, made 1.5 and 2 times as fast for batches of 1 and 64 sentences

Peak memory is read on a GPU. `--device cpu --small` runs it tiny, to 1.1 times alone.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.benchmark import Answer, Flag, count_flag, run
from benchmarks.product_step import product_step
from benchmarks.training_peers import PADDING, MarianLoop, make_batches, marian, our_marian
from headgates.configs.settings import SearchConfig
from headgates.configs.stages import StageConfig
from headgates.data.batch import Batch
from headgates.data.special_tokens import SpecialTokens
from headgates.lab.measure import alternate, median_and_range
from headgates.models.search import best_hypotheses
from headgates.models.transformer import Transformer

SEED, WIDTH, SMALL_WIDTH = 1, 512, 32
SPECIALS = SpecialTokens()
SPEEDUPS, SENTENCES = (1.5, 2.0), (1, 64)
LENGTH = 24  # pieces of every translation
CLOSE = 1e-3  # of logits in fp32


def in_turns(works: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, Any]:
    """Name -> the seconds of its calls, in turns, and the most memory in MB that a call took on a GPU."""
    seconds = alternate(works, rounds=rounds)
    return {
        name: {"seconds": seconds[name], "peak_mb": peak_mb(work, device)} for name, work in works.items()
    }


def peak_mb(work: Callable[[], Any], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) / 2**20


# ---------------------------------------------------------------- both say the same


def logits_of(theirs: Any, batch: Batch) -> Tensor:
    mask = batch.source != PADDING
    return theirs(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target_in).logits


def their_lines(theirs: Any, source: Tensor) -> list[list[int]]:
    """LENGTH pieces of each source, greedily."""
    lengths = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH}
    found = theirs.generate(
        input_ids=source,
        attention_mask=source != PADDING,
        decoder_start_token_id=SPECIALS.beginning,
        eos_token_id=SPECIALS.end,
        forced_eos_token_id=SPECIALS.end,
        suppress_tokens=[SPECIALS.padding, SPECIALS.beginning],  # which our search never writes
        num_beams=1,
        do_sample=False,
        **lengths,
    )
    return found[:, 1 : LENGTH + 1].tolist()


def our_lines(ours: Transformer, source: Tensor) -> list[list[int]]:
    search = SearchConfig(beam=1, max_ratio=0.0, max_extra=LENGTH, min_length=LENGTH)
    return [best[0].ids for best in best_hypotheses(ours, source, search)]


@torch.no_grad()
def check_same(theirs: Any, ours: Transformer, batch: Batch) -> dict[str, float]:
    """Raises ValueError unless both have the same logits, and nearly all greedy lines are the same."""
    real = batch.target_out != PADDING
    expected = logits_of(theirs, batch)[real]
    difference = float((ours(batch.source, batch.target_in)[real] - expected).abs().max())
    pairs = zip(our_lines(ours, batch.source), their_lines(theirs, batch.source), strict=True)
    same = [left[: LENGTH - 1] == right[: LENGTH - 1] for left, right in pairs]
    share = sum(same) / len(same)
    if difference > CLOSE * float(expected.abs().max()) or share < 0.95:
        raise ValueError(
            f"ours and Marian differ: logits by {difference:.2g}, and {share:.0%} of the lines are the same"
        )
    return {"largest_difference": difference, "same_lines": share}


# ---------------------------------------------------------------- what is measured


def training(theirs: Any, ours: Transformer, batches: Sequence[Batch], rounds: int) -> dict[str, Any]:
    """Target tokens/s of each, by median_and_range, and peak memory."""
    stage, device = StageConfig(lr=1e-4, warmup_steps=10), batches[0].source.device
    steps: dict[str, Any] = {
        "ours": product_step(copy.deepcopy(ours), stage, "bf16"),
        "transformers": MarianLoop(copy.deepcopy(theirs), stage, bf16=True),
    }
    found = in_turns({name: partial(each.block, batches) for name, each in steps.items()}, device, rounds)
    return rates(found, sum(batch.target_tokens for batch in batches))


def searching(theirs: Any, ours: Transformer, source: Tensor, rounds: int) -> dict[str, Any]:
    """Sentences/s of each in bf16."""
    half, their_half = (copy.deepcopy(each).to(torch.bfloat16) for each in (ours, theirs))
    works = {
        "ours": lambda: our_lines(half, source),
        "transformers": lambda: their_lines(their_half, source),
    }
    return rates(in_turns(works, source.device, rounds), len(source))


def rates(found: dict[str, Any], units: int) -> dict[str, Any]:
    return {
        name: {"rate": median_and_range([units / s for s in each["seconds"]]), "peak_mb": each["peak_mb"]}
        for name, each in found.items()
    }


def pruning(
    theirs: Any, batches: Sequence[Batch], speedup: float, sentences: int, rounds: int
) -> dict[str, Any]:
    """How fast a copy is that `hg.prune` made so many times as fast for batches of so many sentences."""
    import headgates as hg

    model, device = copy.deepcopy(theirs), batches[0].source.device
    text = [as_mapping(batch, slice(None)) for batch in batches]  # one of four is held out for losses
    timed = as_mapping(batches[0], slice(sentences))

    @torch.no_grad()
    def forward(model: Any) -> Any:
        return model(**timed)

    asked = {"speedup": speedup, "sentences": len(timed["input_ids"])}
    try:
        report = hg.prune(model, text, speedup=speedup, run=forward)
    except ValueError as error:  # no plan of this model is so fast here: an answer too
        return {**asked, "measured": None, "refused": str(error)}
    found = in_turns({"before": lambda: forward(theirs), "after": lambda: forward(model)}, device, rounds)
    before, after = (median(found[name]["seconds"]) for name in ("before", "after"))
    with torch.no_grad():
        if not torch.isfinite(model(**timed).logits).all():
            raise ValueError(f"pruned to {speedup} times, the model gives numbers that are not finite")
    return {
        **asked,
        "measured": before / after,
        "report": str(report),
        "peak_mb": {name: each["peak_mb"] for name, each in found.items()},
    }


def as_mapping(batch: Batch, rows: slice) -> dict[str, Tensor]:
    """The batch as transformers' models take it."""
    labels = batch.target_out.masked_fill(batch.target_out == PADDING, -100)
    found = {"input_ids": batch.source, "attention_mask": (batch.source != PADDING).long(), "labels": labels}
    return {name: each[rows] for name, each in found.items()}


def answer(options: argparse.Namespace) -> Answer:
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no GPU here; `--device cpu --small` runs all of it tiny")
    torch.manual_seed(SEED)
    theirs = marian(SMALL_WIDTH if options.small else WIDTH, 0.0).to(device).eval()
    theirs.config._attn_implementation = "sdpa"  # the faster one on a GPU
    ours = our_marian(copy.deepcopy(theirs).cpu()).to(device).eval()
    batches = [batch.to(device) for batch in make_batches(options.steps)]
    if options.small:
        batches = [first(batch, 4) for batch in batches]
    same = check_same(theirs, ours, batches[0])
    numbers: dict[str, Any] = {
        "same": same,
        "small": options.small,
        "training": training(theirs, ours, batches, options.rounds),
        "search": searching(theirs, ours, batches[0].source[:64], options.rounds),
        "prune": [
            pruning(theirs, batches, speedup, sentences, options.rounds)
            for speedup in ((1.1,) if options.small else options.speedups)
            for sentences in SENTENCES
        ],
    }
    rows = []
    for what, unit in {"training": "target tokens", "search": "sentences"}.items():
        medians = [numbers[what][name]["rate"]["median"] for name in ("ours", "transformers")]
        rows.append([f"{what}, {unit}/s", *(f"{each:,.0f}" for each in medians)])
    rows += [
        [f"prune to {each['speedup']:g}, {each['sentences']} sentences", shown(each["measured"]), "1"]
        for each in numbers["prune"]
    ]
    return Answer(
        numbers, ["", "ours", "transformers"], rows, precision="bf16", seed=SEED, peers=["transformers"]
    )


def shown(times: float | None) -> str:
    return "not possible" if times is None else f"{times:.2f}"


def first(batch: Batch, sentences: int) -> Batch:
    rows = {name: getattr(batch, name)[:sentences] for name in ("source", "target_in", "target_out")}
    return replace(batch, **rows)


QUESTION = "a GPU: training and search in bf16 beside transformers, and hg.prune to 1.5 and 2 times"
FLAGS: list[Flag] = [
    ("--device", {"default": "cuda", "help": "where all of it runs (default: %(default)s)"}),
    ("--small", {"action": "store_true", "help": "a tiny model and few sentences"}),
    ("--speedups", {"type": float, "nargs": "+", "default": SPEEDUPS, "help": "what hg.prune is asked for"}),
    count_flag("--steps", 5, "steps, and batches, of a block"),
    count_flag("--rounds", 5, "timed calls of each"),
]

if __name__ == "__main__":
    sys.exit(run("gpu", QUESTION, __doc__, FLAGS, answer))
