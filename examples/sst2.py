"""A sentence encoder learns sentiment in Hugging Face's `Trainer`, and on the way which 24 of its 72 heads it
needs; the others are removed.

    python examples/sst2.py TEXT FOLDER [MODEL]

TEXT holds train.tsv.gz and dev.tsv.gz, each line a label (0 or 1), a tab and a sentence. MODEL is a folder or
a name on the hub, sentence-transformers/all-MiniLM-L6-v2 unless given. The pruned model lies in FOLDER/pruned
afterwards.
"""

import csv
import gzip
import sys
from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # gates/ of this checkout; after `pip install` it is the package headgates

import headgates as hg


def accuracy(predicted: Any) -> dict[str, float]:
    logits, labels = predicted
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def train(text: Path, folder: Path, name: str, *, heads: int = 24, epochs: int = 3) -> dict[str, float]:
    """Train, prune, save to folder/pruned; the accuracy on the dev sentences of the model that was saved."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)

    def read(part: str) -> list[dict[str, Any]]:
        with gzip.open(text / f"{part}.tsv.gz", "rt", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return [{**tokenizer(sentence, truncation=True), "labels": int(label)} for label, sentence in rows]

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            str(folder),
            num_train_epochs=epochs,
            learning_rate=1e-4,
            per_device_train_batch_size=32,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=read("train"),
        eval_dataset=read("dev"),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[hg.hf.HeadGates(heads=heads, save=folder / "pruned")],
    )
    trainer.train()
    return trainer.evaluate()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python examples/sst2.py TEXT FOLDER [MODEL]")
    default = "sentence-transformers/all-MiniLM-L6-v2"
    print(train(Path(sys.argv[1]), Path(sys.argv[2]), [*sys.argv, default][3]))
