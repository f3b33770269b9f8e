"""Which precision trains faster on this machine: measured once for a size of model and kept in the user's
cache folder, since a CPU that has bf16 may still be slower in it."""

import hashlib
import json
import platform
import time
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypedDict

import torch
import torch.nn.functional as F

from headgates.configs.json_file import load_json
from headgates.configs.settings import ModelConfig, Settings
from headgates.data import ranks
from headgates.data.atomic_file import atomic_file
from headgates.data.cache import cache_folder
from headgates.models.loss import linear_cross_entropy
from headgates.models.progress import Report
from headgates.models.transformer import Transformer

Precision = Literal["32", "bf16"]
# how much faster a step must be in bf16, which rounds more, to be taken; timings of small ones scatter by .1
GAIN_MARGIN = 1.2
LEAST_SECONDS = 1.0  # of a measurement, and a pair of steps at least
LARGEST_STEP = 5e10  # multiply-adds, about, of the largest step that is measured
LEAST_TOKENS = 1000  # of it; with fewer, casts and preparations weigh more than in training
LENGTH = 20  # tokens of its sentences


def resolve_precision(config: Settings, machine: str, report: Report = lambda text: None) -> Precision:
    """'32' or 'bf16'. auto: bf16 on GPUs from Ampere on, and on CPUs where a training step of such a model
    was timed faster in it. Every process of a run takes what the first one measured. machine: its name for
    users, by which the measurement is kept; report: takes a line on what was found."""
    if config.precision != "auto":
        return config.precision
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "32"
    gain = ranks.first(lambda: known_gain(config, machine))
    precision: Precision = "bf16" if gain > GAIN_MARGIN else "32"
    report(
        f"precision: {precision}, because a training step in bf16 has {gain:.2f} times the speed of fp32 for "
        "such a model on this machine (measured once)"
    )
    return precision


class Gain(TypedDict):
    gain: float


def known_gain(config: Settings, machine: str) -> float:
    """`bf16_gain`, measured unless it was before, with the same sizes, processor, threads and torch."""
    model, text = shallow(config.model), config.text
    sizes = [model.d_model, model.ffn, model.heads, text.vocab_size, text.max_tokens, model.decoder_mixer]
    sizes += model.encoder_layers, model.decoder_layers
    made_by = [machine, platform.node(), torch.get_num_threads(), torch.__version__, *sizes]
    name = hashlib.sha256(json.dumps(made_by).encode()).hexdigest()[:20]
    path = cache_folder() / f"precision/{name}.json"
    with suppress(OSError, ValueError):
        return load_json(path, Gain, cure="")["gain"]
    gain = bf16_gain(config)
    with suppress(OSError):  # a cache that is read-only costs a second only
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as draft:
            draft.write(json.dumps({"gain": gain, "machine": machine}).encode())
    return gain


def bf16_gain(config: Settings) -> float:
    """How many times as fast as in fp32 a training step is under autocast to bf16: forward, loss and
    gradients of the configuration's model, of two layers a side at most, on as many tokens as a batch has.
    Batches of training have few shapes (`Batch.square`), so products are prepared before the clock starts."""
    small = product_seconds(torch.float32) / product_seconds(torch.bfloat16)
    if small < 0.2:  # emulated: a step would take seconds
        return small
    vocab = config.text.vocab_size
    with torch.random.fork_rng(devices=[]):
        model = Transformer(shallow(config.model), vocab, vocab)
        weights = sum(weight.numel() for weight in model.parameters())
        tokens = min(config.text.max_tokens, max(LEAST_TOKENS, int(LARGEST_STEP / (3 * weights))))
        ids = torch.randint(vocab, (max(1, tokens // LENGTH), LENGTH))
        pairs, begin = list[tuple[float, float]](), time.perf_counter()
        while len(pairs) < 3 or time.perf_counter() - begin < LEAST_SECONDS:
            pairs.append((step_seconds(model, ids, bf16=False), step_seconds(model, ids, bf16=True)))
    # in turns; the first prepares the products, the least is the undisturbed
    fp32, bf16 = (min(seconds) for seconds in zip(*pairs[1:], strict=True))
    return fp32 / bf16


def shallow(model: ModelConfig) -> ModelConfig:
    """Of two layers a side at most."""
    return replace(
        model, encoder_layers=min(2, model.encoder_layers), decoder_layers=min(2, model.decoder_layers)
    )


def step_seconds(model: Transformer, ids: torch.Tensor, *, bf16: bool) -> float:
    begin = time.perf_counter()
    # without a cache of cast weights, as Lightning has it
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
        memory, bias = model.encode(ids)
        hidden = model.decode(memory, bias, ids)
        loss = linear_cross_entropy(
            hidden, model.output.weight, ids, padding=model.target_specials.padding, smoothing=0.1
        )
    loss.backward()
    model.zero_grad()
    return time.perf_counter() - begin


def product_seconds(dtype: torch.dtype) -> float:
    """Of three small products that are prepared already; the fastest of several, as other work may interrupt
    one."""
    x, w = torch.ones(128, 256, dtype=dtype), torch.ones(512, 256, dtype=dtype)
    seconds = list[float]()
    for _ in range(6):
        begin = time.perf_counter()
        y = F.linear(x, w)  # (128, 512)
        _ = y @ w, y.t() @ x
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
