"""One tiny model of each kind of architecture, with random weights, and batches with labels for it."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

Made = tuple[Any, list[dict[str, Tensor]]]


def ids(draw: torch.Generator) -> Tensor:
    return torch.randint(3, 31, (4, 7), generator=draw)


def text(draw: torch.Generator) -> dict[str, Tensor]:
    words = ids(draw)
    return {"input_ids": words, "labels": words}


def image(draw: torch.Generator) -> dict[str, Tensor]:
    pixels = torch.randn(4, 3, 8, 8, generator=draw)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (4,), generator=draw)}


def sound(draw: torch.Generator) -> dict[str, Tensor]:
    return {"input_features": torch.randn(4, 8, 12, generator=draw), "labels": ids(draw)}


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=31,
        num_labels=31,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.2,
    )
    return transformers.BertForTokenClassification(config)


def gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=31,
        n_embd=16,
        n_layer=2,
        n_head=4,
        n_inner=48,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(
        vocab_size=31, d_model=16, d_kv=4, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config)


def whisper() -> Any:
    config = transformers.WhisperConfig(
        vocab_size=31,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=6,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=8,
        patch_size=4,
        num_labels=5,
        initializer_range=0.2,
    )
    return transformers.ViTForImageClassification(config)


def swin() -> Any:
    """Two stages, whose layers differ in width."""
    config = transformers.SwinConfig(
        image_size=8,
        patch_size=2,
        window_size=2,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[4, 4],
        mlp_ratio=3.0,
        num_labels=5,
        initializer_range=0.2,
    )
    return transformers.SwinForImageClassification(config)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[torch.Generator], dict[str, Tensor]]]] = {
    "bert": (bert, text),
    "gpt2": (gpt2, text),
    "t5": (t5, text),
    "llama": (llama, text),
    "whisper": (whisper, sound),
    "vit": (vit, image),
    "swin": (swin, image),
}


def made(name: str) -> Made:
    """The model, in evaluation mode, and four batches, of which one is held out."""
    model, batch = MODELS[name]
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    return model().eval(), [batch(draw) for _ in range(4)]
