"""When is written-out attention (two batched products and a softmax) faster than the fused `scaled_dot_product_attention`?

The measurement behind `written_out` in models/attention.py, on the device at hand: our attention layer is run both ways in turns, at
lengths 8 to 512 and an equal number of tokens a batch, in training (forward and backward), in inference, and in a step of cached decoding
(one query for each sentence). Sentences are padded, as in a batch, so there is always a mask.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from benchmarks.benchmark import Answer, Benchmark, at_least_one, count_flag
from speed.measure import alternate, median_and_range, median_text, range_text, ratio_by_round, seconds_of

MODES = ["training", "inference", "decoding"]
SEED = 1


class Block:
    """As many calls of a function as take about `seconds`."""

    def __init__(self, call: Callable[[], object], seconds: float):
        self.call = call
        call()
        self.times = max(1, round(seconds / max(seconds_of(call), 1e-6)))

    def __call__(self) -> None:
        for _ in range(self.times):
            self.call()


def measure(mode: str, precision: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a call on each path, and their ratio, written out over fused."""
    import torch

    from models.attention import MultiHeadAttention, written_out

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    sentences = max(1, options.tokens // length)  # B
    d_model = options.heads * options.width
    layer = MultiHeadAttention(d_model, options.heads, options.width, options.dropout).to(device).train(mode == "training")
    x = torch.randn(sentences, length, d_model, device=device)  # (B, L, D)
    queries = x[:, :1] if mode == "decoding" else x
    lengths = torch.randint(max(1, length * 3 // 4), length + 1, (sentences, 1), device=device)
    padding = torch.arange(length, device=device) >= lengths
    bias = torch.zeros(sentences, length, device=device).masked_fill_(padding, -torch.inf)[:, None, None]  # (B, 1, 1, L)
    cached = None

    def forward() -> torch.Tensor:
        # Lightning's autocast keeps no cache of cast weights either
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            return layer(queries, *(cached or layer.keys_values(x)), bias)[0]

    def train() -> None:
        layer.zero_grad()
        forward().sum().backward()

    if mode == "decoding":  # the keys and values are computed beforehand
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            cached = layer.keys_values(x)

    def path(is_written_out: bool) -> Block:
        def once() -> None:
            with mock.patch("models.attention.written_out", return_value=is_written_out), torch.inference_mode(mode != "training"):
                train() if mode == "training" else forward()

        return Block(once, options.block_seconds)

    blocks = {"written": path(True), "fused": path(False)}
    seconds = alternate(blocks, rounds=options.rounds)
    # the blocks of the two paths may hold different numbers of calls
    calls = {name: [1000 * s / block.times for s in seconds[name]] for name, block in blocks.items()}
    shape = torch.empty(0, options.heads, queries.shape[1], options.width, device=device)
    return {
        "mode": mode,
        "precision": precision,
        "length": length,
        "sentences": sentences,
        "written_ms": median_and_range(calls["written"]),
        "fused_ms": median_and_range(calls["fused"]),
        "ratio": ratio_by_round(calls["written"], calls["fused"]),
        "rule": "written out" if written_out(shape) else "fused",
    }


def answer(options: argparse.Namespace) -> Answer:
    measured = [measure(m, p, length, options) for m in options.modes for p in options.precisions for length in options.lengths]
    rows = []
    for numbers in measured:
        cost = numbers["ratio"]
        faster = "written out" if cost["highest"] < 1 else "fused" if cost["lowest"] > 1 else "about equal"
        right = "" if faster in ("about equal", numbers["rule"]) else "  <- not the faster one"
        medians = [median_text(numbers["written_ms"], 3), median_text(numbers["fused_ms"], 3), median_text(cost), range_text(cost)]
        facts = [numbers[name] for name in ("mode", "precision", "length", "sentences")]
        rows.append([*facts, *medians, faster, numbers["rule"] + right])
    header = ["mode", "precision", "length", "sentences", "written ms", "fused ms", "ratio", "lowest to highest", "faster", "rule takes"]
    layer = {"heads": options.heads, "head_width": options.width, "tokens": options.tokens, "attention_dropout": options.dropout}
    numbers = {"layer": layer, "measurements": measured, "rounds": options.rounds}
    return Answer(numbers, header, rows, precision=" and ".join(options.precisions), seed=SEED)


LENGTHS = [8, 16, 32, 64, 128, 256, 512]
main = Benchmark(
    "attention_paths",
    "attention layer, written out over fused: seconds, by length, precision and use",
    __doc__,
    [
        ("--lengths", {"type": at_least_one, "nargs": "+", "default": LENGTHS, "help": "(default: 8 16 ... 512)"}),
        ("--modes", {"choices": MODES, "nargs": "+", "default": MODES, "help": "(default: all)"}),
        ("--precisions", {"choices": ["32", "bf16"], "nargs": "+", "default": ["32", "bf16"], "help": "(default: both)"}),
        count_flag("--tokens", 2048, "of a batch of tokens / length sentences"),
        count_flag("--heads", 8, "heads of the layer"),
        count_flag("--width", 32, "of a head"),
        ("--dropout", {"type": float, "default": 0.0, "help": "of attention weights in training (default: %(default)s)"}),
        count_flag("--rounds", 5, "timed blocks of each path"),
        ("--block-seconds", {"type": float, "default": 0.2, "help": "length of a block (default: %(default)s)"}),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
