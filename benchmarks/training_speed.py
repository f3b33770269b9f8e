"""How fast do we train beside `torch.nn.Transformer` in a plain fp32 loop?   The aim: at least 2 times, on
one CPU thread and on two.

3+3 layers, d=256, ffn 1024, 8 heads, tied vocabulary of 8,000, dropout 0.1, label smoothing 0.1, AdamW,
clipping; about 2,000 target tokens a batch of sentences of 15 (sd 4) tokens. All take the same padded batches
in turns, each number of threads in a process of its own. Before the clock starts both models are shown to
compute the same: equal numbers of parameters, and with copied weights and no dropout equal losses and
gradients. Attention dropout is what nn.Transformer does (0.1), in both models; our product's default, 0, is
shown too.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import ROOT, Answer, Benchmark, at_least_one, count_flag
from headgates.report.speed.measure import (
    alternate,
    interval_text,
    median_and_range,
    ratio_by_round,
    set_threads,
)

if TYPE_CHECKING:
    from headgates.data.batch import Batch

AIM = 2.0
SEED = 1
VOCAB = 8000
MAX_TOKENS = 2350  # of a batch, padding counted: gives about 2,000 target tokens
OURS, OURS_32, PEER_32, PEER_BF16 = "ours", "ours fp32", "nn.Transformer fp32", "nn.Transformer bf16"


def make_batches(count: int) -> "list[Batch]":
    """Batches of sentences of Multi30k's lengths, cut and padded as in training; words are drawn by Zipf's
    law."""
    import itertools

    import numpy as np

    from headgates.data.batch import collate
    from headgates.data.batching import TokenBatches

    rng = np.random.default_rng(SEED)
    pairs = 20_000
    source = np.clip(rng.normal(14, 4, pairs).round(), 3, 40).astype(int)  # the end of sentence makes it 15
    target = np.clip((source + rng.normal(0, 2, pairs)).round(), 3, 40).astype(int)
    share = 1 / np.arange(10, VOCAB + 6)  # ids 4 to V - 1
    words = rng.choice(np.arange(4, VOCAB), size=int(source.sum() + target.sum()), p=share / share.sum())
    pieces = iter(words.tolist())
    text = [
        (list(itertools.islice(pieces, int(s))), list(itertools.islice(pieces, int(t))))
        for s, t in zip(source, target, strict=True)
    ]
    sampler = TokenBatches(source + 1, target + 1, max_tokens=MAX_TOKENS, seed=SEED)
    return [
        collate([text[i] for i in chosen], chosen, tokens)
        for chosen, tokens in itertools.islice(sampler, count)
    ]


def check_parity(batch: "Batch") -> dict[str, float]:
    """Raises ValueError unless both models have as many parameters and, with the same weights, the same loss
    and gradient."""
    import torch

    from benchmarks.product_step import product_step
    from benchmarks.torch_peer import PlainLoop, TorchTransformer, copy_weights
    from headgates.configs.schema import ModelConfig, StageConfig
    from headgates.models.transformer import Transformer

    config = ModelConfig(d_model=256, ffn=1024, dropout=0.0)
    torch.manual_seed(SEED)
    ours, theirs = Transformer(config, VOCAB, VOCAB), TorchTransformer(config, VOCAB)
    copy_weights(ours, theirs)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    ours.to(batch.source.device)
    theirs.to(batch.source.device)
    module = product_step(ours, StageConfig(), "32").module
    losses = [module.training_step(batch, 0), PlainLoop(theirs, StageConfig(), bf16=False).loss(batch)]
    norms = []
    for model, loss in zip((ours, theirs), losses, strict=True):
        loss.backward()
        norms.append(
            float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        )
    first, second = (float(loss.detach()) for loss in losses)
    if (
        sizes[0] != sizes[1]
        or not math.isclose(first, second, rel_tol=1e-5)
        or not math.isclose(*norms, rel_tol=1e-3)
    ):
        seen = f"{sizes} parameters, losses {first} and {second}, gradient norms {norms}"
        raise ValueError(f"ours and the peer do not compute the same: {seen}; mend benchmarks/torch_peer.py")
    return {
        "parameters": sizes[0],
        "loss_ours": first,
        "loss_peer": second,
        "gradient_norm_ours": norms[0],
        "gradient_norm_peer": norms[1],
    }


def measure(
    attention_dropout: float, batches: "list[Batch]", *, precision: str, rounds: int
) -> dict[str, Any]:
    """Target tokens per second of each trainer, ratios, and each one's loss on the first batch before and
    after."""
    import torch

    from benchmarks.product_step import product_step
    from benchmarks.torch_peer import PlainLoop, TorchTransformer, copy_weights
    from headgates.configs.schema import ModelConfig, StageConfig
    from headgates.models.transformer import Transformer

    config = ModelConfig(d_model=256, ffn=1024, dropout=0.1, attention_dropout=attention_dropout)
    stage = StageConfig(lr=1e-3, warmup_steps=10)
    device = batches[0].source.device
    torch.manual_seed(SEED)
    start = Transformer(config, VOCAB, VOCAB)

    def our_model() -> Transformer:
        model = Transformer(config, VOCAB, VOCAB)
        model.load_state_dict(start.state_dict())
        return model.to(device)

    def their_model() -> TorchTransformer:
        model = TorchTransformer(config, VOCAB)
        copy_weights(start, model)
        return model.to(device)

    steps: dict[str, Any] = {
        OURS: product_step(our_model(), stage, precision),
        OURS_32: product_step(our_model(), stage, "32"),
        PEER_32: PlainLoop(their_model(), stage, bf16=False),
        PEER_BF16: PlainLoop(their_model(), stage, bf16=True),
    }
    if precision == "32":
        del steps[OURS_32]  # the same as ours
    before = {name: float(step(batches[0])) for name, step in steps.items()}
    seconds = alternate({name: partial(step.block, batches) for name, step in steps.items()}, rounds=rounds)
    after = {name: float(step(batches[0])) for name, step in steps.items()}
    for name in steps:
        # random weights: logits of variance about 1 lie half a nat above log V
        if abs(before[name] - math.log(VOCAB)) > 1 or not after[name] < before[name]:
            raise ValueError(
                f"{name} does not train: loss {before[name]:.3f} (log V is {math.log(VOCAB):.3f}), then {after[name]:.3f}"
            )
    tokens = sum(batch.target_tokens for batch in batches)
    return {
        "attention_dropout": attention_dropout,
        "tokens_per_second": {
            name: median_and_range([tokens / s for s in rounds]) for name, rounds in seconds.items()
        },
        "ratio_to_fp32": ratio_by_round(seconds[PEER_32], seconds[OURS]),
        "ratio_to_bf16": ratio_by_round(seconds[PEER_BF16], seconds[OURS]),
        "losses": {name: [before[name], after[name]] for name in steps},
    }


def worker(options: argparse.Namespace) -> dict[str, Any]:
    """All measurements at one number of threads."""
    import torch

    from headgates.lightning_modules.precision import resolve_precision

    set_threads(options.worker)
    precision = resolve_precision(options.precision)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches = [batch.to(device) for batch in make_batches(options.steps)]
    padded = sum(batch.target_out.numel() for batch in batches)
    tokens = sum(batch.target_tokens for batch in batches)
    return {
        "threads": torch.get_num_threads(),
        "precision": precision,
        "target_tokens_per_batch": tokens / len(batches),
        "padding_share": 1 - tokens / padded,
        "parity": check_parity(batches[0]),
        "runs": [
            measure(p, batches, precision=precision, rounds=options.rounds) for p in options.attention_dropout
        ],
    }


def run_worker(threads: int) -> dict[str, Any]:
    """Run this command as `worker` in a process of its own, since OpenMP reads its settings when it
    starts."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.training_speed", *sys.argv[1:], f"--worker={threads}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ValueError(
            f"the measurement with {threads} threads failed (exit status {done.returncode}); its message is above"
        )
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def answer(options: argparse.Namespace) -> Answer | None:
    if options.worker:
        print(json.dumps(worker(options)))
        return None
    results = [run_worker(threads) for threads in options.threads]
    rows = []
    for result in results:
        for run in result["runs"]:
            speed, faster = run["tokens_per_second"], run["ratio_to_fp32"]
            speeds = [
                f"{speed[name]['median']:,.0f}" if name in speed else "same"
                for name in (OURS, OURS_32, PEER_32, PEER_BF16)
            ]
            ratios = [interval_text(faster), interval_text(run["ratio_to_bf16"])]
            verdict = "yes" if faster["median"] >= AIM else "no"
            rows.append([result["threads"], f"{run['attention_dropout']:g}", *speeds, *ratios, verdict])
    precision = results[0]["precision"]
    title = (
        f"target tokens/s, median of {options.rounds}; ours in {'fp32' if precision == '32' else precision}"
    )
    header = [
        "threads",
        "attention dropout",
        OURS,
        OURS_32,
        PEER_32,
        PEER_BF16,
        "ours / fp32",
        "ours / bf16",
        f"at least {AIM:g}",
    ]
    numbers = {
        "aim": AIM,
        "measurements": results,
        "steps_per_block": options.steps,
        "rounds": options.rounds,
    }
    return Answer(numbers, header, rows, title=title, precision=precision, seed=SEED, threads=options.threads)


main = Benchmark(
    "training_speed",
    "training speed, d=256: target tokens/s of ours over torch.nn.Transformer in a plain fp32 loop, same batches: at least 2",
    __doc__,
    [
        ("--threads", {"type": at_least_one, "nargs": "+", "default": [1, 2], "help": "(default: 1 2)"}),
        count_flag("--steps", 5, "steps, and batches, of a block"),
        count_flag("--rounds", 5, "timed blocks of each trainer"),
        (
            "--attention-dropout",
            {"type": float, "nargs": "+", "default": [0.1, 0.0], "help": "(default: 0.1 0.0)"},
        ),
        (
            "--precision",
            {"choices": ["auto", "32", "bf16"], "default": "auto", "help": "of ours (default: %(default)s)"},
        ),
        ("--worker", {"type": int, "default": 0, "help": argparse.SUPPRESS}),
    ],
    answer,
).main

if __name__ == "__main__":
    sys.exit(main())
