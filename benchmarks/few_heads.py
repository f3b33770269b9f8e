"""What helps a model of few heads in the same number of steps: the base's probabilities, its hidden states,
or closing the heads little by little?

    python -m benchmarks.few_heads runs/multi30k-en-de-none-s1 --heads 9,6 --seeds 2

Every way closes heads in the order of optimal brain surgery, refits (out+ffn+v), and takes the same optimiser
steps on the same batches. What counts is the validation loss, and BLEU of greedy search. Ways:

    text         cross-entropy alone
    logits       half cross-entropy, half KL to the base's probabilities (--distill.weight 0.5)
    hidden       cross-entropy, and the mean squared difference of every layer's output from the base's, over
                 the mean square of the base's
    both         logits and hidden
    gradual      text, the heads closed in three steps of equal ratio, a third of the training after each
"""

import argparse
import copy
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.benchmark import Answer, Flag, count_flag, run
from benchmarks.gate_candidates import training_batches
from headgates.analysis.significance import score
from headgates.configs.scores import SCORES
from headgates.configs.source import SourceOptions
from headgates.configs.stages import DistillConfig
from headgates.data.batch import Batch
from headgates.gates import HeadMap, attach, detach, find_sites
from headgates.models.progress import say
from headgates.pruning.closing import Calibration, close_heads
from headgates.pruning.points import mean_loss
from headgates.pruning.scores import ScoreRequest, closed_by, compute_scores
from headgates.records.source import Source, open_source

CLOSING = "out+ffn+v"
WAYS = ("text", "logits", "hidden", "both", "gradual")
SMOOTHING = 0.1


@contextmanager
def states_of(model: Any) -> Iterator[list[Tensor]]:
    """The outputs of all layers, encoder first, of the passes within; cleared by the caller."""
    found: list[Tensor] = []
    layers: list[nn.Module] = [*model.encoder.layers, *model.decoder.layers]
    hooks = [layer.register_forward_hook(lambda _, __, output: found.append(output)) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def loss_of(
    way: str, source: Source, base: Any, batch: Batch, ours: list[Tensor], theirs: list[Tensor]
) -> Tensor:
    """Nats a target token; what hidden states differ by is added as it is."""
    model, task = source.model, source.task
    ours.clear()
    theirs.clear()
    if way in ("logits", "both"):
        loss = task.distilled_loss(model, base, batch, smoothing=SMOOTHING, distill=DistillConfig(weight=0.5))
    else:
        loss = task.loss(model, batch, smoothing=SMOOTHING)
        if way == "hidden":
            with torch.no_grad():
                task.loss(base, batch)
    loss = loss / batch.target_tokens
    if way in ("hidden", "both"):
        gaps = [(a - b).square().mean() / b.square().mean() for a, b in zip(ours, theirs, strict=True)]
        loss = loss + torch.stack(gaps).mean()
    return loss


def train(source: Source, base: Any, way: str, batches: Iterator[Batch], steps: int, rate: float) -> None:
    """AdamW, its rate falling to 0."""
    model = source.model
    weights = [each for name, each in model.named_parameters() if not name.startswith("head_gates.")]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    falls = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    model.train()
    with states_of(model) as ours, states_of(base) as theirs:
        for _, batch in zip(range(steps), batches, strict=False):
            loss = loss_of(way, source, base, batch, ours, theirs)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            falls.step()
    model.eval()


def shrunk(source: Source, closed: HeadMap, seed: int) -> None:
    """Close heads for good and refit; they stay closed while the model trains."""
    detach(source.model)
    close_heads(source.model, closed, CLOSING, Calibration(source, seed=seed))
    attach(source.model, gate="mask", xi=(~closed).map(lambda row: row.double()))


def trained(source: Source, base: Any, way: str, keep: int, seed: int, options: argparse.Namespace) -> None:
    order = options.order
    torch.manual_seed(seed)
    batches = training_batches(source, seed, options.tokens)
    total = sum(site.heads for site in find_sites(source.model))
    counts = [round(total * (keep / total) ** (k / 3)) for k in (1, 2, 3)] if way == "gradual" else [keep]
    for count in counts:
        detach(source.model)
        request = ScoreRequest(source, valid=source.lines("valid"), seed=seed)
        scores = compute_scores(SCORES[order], request)[SCORES[order].part]  # of the weights as they are now
        closed = closed_by(order, scores, keep=count, request=request)
        shrunk(source, closed, seed)
        train(
            source,
            base,
            "text" if way == "gradual" else way,
            batches,
            options.steps // len(counts),
            options.rate,
        )


def answer(options: argparse.Namespace) -> Answer:
    source = open_source(options.run, device="cpu", options=SourceOptions(data_dir=options.data_dir))
    valid = source.lines("valid")
    some = source.lines("valid", options.sentences)
    base = copy.deepcopy(source.model).eval().requires_grad_(False)
    before = copy.deepcopy(source.model.state_dict())
    rows: dict[str, dict[str, Any]] = {}
    counts = [*map(int, options.heads.split(","))]
    for keep in counts:
        for way in options.ways.split(","):
            for seed in range(1, options.seeds + 1):
                begin = time.process_time()
                trained(source, base, way, keep, seed, options)
                seconds = time.process_time() - begin
                outputs = source.task.outputs(source.predictor, some[0], quick=True)
                bleu = score(outputs, some[1], source.task.metrics[:1]).main
                loss = mean_loss(source, valid)
                rows[f"{way} {keep} s{seed}"] = {"loss": loss, "bleu": bleu, "seconds": seconds}
                say(f"{way}, {keep} heads, seed {seed}: {loss:.4f}, {bleu:.2f}, {seconds:.0f} s")
                detach(source.model)
                source.model.load_state_dict(before)
    cells = [
        [
            way,
            *(
                ", ".join(text(rows[f"{way} {keep} s{seed}"]) for seed in range(1, options.seeds + 1))
                for keep in counts
            ),
        ]
        for way in options.ways.split(",")
    ]
    settings = {name: getattr(options, name) for name in ("order", "steps", "rate", "tokens", "seeds")}
    return Answer(
        {"run": source.folder.path.name, **settings, "rows": rows},
        ["way", *(f"{keep} heads" for keep in counts)],
        cells,
        title=f"validation loss and BLEU of the first {len(some[0])} lines (greedy), by seed",
        seed=1,
    )


def text(row: dict[str, Any]) -> str:
    return f"{row['loss']:.3f} {row['bleu']:.2f}"


FLAGS: list[Flag] = [
    ("run", {"help": "the base"}),
    ("--data-dir", {"help": "folder with local copies of named corpora"}),
    ("--heads", {"default": "9,6", "help": "numbers of heads that stay open, comma-separated"}),
    ("--ways", {"default": ",".join(WAYS), "help": "some of them, comma-separated"}),
    ("--order", {"default": "obs", "help": "the score whose lowest heads close"}),
    ("--rate", {"type": float, "default": 1e-3, "help": "learning rate"}),
    count_flag("--steps", 160, "optimiser steps"),
    count_flag("--tokens", 3000, "tokens of a batch, padding counted"),
    count_flag("--sentences", 300, "validation lines that are translated"),
    count_flag("--seeds", 2, "seeds of samples and batches"),
]


if __name__ == "__main__":
    question = "What helps a model of few heads most in the same number of steps?"
    sys.exit(run("few_heads", question, __doc__ or "", FLAGS, answer))
