"""How fast do we train beside the fastest peer, Hugging Face's Marian, at three sizes?   The aim: 2 times, at
d=128, 256 and 512.

3+3 layers at d=128 and 256, 6+6 at 512, ffn 4d, 8 heads, tied vocabulary of 8,000, dropout 0.1 and none of
attention weights, label smoothing 0.1, AdamW, clipping; the batches of benchmarks/training_speed.py. All take
the same batches in turns. Before the clock starts the models are shown to compute the same: with the same
weights and no dropout equal losses and gradients. Torch's own modules stand in benchmarks/training_speed.py;
joeynmt, slower than Marian where it was measured, is not in this run.
"""

import argparse
import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Answer, Benchmark, count_flag
from benchmarks.training_speed import SEED, VOCAB, make_batches
from headgates.report.speed.measure import alternate, interval_text, median_and_range, ratio_by_round

if TYPE_CHECKING:
    from headgates.configs.schema import ModelConfig
    from headgates.data.batch import Batch

AIM = 2.0
OURS, OURS_32, PEER, PEER_32 = "ours", "ours fp32", "Marian bf16", "Marian fp32"


def sized(width: int, dropout: float) -> "ModelConfig":
    """The model of this width."""
    from headgates.configs.schema import ModelConfig

    layers = 6 if width >= 512 else 3
    sizes: dict[str, Any] = {
        "d_model": width,
        "ffn": 4 * width,
        "heads": 8,
        "encoder_layers": layers,
        "decoder_layers": layers,
    }
    return ModelConfig(**sizes, dropout=dropout, attention_dropout=0.0)


def check_parity(width: int, batch: "Batch") -> dict[str, float]:
    """Raises ValueError unless both models have, with the same weights, the same loss and gradient."""
    import torch

    from benchmarks.marian_peer import MarianLoop, marian, our_marian
    from benchmarks.product_step import product_step
    from headgates.configs.schema import StageConfig

    torch.manual_seed(SEED)
    theirs = marian(sized(width, 0.0), VOCAB)
    ours = our_marian(theirs)
    losses = [
        product_step(ours, StageConfig(), "32").module.training_step(batch, 0),
        MarianLoop(theirs, StageConfig(), bf16=False).loss(batch),
    ]
    for loss in losses:
        loss.backward()
    norms = [
        float(torch.nn.utils.get_total_norm([p.grad for p in m.parameters() if p.grad is not None]))
        for m in (ours, theirs)
    ]
    first, second = (float(loss.detach()) for loss in losses)
    if not (math.isclose(first, second, rel_tol=1e-5) and math.isclose(*norms, rel_tol=1e-3)):
        raise ValueError(
            f"ours and Marian do not compute the same: losses {first} and {second}, gradient norms {norms}"
        )
    return {
        "loss_ours": first,
        "loss_peer": second,
        "gradient_norm_ours": norms[0],
        "gradient_norm_peer": norms[1],
    }


def measure(width: int, batches: "list[Batch]", *, precision: str, rounds: int) -> dict[str, Any]:
    """Target tokens per second of each trainer, and the ratio of ours to the faster of the peer's two
    precisions."""
    import torch

    from benchmarks.marian_peer import MarianLoop, marian, our_marian
    from benchmarks.product_step import product_step
    from headgates.configs.schema import StageConfig

    parity, stage = check_parity(width, batches[0]), StageConfig(lr=1e-3, warmup_steps=10)
    torch.manual_seed(SEED)
    start = marian(sized(width, 0.1), VOCAB)

    def theirs(*, bf16: bool) -> MarianLoop:
        model = marian(sized(width, 0.1), VOCAB)
        model.load_state_dict(start.state_dict())
        return MarianLoop(model, stage, bf16=bf16)

    steps: dict[str, Any] = {
        OURS: product_step(our_marian(start), stage, precision),
        OURS_32: product_step(our_marian(start), stage, "32"),
        PEER: theirs(bf16=True),
        PEER_32: theirs(bf16=False),
    }
    if precision == "32":
        del steps[OURS_32], steps[PEER]  # the same as ours; and slower than fp32 on such a processor
    before = {name: float(step(batches[0])) for name, step in steps.items()}
    seconds = alternate({name: partial(step.block, batches) for name, step in steps.items()}, rounds=rounds)
    after = {name: float(step(batches[0])) for name, step in steps.items()}
    for name in steps:
        if not after[name] < before[name]:
            raise ValueError(
                f"{name} does not train at d={width}: loss {before[name]:.3f}, then {after[name]:.3f}"
            )
    tokens = sum(batch.target_tokens for batch in batches)
    speeds = {name: median_and_range([tokens / s for s in each]) for name, each in seconds.items()}
    fastest = max(
        (name for name in (PEER, PEER_32) if name in speeds), key=lambda name: speeds[name]["median"]
    )
    ratio = ratio_by_round(seconds[fastest], seconds[OURS])
    return {
        "d_model": width,
        "parity": parity,
        "tokens_per_second": speeds,
        "fastest_peer": fastest,
        "ratio": ratio,
    }


def answer(options: argparse.Namespace) -> Answer:
    from headgates.lightning_modules.precision import resolve_precision
    from headgates.models.cpu_kernels import bound_caches

    bound_caches()
    precision, batches = resolve_precision(options.precision), make_batches(options.steps)
    results = [
        measure(width, batches, precision=precision, rounds=options.rounds) for width in options.widths
    ]
    rows = []
    for result in results:
        speeds = result["tokens_per_second"]
        cells = [
            f"{speeds[name]['median']:,.0f}" if name in speeds else ""
            for name in (OURS, OURS_32, PEER, PEER_32)
        ]
        verdict = "yes" if result["ratio"]["median"] >= AIM else "no"
        rows.append([result["d_model"], *cells, interval_text(result["ratio"]), verdict])
    header = ["d", OURS, OURS_32, PEER, PEER_32, "ours / its faster one", f"at least {AIM:g}"]
    title = (
        f"target tokens/s, median of {options.rounds}; ours in {'fp32' if precision == '32' else precision}"
    )
    numbers = {
        "aim": AIM,
        "measurements": results,
        "steps_per_block": options.steps,
        "rounds": options.rounds,
    }
    return Answer(numbers, header, rows, title=title, precision=precision, seed=SEED)


main = Benchmark(
    "training_peers",
    "training speed at d=128, 256, 512: target tokens/s of ours over Hugging Face's Marian, same batches and weights: at least 2",
    __doc__,
    [
        (
            "--widths",
            {"type": int, "nargs": "+", "default": [128, 256, 512], "help": "(default: 128 256 512)"},
        ),
        count_flag("--steps", 5, "steps, and batches, of a block"),
        count_flag("--rounds", 5, "timed blocks of each trainer"),
        (
            "--precision",
            {"choices": ["auto", "32", "bf16"], "default": "auto", "help": "of ours (default: %(default)s)"},
        ),
    ],
    answer,
    peers=["transformers"],
).main

if __name__ == "__main__":
    sys.exit(main())
