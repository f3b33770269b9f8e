"""How much memory does hg.prune take, beside the weights of the model?

    bert     BERT-base, 110 million parameters, a classifier
    llama    a Llama of 1.0 billion parameters (16 layers, 32 heads, 8 key heads, 5,632 neurons)

The weights are random, in fp32, and so is the text. What the process has beside the weights when hg.prune is
called, mostly imported code, is not counted. The peak is the kernel's (VmHWM), so this needs Linux.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import headgates as hg
from benchmarks.benchmark import Answer, Flag, count_flag, run
from headgates.lightning_modules.memory import release_memory

MEMORY_SEED = 1


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2))


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=5632,
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
    for _ in range(options.batches):
        words = torch.randint(5, model.config.vocab_size, (options.sentences, options.words), generator=draw)
        labels = words if model.can_generate() else words[:, 0] % 2
        batches.append({"input_ids": words, "labels": labels})
    return batches


def answer(options: argparse.Namespace) -> Answer:
    torch.manual_seed(MEMORY_SEED)
    model = MEASURED_MODELS[options.model]().eval()
    weights = sum(each.numel() * each.element_size() for each in model.parameters()) / 2**20
    batches = random_text(model, options)
    release_memory()
    before = process_mb("VmRSS") - weights
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
    start = time.process_time()

    def said(line: str) -> None:
        now = f"{time.process_time() - start:.0f} CPU s, {process_mb('VmRSS'):.0f} MB"
        print(f"{now}, at most {process_mb('VmHWM'):.0f}: {line}", file=sys.stderr, flush=True)

    number = int(options.to) if options.budget in ("heads", "neurons") else options.to
    pruned = hg.prune(model, batches, report=said, **{options.budget: number})
    seconds, peak = time.process_time() - start, process_mb("VmHWM") - before
    numbers = {
        "model": options.model,
        "asked": pruned.asked,
        "text": [options.batches, options.sentences, options.words],
        "weights_mb": round(weights),
        "beside_mb": round(before),
        "peak_mb": round(peak),
        "times_weights": round(peak / weights, 3),
        "cpu_seconds": round(seconds, 1),
        "left": pruned.subnet.words,
    }
    header = ["model", "asked", "weights MB", "peak MB", "times", "CPU s"]
    asked = f"{options.budget}={options.to:g}"
    row = [options.model, asked, *(numbers[name] for name in ("weights_mb", "peak_mb", "times_weights"))]
    return Answer(numbers, header, [[*row, numbers["cpu_seconds"]]], seed=MEMORY_SEED)


QUESTION = "peak memory of hg.prune, with the weights, over the weights: at most 2"
FLAGS: list[Flag] = [
    ("--model", {"choices": [*MEASURED_MODELS], "default": "bert"}),
    ("--budget", {"choices": BUDGETS, "default": "speedup"}),
    ("--to", {"type": float, "default": 1.5, "help": "its number (default: %(default)s)"}),
    count_flag("--batches", 8, "of text"),
    count_flag("--sentences", 8, "of a batch"),
    count_flag("--words", 32, "of a sentence"),
]

if __name__ == "__main__":
    sys.exit(run("prune_memory", QUESTION, __doc__, FLAGS, answer, peers=["transformers"]))
