"""How fast do we train beside the fastest peer, Hugging Face's Marian? A part of `peers.py`.

3+3 layers at d=128 and 256, 6+6 at 512, ffn 4d, 8 heads, tied vocabulary of 8,000, dropout 0.1 and none of
attention weights. The peer has random weights, eager attention (its sdpa is slower on short sentences on a
CPU) and the plain loop of a tutorial: label-smoothed cross-entropy over whole logits, clipping, fused AdamW.
All take the same batches in turns, the peer in fp32 and bf16, or in one of them if it is twice as fast.
Before the clock starts, ours is shown to compute the same from the same weights: equal losses and gradient
norms. Beside the ratio stands how far ours is from the machine: a step's seconds over those of its products
alone, at the fastest product timed.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.product_step import product_step
from headgates.bridges.hf import MODEL_TYPES, our_settings, our_tensor
from headgates.configs.settings import ModelConfig, Settings, TextConfig
from headgates.configs.stages import StageConfig
from headgates.data.batch import Batch, collate
from headgates.data.batching import TokenBatches
from headgates.lab.measure import alternate, median_and_range, ratio_by_round
from headgates.lightning_modules.precision import resolve_precision
from headgates.models.multiply_adds import decoding
from headgates.models.transformer import Transformer
from headgates.pruning.runtime_cost import clock_of
from headgates.records.provenance import device_name

TRAINING_SEED, VOCABULARY_SIZE, PADDING = 1, 8000, 0
MAX_TOKENS = 2350  # of a batch, padding counted: about 2,000 target tokens
OURS, PEER, PEER_32 = "ours", "Marian bf16", "Marian fp32"


def make_batches(count: int) -> list[Batch]:
    """Batches of sentences of Multi30k's lengths, cut and padded as in training; words by Zipf's law."""
    rng, pairs = np.random.default_rng(TRAINING_SEED), 20_000
    source = np.clip(rng.normal(14, 4, pairs).round(), 3, 40).astype(int)
    target = np.clip((source + rng.normal(0, 2, pairs)).round(), 3, 40).astype(int)
    share = 1 / np.arange(10, VOCABULARY_SIZE + 6)  # ids 4 to V - 1
    words = rng.choice(
        np.arange(4, VOCABULARY_SIZE), size=int(source.sum() + target.sum()), p=share / share.sum()
    )
    pieces = iter(words.tolist())
    text = [
        (list(itertools.islice(pieces, int(s))), list(itertools.islice(pieces, int(t))))
        for s, t in zip(source, target, strict=True)
    ]
    sampler = TokenBatches(source + 1, target + 1, max_tokens=MAX_TOKENS, seed=TRAINING_SEED)
    return [
        collate([text[i] for i in chosen], chosen, tokens)
        for chosen, tokens in itertools.islice(sampler, count)
    ]


def marian(width: int, dropout: float) -> Any:
    """A MarianMTModel of our sizes. It needs the extra `hf`."""
    import transformers

    layers, heads, ffn = 6 if width >= 512 else 3, 8, 4 * width
    config: Any = transformers.MarianConfig  # whose types know no attn_implementation
    settings = config(
        vocab_size=VOCABULARY_SIZE,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PADDING,
        decoder_start_token_id=PADDING,
        max_position_embeddings=256,
        attn_implementation="eager",
    )
    return transformers.MarianMTModel(settings)


def our_marian(theirs: Any) -> Transformer:
    """Our model with the weights of a MarianMTModel, whose bias of the logits is no parameter."""
    family, vocab = MODEL_TYPES["marian"], theirs.config.vocab_size
    state = {name: tensor.detach().float() for name, tensor in theirs.state_dict().items()}
    config = our_settings(theirs.config, family, state)
    ours = Transformer(config, vocab, vocab)
    names = ours.state_dict()
    ours.load_state_dict({name: our_tensor(name, state, family, config, PADDING) for name in names})
    ours.output.bias.requires_grad_(False)
    return ours


class MarianLoop:
    """One optimiser step of the peer a call. bf16: under autocast."""

    def __init__(self, model: Any, stage: StageConfig, *, bf16: bool):
        self.model, self.stage, self.bf16 = model.train(), stage, bf16
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=stage.lr, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

    def loss(self, batch: Batch) -> Tensor:
        logits = self.model(
            input_ids=batch.source,
            attention_mask=batch.source != PADDING,
            decoder_input_ids=batch.target_in,
            use_cache=False,
        ).logits
        smoothing = self.stage.label_smoothing
        return F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_out.flatten(),
            ignore_index=PADDING,
            label_smoothing=smoothing,
        )

    def __call__(self, batch: Batch) -> Tensor:
        with torch.autocast(batch.source.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.stage.clip)
        self.optimizer.step()
        return loss.detach()

    def block(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self(batch)


def check_parity(width: int, batch: Batch) -> dict[str, list[float]]:
    """Raises ValueError unless both models have, with the same weights, the same loss and gradient."""
    torch.manual_seed(TRAINING_SEED)
    theirs = marian(width, 0.0)
    ours = our_marian(theirs)
    losses = [
        product_step(ours, StageConfig(), "32").module.training_step(batch, 0),
        MarianLoop(theirs, StageConfig(), bf16=False).loss(batch),
    ]
    for loss in losses:
        loss.backward()
    found = [float(loss.detach()) for loss in losses]
    norms = [
        float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        for model in (ours, theirs)
    ]
    if not (math.isclose(*found, rel_tol=1e-5) and math.isclose(*norms, rel_tol=1e-3)):
        raise ValueError(f"ours and Marian differ at d={width}: losses {found}, gradient norms {norms}")
    return {"losses": found, "gradient_norms": norms}


def peak(precision: str, clock: Callable[[], float]) -> float:
    """Multiply-adds per second of the fastest of eight products of 2,048 x 2,048 matrices."""
    x = torch.randn(2048, 2048, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    seconds = alternate({"product": lambda: x @ x}, rounds=8, clock=clock)["product"]
    return float(2048**3 / min(seconds))


def step_products(model: Transformer, batches: Sequence[Batch]) -> int:
    """Multiply-adds of the products of a step on each batch: forward, and twice as many backward. Padding of
    the output layer, which ours leaves out, is not counted."""
    total = 0
    for batch in batches:
        rows, length = batch.target_in.shape
        parts = decoding(model, source=batch.source.shape[1], steps=[length] * rows, beam=1)
        parts["output"] = batch.target_tokens * model.output.weight.numel()
        total += 3 * sum(parts.values())
    return total


def measure_width(width: int, batches: list[Batch], *, precision: str, rounds: int) -> dict[str, Any]:
    """Target tokens per second of each, and the ratio of ours to the faster of the peer's precisions."""
    parity, stage = check_parity(width, batches[0]), StageConfig(lr=1e-3, warmup_steps=10)
    torch.manual_seed(TRAINING_SEED)
    start = marian(width, 0.1)
    ours = our_marian(start)
    peers = {}
    for name in (PEER, PEER_32):
        model = marian(width, 0.1)
        model.load_state_dict(start.state_dict())
        peers[name] = MarianLoop(model, stage, bf16=name == PEER).block
    clock = clock_of(0)
    # a CPU without products in bf16 takes twenty times as long in it
    step = alternate({name: partial(peers[name], batches[:1]) for name in peers}, rounds=1, clock=clock)
    peers = {name: peers[name] for name in peers if step[name][0] < 2 * min(step.values())[0]}
    blocks = {OURS: partial(product_step(ours, stage, precision).block, batches)}
    blocks |= {name: partial(block, batches) for name, block in peers.items()}
    seconds = alternate(blocks, rounds=rounds, clock=clock)
    tokens = sum(batch.target_tokens for batch in batches)
    speeds = {name: median_and_range([tokens / s for s in each]) for name, each in seconds.items()}
    fastest = max(peers, key=lambda name: speeds[name]["median"])
    return {
        "d_model": width,
        "parity": parity,
        "tokens_per_second": speeds,
        "fastest_peer": fastest,
        "ratio": ratio_by_round(seconds[fastest], seconds[OURS]),
        "multiply_adds_per_token": step_products(ours, batches) / tokens,
        "peak": peak(precision, clock),
    }


def measure_training(widths: Sequence[int], *, steps: int, rounds: int) -> list[dict[str, Any]]:
    """`measure_width` of each, in the precision that training takes by itself, with how many times as long a
    step takes as its products."""
    width = max(widths)
    sizes = Settings(model=ModelConfig(d_model=width, ffn=4 * width), text=TextConfig(max_tokens=MAX_TOKENS))
    precision, batches = resolve_precision(sizes, device_name()), make_batches(steps)
    results = [measure_width(width, batches, precision=precision, rounds=rounds) for width in widths]
    # other work slows some of the products down, so the fastest of all widths is the machine's
    fastest = max(result["peak"] for result in results)
    for result in results:
        speed = result["tokens_per_second"][OURS]["median"]
        result["precision"] = precision
        result["times_the_products_at_peak"] = fastest / (result["multiply_adds_per_token"] * speed)
    return results
