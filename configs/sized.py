"""Settings for text of one's own, by its number of training pairs. The defaults of `settings.py` suit the toy
language."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headgates.configs.cli import flat, from_dict
from headgates.configs.fields import to_dict
from headgates.configs.settings import Settings


@dataclass(frozen=True)
class Size:
    """What suits text of fewer than `below` training pairs. seen: pairs of all epochs together; epochs: how
    few and how many there are at least and at most."""

    below: float
    seen: int
    epochs: tuple[int, int]
    settings: dict[str, Any]


PAIR_TOKENS = 25  # about so many has the longer side of a pair
LARGEST_WARMUP = 0.2  # of the steps of training
SIZES = (
    Size(
        10_000,
        seen=160_000,
        epochs=(10, 40),
        settings={
            "model": {"dropout": 0.3},
            "text": {"vocab_size": 2000, "max_tokens": 1000},
            "train": {"warmup_steps": 200},
        },
    ),
    Size(
        200_000,  # as configs/multi30k.yaml
        seen=800_000,
        epochs=(4, 34),
        settings={
            "model": {"encoder_layers": 3, "decoder_layers": 3, "dropout": 0.15},
            "text": {"vocab_size": 8000, "max_tokens": 3000},
            "train": {"warmup_steps": 800, "average": 0.998},
            "finetune": {"lr": 5e-4},
        },
    ),
    Size(
        1_000_000,  # the model of configs/multi30k-256.yaml, in larger batches
        seen=4_000_000,
        epochs=(4, 20),
        settings={
            "model": {"d_model": 256, "ffn": 1024, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.15},
            "text": {"vocab_size": 16_000, "max_tokens": 6000},
            "train": {"lr": 2e-3, "warmup_steps": 2000, "average": 0.998},
            "finetune": {"lr": 4e-4},
        },
    ),
    Size(
        float("inf"),  # the base model of Vaswani et al. 2017, in batches of 24,000 tokens
        seen=20_000_000,
        epochs=(3, 20),
        settings={
            "model": {"d_model": 512, "ffn": 2048, "encoder_layers": 6, "decoder_layers": 6, "dropout": 0.1},
            "text": {"vocab_size": 32_000, "max_tokens": 8000},
            "train": {"accumulate": 3, "lr": 7e-4, "warmup_steps": 4000, "average": 0.998},
            "finetune": {"lr": 2e-4},
        },
    ),
)


OTHER_PIECES = 100  # than single characters, at least


def suited(
    settings: Settings, pairs: int, given: Collection[str], *, characters: int = 0
) -> tuple[Settings, dict[str, Any]]:
    """The settings for so many training pairs, and those that were chosen, by dotted name. given: the names
    that flags or files set, which stay. characters: different ones in the text, each of which is a piece."""
    size = next(each for each in SIZES if pairs < each.below)
    least, most = size.epochs
    chosen = flat(size.settings)
    chosen["train.epochs"] = min(most, max(least, round(size.seen / pairs)))
    # a small text has no more pieces to give
    chosen["text.vocab_size"] = min(chosen["text.vocab_size"], max(300, pairs // 200 * 100))
    chosen["text.vocab_size"] = max(chosen["text.vocab_size"], characters + OTHER_PIECES)
    chosen = {name: value for name, value in chosen.items() if name not in given}
    before = flat(to_dict(settings))
    if "train.warmup_steps" in chosen:
        steps = expected_steps(from_dict(Settings, before | chosen), pairs)
        chosen["train.warmup_steps"] = min(chosen["train.warmup_steps"], int(LARGEST_WARMUP * steps))
    return from_dict(Settings, before | chosen), chosen


def expected_steps(settings: Settings, pairs: int) -> int:
    """About how many steps the training of a base takes on so many pairs."""
    tokens = settings.text.max_tokens * settings.train.accumulate
    return settings.train.epochs * max(1, pairs * PAIR_TOKENS // tokens)
