"""BLEU and chrF against closed heads: the curve of one order, written step by step.   Michel et al. 2019, section 4.2.

    curves/<name>.csv         a row for every step (and seed), see `Measure.row`
    curves/<name>.json        settings, provenance, signatures, what was chosen on validation
    curves/<name>-order.json  HeadMap: the place of each head in the order of closing, from 0; -1 where it stays open
    scores/<name>.json        HeadMap: the scores that the order was made of

A step is on disk before the next begins, so a command that was interrupted goes on where it stopped.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch

from configs.prune import PruneConfig
from data.parallel import digest_lines
from gates import KINDS, HeadMap, attach, detach, find_sites
from models.checkpoint import weights_digest
from models.progress import Report
from pruning.orders import ORDERS, close_lowest, curve_name, scores_name, targets
from pruning.significance import Scored, compare, resample_counts, score
from pruning.subject import BATCH_TOKENS, Subject
from runfolder.table import Row, read_table, write_table

RESAMPLES = 1000
SIGNIFICANT = 0.01  # the paper's level
SPLITS = ("valid", "test")


class Measure:
    """What the subject's model translates with heads closed, scored against the model with all heads. Nothing is translated twice."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self.texts = {"valid": subject.valid, "test": subject.test}
        self.known: dict[bytes, dict[str, Scored]] = {}
        self.scores: dict[str, HeadMap] = {}  # of heads, by the name of their file
        self.site_heads = {site: site.heads for site in find_sites(subject.translator.model)}

    @cached_property
    def counts(self) -> dict[str, Any]:
        return {split: resample_counts(len(sources), RESAMPLES) for split, (sources, _) in self.texts.items()}

    @cached_property
    def base(self) -> dict[str, Scored]:
        """The model with all heads."""
        return self.scored(HeadMap({site: torch.zeros(heads, dtype=torch.bool) for site, heads in self.site_heads.items()}))

    def scored(self, closed: HeadMap) -> dict[str, Scored]:
        """Each split under the mask; sites that it lacks stay open."""
        whole = HeadMap({site: closed[site] if site in closed else torch.zeros(site.heads, dtype=torch.bool) for site in self.site_heads})
        key = whole.flat().numpy().tobytes()
        if key not in self.known:
            translator = self.subject.translator
            if whole.count():
                attach(translator.model, gate="mask", xi=whole.map(lambda row: (~row).double())).requires_grad_(False)
            try:
                lines = iter(translator.translate([line for sources, _ in self.texts.values() for line in sources]))
            finally:
                detach(translator.model)
            self.known[key] = {
                split: score([next(lines) for _ in sources], references) for split, (sources, references) in self.texts.items()
            }
        return self.known[key]

    def row(self, closed: HeadMap, seed: int | None) -> Row:
        """closed_share is among the heads of the map's kinds; heads_open, heads_total and the kinds count those of the whole model. Then
        for each split BLEU, chrF, their 95% intervals, and the BLEU difference from all heads with its interval and p-value."""
        total, shut = sum(self.site_heads.values()), closed.count()
        by_kind = dict.fromkeys(KINDS, 0)
        for site, heads in self.site_heads.items():
            by_kind[site.kind] += heads - (int(closed[site].sum()) if site in closed else 0)
        row: Row = {"seed": seed, "closed_share": shut / closed.heads_total, "heads_closed": shut}
        row |= {"heads_open": total - shut, "heads_total": total, **by_kind}
        for split, found in self.scored(closed).items():
            row |= numbers(split, found, self.base[split], self.counts[split])
        return row


