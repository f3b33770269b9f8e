"""The comparison: every system translates the same test set; differences are given against the better of the two bases.

A row holds BLEU and chrF with signatures, intervals and p-values by paired bootstrap, heads, parameters and speed.
"""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.fields import to_dict
from configs.schema import SearchConfig
from data.parallel import digest_lines
from gates import HeadMap, heads_left
from models.progress import say
from models.translator import Translator
from pruning.significance import Scored, compare, resample_counts, score
from runfolder.folder import RunFolder
from runfolder.source import open_source

RESAMPLES = 1000
BINARISING_GAP = 0.3  # BLEU between soft and exact gates above which the user is warned


class Evaluation:
    """Rows of one run's comparison, written as they come.   test: source and reference lines."""

    def __init__(self, folder: RunFolder, test: tuple[Sequence[str], Sequence[str]], search: SearchConfig):
        self.folder, self.test, self.search = folder, test, search
        self.rows: list[dict[str, Any]] = []
        self.scored: dict[str, Scored] = {}
        self.counts = resample_counts(len(test[0]), RESAMPLES)
        self.reference: str | None = None

    def settings(self) -> dict[str, Any]:
        """What a translation depends on beside the model."""
        return {"search": to_dict(self.search), "sentences": len(self.test[0]), "test_digest": digest_lines(*self.test)}

    def add(self, system: str, translator: Translator, open_heads: HeadMap | None, **facts: Any) -> dict[str, Any]:
        """Translate, score, and write the hypotheses. open_heads: of the gated sites, numbered as before any removal; in
        others all heads that are there are open."""
        begin = time.perf_counter()
        hypotheses = translator.translate(self.test[0])
        seconds = time.perf_counter() - begin
        by_kind: dict[str, int] = {}
        there = heads_left(translator.model)  # False where a head was removed
        for site, row_there in there.items():
            is_open = row_there & open_heads[site].bool() if open_heads is not None and site in open_heads else row_there
            by_kind[site.kind] = by_kind.get(site.kind, 0) + int(is_open.sum())
        total = there.heads_total
        parameters = sum(p.numel() for name, p in translator.model.named_parameters() if not name.startswith("head_gates."))
        row = {
            "system": system,
            "heads_open": sum(by_kind.values()),
            "heads_total": total,
            "heads_by_kind": by_kind,
            "heads_by_site": open_heads.by_site() if open_heads is not None else None,
            "parameters": parameters,
            "sentences_per_second": len(self.test[0]) / seconds,
            "evaluation": self.settings(),
            **facts,
        }
        self.folder.write_text(f"hypotheses/{system}.txt", "".join(line + "\n" for line in hypotheses))
        self.take(row, hypotheses)
        say(f"{system}: {row['heads_open']} of {total} heads, BLEU {row['bleu']:.2f}")
        return row

    def take(self, row: dict[str, Any], hypotheses: Sequence[str]) -> None:
        scored = score(hypotheses, self.test[1])
        self.scored[row["system"]] = scored
        row |= {"bleu": scored.bleu, "chrf": scored.chrf}
        row |= {f"{name}_signature": signature for name, signature in scored.signatures.items()}
        self.rows.append(row)
        if self.reference is not None:
            self.against_reference(row)

    def borrow(self, system: str, run: RunFolder) -> None:
        """The row and hypotheses of a base run; translated anew if they were made with other settings."""
        result = run.result() or {"rows": []}
        for row in result["rows"]:
            if row["system"] == system and row["evaluation"] == self.settings():
                text = (run / f"hypotheses/{system}.txt").read_bytes().decode()  # read_text would make a line end of "\r"
                self.folder.write_text(f"hypotheses/{system}.txt", text)
                self.folder.add_system(system, run / "best.pt", None)
                clean = {key: value for key, value in row.items() if "p_value" not in key and "difference" not in key and "ci95" not in key}
                self.take(clean, text.split("\n")[:-1])
                return
        translator = open_source(run.path, system).translator
        translator.search = self.search
        self.folder.add_system(system, run / "best.pt", None)
        stage: dict[str, Any] = next((row["stage"] for row in result["rows"] if row["system"] == system), {})
        self.add(system, translator, None, stage=stage)

    def differing(self, system: str, other: str) -> int:
        """How many lines two systems translate differently."""
        ours, theirs = ((self.folder / f"hypotheses/{name}.txt").read_bytes().split(b"\n") for name in (system, other))
        return sum(a != b for a, b in zip(ours, theirs, strict=True))

    def repeat(self, system: str, other: str, weights: Path, xi: HeadMap | None = None, *, because: str) -> None:
        """A row for a system that is the same model as another of this run."""
        row = next(row for row in self.rows if row["system"] == other)
        text = (self.folder / f"hypotheses/{other}.txt").read_bytes().decode()
        self.folder.write_text(f"hypotheses/{system}.txt", text)
        self.folder.add_system(system, weights, None if xi is None else xi.to_json())
        self.take({**row, "system": system, "same_as": other}, text.split("\n")[:-1])
        say(f"{system}: {because}, so it is {other}, BLEU {row['bleu']:.2f}")

    def choose_reference(self) -> None:
        """The base with the lower full-validation loss is what every row is compared with."""
        bases = [row for row in self.rows if row["system"].startswith("base")]
        self.reference = min(bases, key=lambda row: min(row["stage"]["losses"]))["system"]
        for row in self.rows:
            self.against_reference(row)

    def against_reference(self, row: dict[str, Any]) -> None:
        assert self.reference is not None
        found = compare(self.scored[row["system"]], self.scored[self.reference], self.counts)
        row |= {"reference": self.reference, **found, "p_value_vs_reference": found["bleu_p_value"]}
        if "base" in self.scored:
            row["p_value_vs_base"] = compare(self.scored[row["system"]], self.scored["base"], self.counts)["bleu_p_value"]

    def warn_about_binarising(self) -> None:
        bleu = {row["system"]: row["bleu"] for row in self.rows}
        if "l0-soft" in bleu and abs(bleu["l0-soft"] - bleu["l0"]) > BINARISING_GAP:
            warnings.warn(
                f"making the gates exactly 0 or 1 changed BLEU from {bleu['l0-soft']:.2f} to {bleu['l0']:.2f}: gates are still between; "
                "give the gate stage more epochs (--finetune.epochs) or a larger --gates.lr",
                stacklevel=2,
            )
