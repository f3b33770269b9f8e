"""When is written-out attention (two batched products and a softmax) faster than the fused `scaled_dot_product_attention`?

The measurement behind `written_out` in models/attention.py, on the device at hand: our attention layer is run both ways in turns, at
lengths 8 to 512 and an equal number of tokens a batch, in training (forward and backward), in inference, and in a step of cached decoding
(one query for each sentence). Sentences are padded, as in a batch, so there is always a mask.
"""

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from speed.measure import alternate, arguments, at_least_one, load_average, ratio, record, set_threads, show, spread, wait

QUESTION = "attention layer, written out over fused: seconds, by length, precision and use"
MODES = ["training", "inference", "decoding"]
SEED = 1


class Block:
    """As many calls as take about `seconds`."""

    def __init__(self, call: Callable[[], object], seconds: float):
        self.call = call
        call()
        wait()
        begin = time.perf_counter()
        call()
        wait()
        self.times = max(1, round(seconds / max(time.perf_counter() - begin, 1e-6)))

    def __call__(self) -> None:
        for _ in range(self.times):
            self.call()


def measure(mode: str, precision: str, length: int, options: Any) -> dict[str, Any]:
    """Milliseconds a call of both paths, and written out over fused."""
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

    if mode == "decoding":  # the keys are there already
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
        "written_ms": spread(calls["written"]),
        "fused_ms": spread(calls["fused"]),
        "ratio": ratio(calls["written"], calls["fused"]),
        "rule": "written out" if written_out(shape) else "fused",
    }


def main() -> int:
    parser = arguments("attention_paths", __doc__)
    parser.add_argument("--lengths", type=at_least_one, nargs="+", default=[8, 16, 32, 64, 128, 256, 512], help="(default: 8 16 ... 512)")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=MODES, help="(default: all)")
    parser.add_argument("--precisions", choices=["32", "bf16"], nargs="+", default=["32", "bf16"], help="(default: both)")
    parser.add_argument("--tokens", type=at_least_one, default=2048, help="of a batch of tokens / length sentences (default: %(default)s)")
    parser.add_argument("--heads", type=at_least_one, default=8, help="(default: %(default)s)")
    parser.add_argument("--width", type=at_least_one, default=32, help="of a head (default: %(default)s)")
    parser.add_argument("--dropout", type=float, default=0.0, help="of attention weights in training (default: %(default)s)")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="timed blocks of each path (default: %(default)s)")
    parser.add_argument("--block-seconds", type=float, default=0.2, help="length of a block (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for all (default: %(default)s)")
    options = parser.parse_args()
    set_threads(options.threads)
    load = load_average()
    results = [measure(m, p, length, options) for m in options.modes for p in options.precisions for length in options.lengths]
    rows = []
    for result in results:
        written, fused, cost = result["written_ms"]["median"], result["fused_ms"]["median"], result["ratio"]
        faster = "written out" if cost["highest"] < 1 else "fused" if cost["lowest"] > 1 else "about equal"
        right = "" if faster in ("about equal", result["rule"]) else "  <- not the faster one"
        numbers = [f"{written:.3f}", f"{fused:.3f}", f"{cost['median']:.2f}", f"{cost['lowest']:.2f} to {cost['highest']:.2f}"]
        rows.append([result["mode"], result["precision"], result["length"], result["sentences"], *numbers, faster, result["rule"] + right])
    header = ["mode", "precision", "length", "sentences", "written ms", "fused ms", "ratio", "lowest to highest", "faster", "rule takes"]
    show(header, rows)
    layer = {"heads": options.heads, "head_width": options.width, "tokens": options.tokens, "attention_dropout": options.dropout}
    answer = {"layer": layer, "measurements": results, "rounds": options.rounds, "load_average_before": load}
    record(options.out, "attention_paths", QUESTION, answer, precision=" and ".join(options.precisions), seed=SEED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