def numbers(split: str, system: Scored, reference: Scored, counts: Any) -> Row:
    """The columns of one split."""
    found = compare(system, reference, counts)
    intervals = {"bleu": "bleu_ci95", "bleu_difference": "bleu_difference_ci95", "chrf": "chrf_ci95"}
    edges = {f"{name}_{edge}": value for name, key in intervals.items() for edge, value in zip(("low", "high"), found[key], strict=True)}
    values = {"bleu": system.bleu, "chrf": system.chrf, "bleu_p_value": found["bleu_p_value"], **edges}
    values["bleu_difference"] = found["bleu_difference"]
    columns = ["bleu", "bleu_low", "bleu_high", "bleu_difference", "bleu_difference_low", "bleu_difference_high", "bleu_p_value"]
    return {f"{split}_{name}": values[name] for name in [*columns, "chrf", "chrf_low", "chrf_high"]}


def curve(
    order: str, subject: Subject, config: PruneConfig, *, kinds: Sequence[str], measure: Measure, report: Report
) -> tuple[str, list[Row]]:
    """The curve's name and its rows: found where they are there already, continued where they were interrupted.

    Raises ValueError if the files of that name are of other settings, another model or text, or broken, unless --fresh."""
    name = curve_name(order, config, kinds)
    made_of = settings(order, subject, config, kinds)
    rows: list[Row] = []
    about = {"settings": made_of, "finished": False, **subject.facts}
    if (subject.folder / f"curves/{name}.json").is_file() and not config.fresh:
        about = subject.folder.read_json(f"curves/{name}.json")
        if other := [key for key in made_of if about.get("settings", {}).get(key) != made_of[key]]:
            path = subject.folder / f"curves/{name}.json"
            raise ValueError(f"{path} was made with other {' and '.join(other)} than this command; --fresh makes it anew")
        if about["finished"] or (subject.folder / f"curves/{name}.csv").is_file():
            rows = read_table(subject.folder, f"curves/{name}.csv")
        if about["finished"]:
            report(f"{name}: finished, same settings; --fresh repeats it")
            return name, rows
        report(f"{name}: {len(rows)} finished steps are there, the rest follows")
    else:
        for suffix in ("json", "csv"):  # the .json vouches for the .csv, so it goes first
            (subject.folder / f"curves/{name}.{suffix}").unlink(missing_ok=True)
        subject.folder.write_json(f"curves/{name}.json", about)
    for seed in range(config.seed, config.seed + config.random_seeds) if ORDERS[order].seeds else [None]:
        one_seed(order, name, subject, config, kinds=kinds, seed=seed, rows=rows, measure=measure, report=report)
    signatures = measure.base["test"].signatures
    about |= {"finished": True, "chosen": choose(rows), **{f"{metric}_signature": text for metric, text in signatures.items()}}
    subject.folder.write_json(f"curves/{name}.json", about)
    return name, rows


def one_seed(
    order: str,
    name: str,
    subject: Subject,
    config: PruneConfig,
    *,
    kinds: Sequence[str],
    seed: int | None,
    rows: list[Row],
    measure: Measure,
    report: Report,
) -> None:
    """Add the steps that `rows` lack of one seed, each written before the next."""
    how, folder = ORDERS[order], subject.folder
    places_file = f"curves/{name}-order{'' if seed is None else f'-seed{seed}'}.json"
    mine = [row for row in rows if row["seed"] == seed]
    scores_file = f"scores/{scores_name(order, config, seed)}.json"
    if scores_file not in measure.scores:  # the curves of the kinds share it
        measure.scores[scores_file] = how.score(subject, config, config.seed if seed is None else seed, report)
        folder.write_json(scores_file, measure.scores[scores_file].to_json())
    ranked = how.ranked(measure.scores[scores_file], config).select(kinds)
    closed = ranked.map(lambda row: torch.zeros(len(row), dtype=torch.bool))
    places = closed.map(lambda row: torch.full((len(row),), -1.0))
    if mine:
        check_base(mine[0], measure, folder / f"curves/{name}.csv")
        places = HeadMap.load(folder / places_file).select(kinds)  # heads that a later, unfinished step closed are put back
        places = places.map(lambda row: row.masked_fill(row >= mine[-1]["heads_closed"], -1.0))
        closed = places.map(lambda row: row >= 0)
    for count in targets(ranked.heads_total, config.step):
        if mine and count <= mine[-1]["heads_closed"]:
            continue
        if config.recompute and how.gradient and mine:
            ranked = how.ranked(how.rescored(subject, config, closed), config)
        new = close_lowest(ranked, closed, count, at_least=config.at_least)
        if mine and not new:
            break  # --at-least keeps the others
        flat = places.flat()
        flat[new] = torch.arange(closed.count(), closed.count() + len(new), dtype=flat.dtype)
        places = places.like(flat)
        closed = places.map(lambda row: row >= 0)
        folder.write_json(places_file, places.to_json())
        row = measure.row(closed, seed)
        mine.append(row)
        rows.append(row)
        write_table(folder, f"curves/{name}.csv", rows)
        words = name if seed is None else f"{name}, seed {seed}"
        report(
            f"{words}: {row['heads_closed']} of {closed.heads_total} heads closed, "
            f"BLEU {row['valid_bleu']:.2f} on validation, {row['test_bleu']:.2f} on test"
        )


