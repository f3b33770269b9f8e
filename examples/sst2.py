"""A sentence encoder learns sentiment in Hugging Face's `Trainer`, and on the way which 24 of its 72 heads it
needs; the others are removed.

    python -m examples.sst2 TEXT FOLDER [MODEL]

TEXT holds train.tsv.gz and dev.tsv.gz, each line a label (0 or 1), a tab and a sentence. MODEL is a folder or
a name on the hub, all-MiniLM unless given. The pruned model lies in FOLDER/pruned
afterwards.
"""

import gzip
import sys
from typing import Any

import transformers

import headgates as hg

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def accuracy(predicted: Any) -> dict[str, float]:
    logits, labels = predicted
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def train(text: str, folder: str, name: str = MINILM, *, heads: int = 24) -> dict[str, float]:
    """Train, prune, save to folder/pruned; the accuracy on the dev sentences of the model that was saved."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)

    def read(part: str) -> list[dict[str, Any]]:
        with gzip.open(f"{text}/{part}.tsv.gz", "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t", 1) for line in file]
        return [{**tokenizer(sentence, truncation=True), "labels": int(label)} for label, sentence in rows]

    options = {"learning_rate": 1e-4, "per_device_train_batch_size": 32, "save_strategy": "no"}
    trainer = transformers.Trainer(
        model=transformers.AutoModelForSequenceClassification.from_pretrained(name, num_labels=2),
        args=transformers.TrainingArguments(folder, **options),
        train_dataset=read("train"),
        eval_dataset=read("dev"),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[hg.hf.HeadGates(heads=heads, save=f"{folder}/pruned")],
    )
    trainer.train()
    return trainer.evaluate()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python -m examples.sst2 TEXT FOLDER [MODEL]")
    print(train(*sys.argv[1:]))
