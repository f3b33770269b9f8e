"""How much memory does hg.prune take, beside the weights of the model?

    bert     BERT-base, 110 million parameters, a classifier
    llama    a Llama of 0.85 billion parameters (16 layers, 32 heads, 8 key heads, 5,632 neurons)

The weights are random, in fp32, and so is the text. Whole models are measured by the kernel's peak (VmHWM,
on Linux), less what the process has beside the weights when hg.prune is called. With --shrink N all widths,
the vocabulary and the sentences of a batch are divided by N, and torch's own allocations are counted
instead, block by block: the matrices keep their proportions, so the share of the weights is about that of
the whole model, in minutes. (Heads keep their number.)
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

import headgates as hg
from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.lightning_modules.memory import release_memory

MEMORY_SEED = 1
Work = Callable[[], Any]


def bert(shrink: int) -> Any:
    config = transformers.BertConfig(
        vocab_size=30_522 // shrink,
        hidden_size=768 // shrink,
        intermediate_size=3072 // shrink,
        max_position_embeddings=512 // shrink,
    )
    return transformers.BertForSequenceClassification(config)


def llama(shrink: int) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=32_000 // shrink,
        hidden_size=2048 // shrink,
        intermediate_size=5632 // shrink,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    return transformers.LlamaForCausalLM(config)


MEASURED_MODELS = {"bert": bert, "llama": llama}
BUDGETS = ("heads", "neurons", "params", "macs", "speedup")


def process_mb(field: str) -> float:
    """A number of this process: VmRSS, what it has now, or VmHWM, the most so far."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/self/status has no {field}; expected Linux")


def random_text(model: Any, options: argparse.Namespace) -> list[dict[str, torch.Tensor]]:
    draw, batches = torch.Generator().manual_seed(MEMORY_SEED), []
    size = max(1, options.sentences // options.shrink), options.words
    for _ in range(options.batches):
        words = torch.randint(5, model.config.vocab_size, size, generator=draw)
        labels = words if model.can_generate() else words[:, 0] % 2
        batches.append({"input_ids": words, "labels": labels})
    return batches


def process_peak(work: Work, weights: float) -> tuple[Any, float]:
    """What the work gives, and the MB of the process at their most, less what it has beside the weights."""
    release_memory()
    beside = process_mb("VmRSS") - weights
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    return work(), process_mb("VmHWM") - beside


def allocated_peak(work: Work, weights: float) -> tuple[Any, float]:
    """What the work gives, and the MB of the weights and of torch's blocks at their most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        given = work()
    blocks = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    sizes = (each.nbytes() for each in sorted(blocks, key=lambda each: each.start_ns()))
    return given, weights + max(accumulate(sizes)) / 2**20


def answer(options: argparse.Namespace) -> Answer:
    torch.manual_seed(MEMORY_SEED)
    model = MEASURED_MODELS[options.model](options.shrink).eval()
    weights = sum(each.numel() * each.element_size() for each in model.parameters()) / 2**20
    batches, start = random_text(model, options), time.process_time()

    def said(line: str) -> None:
        print(f"{time.process_time() - start:.0f} CPU s: {line}", file=sys.stderr, flush=True)

    number = int(options.to) if options.budget in ("heads", "neurons") else options.to
    prune: Callable[..., Any] = hg.prune
    work = partial(prune, model, batches, report=said, **{options.budget: number})
    pruned, peak = (process_peak if options.shrink == 1 else allocated_peak)(work, weights)
    numbers = {
        "model": options.model,
        "shrink": options.shrink,
        "asked": pruned.asked,
        "text": [options.batches, options.sentences, options.words],
        "weights_mb": round(weights, 1),
        "peak_mb": round(peak, 1),
        "times_weights": round(peak / weights, 3),
        "cpu_seconds": round(time.process_time() - start, 1),
        "left": pruned.subnet.words,
    }
    header = ["model", "shrink", "asked", "weights MB", "peak MB", "times", "CPU s"]
    row = [options.model, options.shrink, f"{options.budget}={options.to:g}"]
    row += [numbers[name] for name in ("weights_mb", "peak_mb", "times_weights", "cpu_seconds")]
    return Answer(numbers, header, [row], seed=MEMORY_SEED)


QUESTION = "peak memory of hg.prune, with the weights, over the weights: at most 2"
FLAGS: list[Flag] = [
    ("--model", {"choices": [*MEASURED_MODELS], "default": "bert"}),
    ("--budget", {"choices": BUDGETS, "default": "speedup"}),
    ("--to", {"type": float, "default": 1.5, "help": "its number (default: %(default)s)"}),
    count_flag("--shrink", 1, "what divides all widths"),
    count_flag("--batches", 8, "of text"),
    count_flag("--sentences", 8, "of a batch"),
    count_flag("--words", 32, "of a sentence"),
]

if __name__ == "__main__":
    sys.exit(run("prune_memory", QUESTION, __doc__, FLAGS, answer, peers=["transformers"]))