def check_base(row: Row, measure: Measure, path: Any) -> None:
    """Raises ValueError where the model with all heads does not translate as in the file's first row."""
    for split in SPLITS:
        if not np.isclose(row[f"{split}_bleu"], measure.base[split].bleu, rtol=0, atol=1e-9):
            raise ValueError(
                f"the unpruned model translates otherwise than when {path} was begun (another machine, or other packages?): {split} BLEU "
                f"{measure.base[split].bleu:.4f}, then {row[f'{split}_bleu']:.4f}; --fresh begins anew"
            )


def settings(order: str, subject: Subject, config: PruneConfig, kinds: Sequence[str]) -> dict[str, Any]:
    """All that a curve depends on."""
    how = ORDERS[order]
    search = {name: value for name, value in asdict(subject.translator.search).items() if name != "batch_tokens"}
    chosen = [kind for kind in KINDS if kind in kinds]
    made_of: dict[str, Any] = {"order": order, "kinds": chosen, "step": config.step, "at_least": config.at_least, "search": search}
    made_of |= {"normalise": "l2" if how.normalise(config) else "none", "weights": weights_digest(subject.translator.model)}
    if how.gradient:
        made_of |= {"abs": config.abs, "sentences": config.sentences, "recompute": config.recompute}
        if config.abs == "batch":
            made_of["batch_tokens"] = BATCH_TOKENS
    if how.seeds:
        made_of |= {"seed": config.seed, "random_seeds": config.random_seeds}
    for split, text in (("valid", subject.valid), ("test", subject.test)):
        made_of[split] = {"sentences": len(text[0]), "digest": digest_lines(*text)}
    return made_of


# ---------------------------------------------------------------- what a curve says


def choose(rows: Sequence[Row]) -> Row:
    """The most heads closed whose validation BLEU is not significantly below the whole model's (p >= 0.01, or not below), in every seed;
    with what that gives on test: the mean over seeds, and the lowest and highest end of the intervals."""
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["heads_closed"], []).append(row)
    seeds = len(steps[0])
    kept = [
        count
        for count, group in steps.items()
        if len(group) == seeds and all(row["valid_bleu_p_value"] >= SIGNIFICANT or row["valid_bleu_difference"] >= 0 for row in group)
    ]
    group = steps[max(kept)]  # closing nothing is never significant
    mean = {
        name: sum(row[name] for row in group) / len(group) for name in ("valid_bleu", "test_bleu", "test_bleu_difference", "test_chrf")
    }
    edges = {
        "test_bleu_difference_low": min(row["test_bleu_difference_low"] for row in group),
        "test_bleu_difference_high": max(row["test_bleu_difference_high"] for row in group),
        "test_bleu_p_value": min(row["test_bleu_p_value"] for row in group),
    }
    return {name: group[0][name] for name in ("heads_closed", "heads_open", "heads_total", "closed_share")} | mean | edges
