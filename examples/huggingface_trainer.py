"""Gates on a Hugging Face translation model under Hugging Face's `Trainer`.   Needs the package accelerate,
as `Trainer` does.

python examples/huggingface_trainer.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # gates/ of this checkout; after `pip install` it is the package headgates

import headgates as hg
from examples.huggingface_loop import make_batch, make_model
from headgates.gates import GateBank


class GatedTrainer(Trainer):
    """Adds the price of the open heads to the loss."""

    def __init__(self, bank: GateBank, **options: Any):
        super().__init__(**options)
        self.bank = bank

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        result = super().compute_loss(model, inputs, *args, **options)
        if not model.training:
            return result
        price = self.bank.loss(self.state.global_step)
        return (result[0] + price, *result[1:]) if isinstance(result, tuple) else result + price


def train(folder: str | Path, steps: int = 60, lam: float = 0.02) -> Path:
    """Train with gates, remove the heads that were closed, and write the model to folder/pruned."""
    model = make_model()
    bank = hg.attach(model, lam=lam, warmup=steps // 4)
    batch = make_batch(256)
    sentences = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["labels"]))]
    trainer = GatedTrainer(
        bank,
        model=model,
        args=TrainingArguments(
            str(folder),
            max_steps=steps,
            per_device_train_batch_size=16,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=sentences,
        optimizers=(
            torch.optim.AdamW(bank.param_groups(lr=3e-3)),
            None,
        ),  # the gates learn faster than the weights
    )
    trainer.train()
    hg.remove(model, bank)
    return hg.save_pruned(model, Path(folder) / "pruned")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/huggingface_trainer.py FOLDER")
    torch.manual_seed(0)
    print(train(sys.argv[1]))
