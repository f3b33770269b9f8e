"""Gates on a Hugging Face translation model in a training loop of one's own, then the model without its
closed heads, saved and read again.

    python examples/huggingface_loop.py FOLDER

A tiny Marian model with random weights learns to copy, so that it runs in seconds and without network; put
your own in its place.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # gates/ of this checkout; after `pip install` it is the package headgates

import headgates as hg

LENGTH, WORDS, PAD, EOS = 7, 37, 0, 2


def make_model() -> MarianMTModel:
    shape: dict[str, Any] = dict(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4
    )
    ids: dict[str, Any] = dict(
        dropout=0.0,
        vocab_size=WORDS,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
    )
    return MarianMTModel(
        MarianConfig(encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32, **shape, **ids)
    )


def make_batch(sentences: int = 16) -> dict[str, torch.Tensor]:
    source = torch.randint(3, WORDS, (sentences, LENGTH))
    return {"input_ids": source, "labels": source}


def train(steps: int = 60, lam: float = 0.02) -> MarianMTModel:
    """A model whose gates were learned beside its weights, without the heads that were closed."""
    model = make_model().train()
    bank = hg.attach(model, lam=lam, warmup=steps // 4)  # lambda grows: gates first learn which heads work
    optimizer = torch.optim.AdamW(bank.param_groups(lr=3e-3))
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(**make_batch()).loss + bank.loss(step)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {bank}")
    removed = hg.remove(model, bank)
    print(f"{removed.heads.count()} heads and {removed.parameters} parameters went")
    return model.eval()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/huggingface_loop.py FOLDER")
    torch.manual_seed(0)
    folder = hg.save_pruned(train(), sys.argv[1])
    again = hg.load_pruned(folder)
    print(again.generate(**{"input_ids": make_batch(2)["input_ids"]}, max_new_tokens=LENGTH))
