"""Gates on a Hugging Face translation model under Hugging Face's `Trainer`.   Needs the package accelerate,
as `Trainer` does.

python examples/huggingface_trainer.py FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # gates/ of this checkout; after `pip install` it is the package headgates

import headgates as hg
from examples.huggingface_loop import make_batch, make_model


def train(folder: str | Path, steps: int = 60, heads: int = 8) -> Path:
    """Train with gates, remove all heads but so many, and write the model to folder/pruned."""
    batch, pruned = make_batch(256), Path(folder) / "pruned"
    sentences = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["labels"]))]
    trainer = Trainer(
        model=make_model(),
        args=TrainingArguments(
            str(folder),
            max_steps=steps,
            learning_rate=3e-3,
            per_device_train_batch_size=16,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=sentences,
        callbacks=[hg.hf.HeadGates(heads=heads, save=pruned)],
    )
    trainer.train()
    return pruned


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/huggingface_trainer.py FOLDER")
    torch.manual_seed(0)
    print(train(sys.argv[1]))
