"""How early is it decided which heads matter?   Michel et al. 2019, section 6.

After chosen epochs of the base's training, the heads of the model as it is validated (the running average of the weights, if there is one)
are pruned as in section 4.2, 0% to 90% of them, by an importance that is computed anew, and the validation text is translated greedily.
The training never notices: it goes on bit by bit as without, and its clock stands still meanwhile.
"""

import csv
import io
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytorch_lightning as pl

from analysis.importance import importance
from data.batch import Batch
from data.parallel import digest_lines
from gates import HeadMap, attach, detach
from lightning_modules.translation import TranslationModule
from models.progress import minutes, say
from models.translator import Translator
from pruning.greedy import lowest_closed
from pruning.significance import Scored, score
from runfolder.folder import RunFolder

NAME = "curves/dynamics"
TENTHS = range(10)  # of the heads, closed
# Of the CSV. closed_share: the share that was asked for; heads_closed is rounded up. valid_bleu_relative: valid_bleu over that of the same
# epoch with all heads, nothing where that is 0.
COLUMNS = {
    "epoch": int,
    "closed_share": float,
    "heads_closed": int,
    "heads_open": int,
    "heads_total": int,
    "valid_bleu": float,
    "valid_chrf": float,
    "valid_bleu_relative": float,
}
Row = dict[str, Any]
Lines = tuple[Sequence[str], Sequence[str]]  # source and reference


class Dynamics(pl.Callback):
    """Prunes after each of `epochs`, counted from 1: curves/dynamics.csv with its settings in .json, and scores/dynamics-EPOCH.json.

    batches: the training text for the importance, from its start at every call. facts: what made the numbers, for the JSON. Must stand
    before AverageWeights, which takes the averaged weights out again when the validation ends. Raises ValueError at an epoch that the
    training does not have, before it begins."""

    def __init__(
        self,
        folder: RunFolder,
        epochs: Iterable[int],
        *,
        batches: Callable[[], Iterable[Batch]],
        valid: Lines,
        facts: dict[str, Any],
    ):
        self.folder, self.epochs, self.batches, self.valid, self.facts = folder, sorted(set(epochs)), batches, valid, facts

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        last = trainer.max_epochs or 0
        wrong = [epoch for epoch in self.epochs if not 1 <= epoch <= last]
        if wrong:
            raise ValueError(f"dynamics: expected epochs from 1 to {last}, the last of this training, got {', '.join(map(str, wrong))}")

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # an epoch that an interruption cut short is trained again, and so pruned again
        rows = read_rows(self.folder)
        kept = [row for row in rows if row["epoch"] <= trainer.current_epoch]
        if trainer.is_global_zero and len(kept) < len(rows):
            write_rows(self.folder, kept)

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch not in self.epochs or trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(module, TranslationModule)
        begin = time.perf_counter()
        scores = importance(module.model, self.batches())
        pruned = prune(module.translator, scores, self.valid)
        whole = pruned[0][1]
        rows = [
            {
                "epoch": epoch,
                "closed_share": tenth / 10,
                "heads_closed": closed,
                "heads_open": scores.heads_total - closed,
                "heads_total": scores.heads_total,
                "valid_bleu": scored.bleu,
                "valid_chrf": scored.chrf,
                "valid_bleu_relative": scored.bleu / whole.bleu if whole.bleu else None,
            }
            for tenth, (closed, scored) in zip(TENTHS, pruned, strict=True)
        ]
        self.folder.write_json(f"scores/dynamics-{epoch}.json", scores.to_json())
        self.folder.write_json(f"{NAME}.json", self.record(module.translator, scores, whole))
        write_rows(self.folder, read_rows(self.folder) + rows)
        kept = ", ".join(f"{row['closed_share']:.0%} closed {row['valid_bleu']:.1f}" for row in rows[1::2])
        say(f"dynamics: epoch {epoch}: validation BLEU {whole.bleu:.1f}; {kept} ({minutes(time.perf_counter() - begin)})")

    def record(self, translator: Translator, scores: HeadMap, whole: Scored) -> dict[str, Any]:
        """Settings and provenance."""
        search = translator.search
        return {
            "epochs": self.epochs,
            "weights": "as validated",
            "importance": {"absolute": "sentence", "normalise": "l2", "computed": "anew after each epoch"},
            "kinds": list(scores.by_kind()),
            "search": {"beam": 1, "max_ratio": search.max_ratio, "max_extra": search.max_extra},
            "valid_sentences": len(self.valid[0]),
            "valid_digest": digest_lines(*self.valid),
            "signatures": whole.signatures,
            **self.facts,
        }


def prune(translator: Translator, scores: HeadMap, valid: Lines) -> list[tuple[int, Scored]]:
    """For every tenth of the heads how many are closed, rounded up as in the paper's code, and the scores of the greedy translations."""
    total = scores.heads_total
    bank = attach(translator.model, gate="mask")
    pruned = []
    try:
        for tenth in TENTHS:
            count = -(-total * tenth // 10)
            bank.assign(~lowest_closed(scores, keep=total - count, l2_per_layer=True))
            pruned.append((count, score(translator.translate(valid[0], beam=1), valid[1])))
    finally:
        detach(translator.model)
    return pruned


def read_rows(folder: RunFolder) -> list[Row]:
    """The rows of curves/dynamics.csv as numbers; none where there is no such file."""
    if not (folder / f"{NAME}.csv").is_file():
        return []
    with (folder / f"{NAME}.csv").open(encoding="utf-8", newline="") as file:
        return [{name: kind(row[name]) if row[name] else None for name, kind in COLUMNS.items()} for row in csv.DictReader(file)]


def write_rows(folder: RunFolder, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    folder.write_text(f"{NAME}.csv", text.getvalue())
