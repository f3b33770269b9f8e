"""A small model with prime sizes whose every weight, bias and norm is random, and a padded batch for it."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from headgates.configs.settings import ModelConfig
from headgates.models.transformer import Transformer

SMALL = {
    "d_model": 21,
    "heads": 3,
    "ffn": 13,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
    "embeddings": "tied-decoder",
}
# settings that models of other libraries have: each family's together, and what no family has
LIBRARIES = {
    "as Marian": {
        "norm": "post",
        "positions": "sinusoidal-halves",
        "activation": "swish",
        "output_bias": True,
        "d_model": 24,
    },
    "as BART": {
        "norm": "post",
        "positions": "learned",
        "activation": "gelu",
        "embedding_norm": True,
        "embedding_scale": False,
    },
    "as M2M100": {
        "positions": "tensor2tensor",
        "first_position": 2,
        "decoder_ffn": 17,
        "d_model": 24,
        "decoder_heads": 1,
    },
    "as T5": {
        "norm_kind": "rms",
        "biases": False,
        "positions": "relative",
        "position_buckets": 8,
        "position_reach": 7,
        "feed_forward": "gated",
        "activation": "gelu_new",
        "head_width": 5,
        "embedding_scale": False,
        "output_bias": True,
    },
    "pre, post": {"decoder_norm": "post", "final_norm": "none", "norm_eps": 1e-3, "decoder_ffn": 7},
    "post, pre": {
        "norm": "post",
        "decoder_norm": "pre",
        "final_norm": "decoder",
        "embedding_norm": True,
        "output_bias": True,
    },
}
Model = TypeVar("Model", bound=nn.Module)


def stirred(model: Model, amount: float) -> Model:
    """The model in evaluation mode, normal noise added to all its parameters: zero biases would hide what is
    done to them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=amount)
    return model.eval()


@pytest.fixture
def make_model() -> Callable[..., Transformer]:
    """make_model(seed, heads=7, ...) -> the small model with these settings of ModelConfig."""

    def make(seed: int = 0, **settings) -> Transformer:
        torch.manual_seed(seed)
        return stirred(
            Transformer(ModelConfig(**{**SMALL, **settings}), source_vocab=23, target_vocab=19), 0.2
        )

    return make


@pytest.fixture
def model(make_model) -> nn.Module:
    return make_model()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Sources (3, 7) and target inputs (3, 5), both with padding."""
    source = torch.tensor([[7, 5, 11, 4, 9, 13, 2], [8, 6, 22, 2, 0, 0, 0], [12, 4, 4, 17, 2, 0, 0]])
    target_in = torch.tensor([[1, 5, 7, 0, 0], [1, 18, 4, 9, 11], [1, 6, 0, 0, 0]])
    return source, target_in
