"""How early is it decided which heads matter?   Michel et al. 2019, section 6.

After chosen epochs of the base's training, 0% to 90% of the heads are closed as in section 4.2, by an
importance that is computed anew, and the validation text is translated greedily. The model is the one that is
validated, with the running average of its weights if there is one. The training is not changed by this: its
weights stay the same bit by bit, and the time is not counted as training time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl

from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.significance import Scored, score
from headgates.data import ranks
from headgates.data.corpus import TranslationData
from headgates.data.text import digest_lines
from headgates.gates import HeadMap, Subnet
from headgates.lightning_modules.module import StageModule
from headgates.lightning_modules.stage_callback import Watcher
from headgates.models.progress import minutes, say
from headgates.pruning.scores import closed_by
from headgates.records.folder import RunFolder
from headgates.records.source import BATCH_TOKENS, Lines
from headgates.records.table import TableRow, read_table, write_table

CURVE_NAME = "curves/dynamics"
TABLE = f"{CURVE_NAME}.csv"
TENTHS = range(10)  # of the heads, closed
# Columns of the CSV: epoch; closed_share, as requested; heads_closed, rounded up; heads_open; heads_total;
# the metrics on validation,
# such as valid_bleu; and valid_bleu_relative: the deciding metric divided by its value with all heads at this
# epoch, empty where that is 0.


@dataclass(eq=False)
class Dynamics(Watcher):
    """Prunes after each of `epochs`, counted from 1: curves/dynamics.csv with its settings in .json, and
    scores/dynamics-EPOCH.json.

    data: whose training pairs the importance is taken over. facts: what made the numbers, for the JSON."""

    folder: RunFolder
    epochs: Sequence[int]
    data: TranslationData
    valid: Lines
    facts: dict[str, Any]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # an epoch that an interruption cut short is trained again, and so pruned again
        rows = read_rows(self.folder)
        kept = [row for row in rows if row["epoch"] <= trainer.current_epoch]
        if len(kept) < len(rows):
            write_table(self.folder, TABLE, kept)

    def on_validated(self, trainer: pl.Trainer, module: StageModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch not in self.epochs:
            return
        begin = time.perf_counter()
        scores = raw_importance(
            module.model, self.data.batches("train", BATCH_TOKENS), loss=module.task.loss, ranks=ranks
        )
        pruned, total = prune_by_tenths(module, scores, self.valid), scores.heads_total
        whole = pruned[0][1]
        rows: list[TableRow] = [
            {
                "epoch": epoch,
                "closed_share": tenth / 10,
                "heads_closed": closed,
                "heads_open": total - closed,
                "heads_total": total,
                **{f"valid_{name}": value for name, value in scored.values.items()},
                f"valid_{whole.main_name}_relative": scored.main / whole.main if whole.main else None,
            }
            for tenth, (closed, scored) in enumerate(pruned)
        ]
        self.folder.write_json(f"scores/dynamics-{epoch}.json", scores.to_json())
        about = {
            "epochs": self.epochs,
            "kinds": list(scores.by_kind()),
            **module.task.prediction_settings(module.predictor, quick=True),
            "quick": True,  # outputs are made the quickest way, translations greedily
            "valid_sentences": len(self.valid[0]),
            "valid_digest": digest_lines(*self.valid),
            "signatures": whole.signatures,
            **self.facts,
        }
        self.folder.write_json(f"{CURVE_NAME}.json", about)
        write_table(self.folder, TABLE, read_rows(self.folder) + rows)
        kept = ", ".join(f"{tenth}0% closed {pruned[tenth][1].main:.1f}" for tenth in TENTHS[1::2])
        say(
            f"dynamics: epoch {epoch}: validation {whole.metrics[0].title} {whole.main:.1f}; {kept} "
            f"({minutes(time.perf_counter() - begin)})"
        )


def prune_by_tenths(module: StageModule, scores: HeadMap, valid: Lines) -> list[tuple[int, Scored]]:
    """For every tenth of the heads how many are closed, rounded up as in the paper's code, and the scores of
    the quickest outputs."""
    total, task, pruned = scores.heads_total, module.task, []
    for tenth in TENTHS:
        count = -(-total * tenth // 10)
        closed = closed_by("importance", scores, keep=total - count)
        with Subnet.of(module.model).without(closed).closed(module.model):
            outputs = task.outputs(module.predictor, valid[0], quick=True)
        pruned.append((count, score(outputs, valid[1], task.metrics, valid[0])))
    return pruned


def read_rows(folder: RunFolder) -> list[TableRow]:
    """The rows of curves/dynamics.csv as numbers; none where there is no such file."""
    return read_table(folder, TABLE) if (folder / TABLE).is_file() else []
