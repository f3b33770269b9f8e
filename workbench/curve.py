"""The curve of one order: BLEU and chrF against the number of closed heads, written step by step.   Michel et
al. 2019, section 4.2.

    curves/<name>.csv         a row for every step (and seed), see `MaskScorer.row`
    curves/<name>.json        fingerprint, provenance, signatures, and the step chosen on validation
    curves/<name>-order.json  HeadMap: the place of each head in the order of closing, from 0; -1 where it
    stays open
    scores/<name>.json        HeadMap: the scores that the order was made from

Each step is on disk before the next begins, so an interrupted command continues where it stopped.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from headgates.analysis.significance import LEVEL, P_VALUES, TEST, Scored, compare, resample_counts, score
from headgates.configs.prune import PruneConfig
from headgates.configs.scores import SCORES
from headgates.data.parallel import digest_lines
from headgates.data.ranks import first
from headgates.gates import KINDS, HeadMap, find_sites
from headgates.models.progress import Report
from headgates.workbench.closing import SENTENCES, Calibration, closed_heads
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.scores import ScoreRequest, head_scores, kinds_suffix, ranked, step_counts
from headgates.workbench.source import BATCH_TOKENS, prediction_settings
from headgates.workbench.table import Row, read_table, write_table

RESAMPLES = 1000
SPLITS = ("valid", "test")


class MaskScorer:
    """Scores the model's outputs with heads closed beside those of the unpruned model. No mask is translated
    twice."""

    def __init__(self, dense: DenseModel, close: str = "zero", calibration: Calibration | None = None):
        """close: what closing a head means, of configs.closing; calibration: its text, where it needs one."""
        self.dense, self.close, self.calibration = dense, close, calibration
        self.texts = {"valid": dense.valid, "test": dense.test}
        self.scored_masks: dict[bytes, dict[str, Scored]] = {}
        self.head_scores: dict[tuple[str, int | None], HeadMap] = {}  # of heads, by order and seed
        self.site_heads = {site: site.heads for site in find_sites(dense.source.predictor.model)}

    @cached_property
    def resamples(self) -> dict[str, Any]:
        return {split: resample_counts(len(sources), RESAMPLES) for split, (sources, _) in self.texts.items()}

    @cached_property
    def base(self) -> dict[str, Scored]:
        """The scores of the model with all heads, for each split."""
        return self.score_mask(
            HeadMap({site: torch.zeros(heads, dtype=torch.bool) for site, heads in self.site_heads.items()})
        )

    def score_mask(self, closed: HeadMap) -> dict[str, Scored]:
        """The scores of each split with these heads closed; sites that the mask lacks stay open."""
        whole = HeadMap(
            {
                site: closed[site] if site in closed else torch.zeros(site.heads, dtype=torch.bool)
                for site in self.site_heads
            }
        )
        key = whole.flat().numpy().tobytes()
        if key not in self.scored_masks:
            with closed_heads(self.dense.source.model, whole, self.close, self.calibration):
                self.scored_masks[key] = {split: scored for split, (scored, _) in self.score_now().items()}
        return self.scored_masks[key]

    def score_now(self) -> dict[str, tuple[Scored, list[str]]]:
        """The scores and the outputs of each split by the model as it is."""
        source = self.dense.source
        lines = iter(
            source.task.outputs(
                source.predictor, [line for sources, _ in self.texts.values() for line in sources]
            )
        )
        outputs = {split: [next(lines) for _ in sources] for split, (sources, _) in self.texts.items()}
        return {
            split: (score(outputs[split], text[1], source.task.metrics), outputs[split])
            for split, text in self.texts.items()
        }

    def row(self, closed: HeadMap, seed: int | None) -> Row:
        """The row of one step of the curve.

        closed_share is the share of the heads of the mask's kinds; heads_open, heads_total and the kinds
        count heads of the unpruned model. Each split adds its metrics with 95% intervals, and the deciding
        metric's difference from the whole
        model, with interval and p."""
        total, shut = sum(self.site_heads.values()), closed.count()
        by_kind = dict.fromkeys(KINDS, 0)
        for site, heads in self.site_heads.items():
            by_kind[site.kind] += heads - (int(closed[site].sum()) if site in closed else 0)
        row: Row = {"seed": seed, "closed_share": shut / closed.heads_total, "heads_closed": shut}
        row |= {"heads_open": total - shut, "heads_total": total, **by_kind}
        for split, found in self.score_mask(closed).items():
            row |= split_columns(split, found, self.base[split], self.resamples[split])
        return row


def split_columns(split: str, system: Scored, reference: Scored, counts: Any) -> Row:
    """The columns of one split: the deciding metric with its interval, difference and p-value, then the other
    metrics."""
    compared = compare(system, reference, counts)
    row: Row = {}
    for metric in system.metrics:
        name = metric.name
        low, high = compared[f"{name}_ci95"]
        row |= {name: system[name], f"{name}_low": low, f"{name}_high": high}
        if metric is system.metrics[0]:
            low, high = compared[f"{name}_difference_ci95"]
            row |= {
                f"{name}_difference": compared[f"{name}_difference"],
                f"{name}_difference_low": low,
                f"{name}_difference_high": high,
            }
            row |= {f"{name}_{p}": compared[f"{name}_{p}"] for p in P_VALUES if f"{name}_{p}" in compared}
    return {f"{split}_{name}": value for name, value in row.items()}


def curve(
    order: str,
    dense: DenseModel,
    config: PruneConfig,
    *,
    kinds: Sequence[str],
    scorer: MaskScorer,
    report: Report,
) -> tuple[str, list[Row]]:
    """Return the curve's name and rows. A finished curve is read from its files, an interrupted one is
    continued.

    Raises ValueError if the files of that name have another fingerprint (settings, model or text) or are
    broken, unless --fresh."""
    name = curve_name(order, config, kinds)
    cache_key = curve_fingerprint(order, dense, config, kinds)
    record, rows = first(lambda: begun_curve(name, dense, cache_key, fresh=config.fresh))
    if record.get("finished"):
        report(f"{name}: finished, same settings; --fresh repeats it")
        return name, rows
    if rows:
        report(f"{name}: {len(rows)} finished steps are there, the rest follows")
    for seed in range(config.seed, config.seed + config.random_seeds) if SCORES[order].seeded else [None]:
        add_steps_of_seed(
            order, name, dense, config, kinds=kinds, seed=seed, rows=rows, scorer=scorer, report=report
        )
    signatures = scorer.base["test"].signatures
    record |= {
        "finished": True,
        "chosen": choose_step(rows),
        **{f"{metric}_signature": text for metric, text in signatures.items()},
    }
    dense.folder.write_json(f"curves/{name}.json", record)
    return name, rows


def begun_curve(
    name: str, dense: DenseModel, cache_key: dict[str, Any], *, fresh: bool
) -> tuple[dict[str, Any], list[Row]]:
    """The record and the rows of a curve of this fingerprint, which is begun where there is none. Raises
    ValueError as `curve` does."""
    path = dense.folder / f"curves/{name}.json"
    if not path.is_file() or fresh:
        for suffix in ("json", "csv"):  # the .json vouches for the .csv, so it goes first
            (dense.folder / f"curves/{name}.{suffix}").unlink(missing_ok=True)
        record = {"cache_key": cache_key, "finished": False, **dense.facts}
        dense.folder.write_json(f"curves/{name}.json", record)
        return record, []
    file = f"curves/{name}.json"
    record = {"cache_key": cache_key, **(dense.folder.stored(file, cache_key) or {})}
    there = record.get("finished") or (dense.folder / f"curves/{name}.csv").is_file()
    return record, read_table(dense.folder, f"curves/{name}.csv") if there else []


def add_steps_of_seed(
    order: str,
    name: str,
    dense: DenseModel,
    config: PruneConfig,
    *,
    kinds: Sequence[str],
    seed: int | None,
    rows: list[Row],
    scorer: MaskScorer,
    report: Report,
) -> None:
    """Append the missing steps of one seed to `rows`; each is written to disk before the next begins."""
    score, folder = SCORES[order], dense.folder
    closing_order_file = f"curves/{name}-order{'' if seed is None else f'-seed{seed}'}.json"
    seed_rows = [row for row in rows if row["seed"] == seed]
    request = score_request(dense, config, config.seed if seed is None else seed, report)
    if (order, seed) not in scorer.head_scores:  # the curves of the kinds share it
        scorer.head_scores[order, seed] = head_scores(order, request)
    scores = ranked(order, scorer.head_scores[order, seed], l2=divides_by_norm(order, config)).select(kinds)
    closed = scores.map(lambda row: torch.zeros(len(row), dtype=torch.bool))
    closing_places = closed.map(lambda row: torch.full((len(row),), -1.0))
    if seed_rows:
        check_base(seed_rows[0], scorer, folder / f"curves/{name}.csv")
        closing_places = HeadMap.load(folder / closing_order_file).select(
            kinds
        )  # an unfinished step's heads reopen
        closing_places = closing_places.map(
            lambda row: row.masked_fill(row >= seed_rows[-1]["heads_closed"], -1.0)
        )
        closed = closing_places.map(lambda row: row >= 0)
    for count in step_counts(scores.heads_total, config.step):
        if seed_rows and count <= seed_rows[-1]["heads_closed"]:
            continue
        if (
            config.recompute and score.from_gradients and seed_rows
        ):  # 0 for the closed heads, which the order then leaves out
            again = head_scores(
                order,
                replace(request, kinds=list(dict.fromkeys(site.kind for site in closed)), closed=closed),
            )
            scores = ranked(order, again, l2=divides_by_norm(order, config))
        new = scores.closing_order(count, closed=closed, at_least=config.at_least)
        if seed_rows and not new:
            break  # --at-least keeps the others
        flat = closing_places.flat()
        flat[new] = torch.arange(closed.count(), closed.count() + len(new), dtype=flat.dtype)
        closing_places = closing_places.like(flat)
        closed = closing_places.map(lambda row: row >= 0)
        folder.write_json(closing_order_file, closing_places.to_json())
        row = scorer.row(closed, seed)
        seed_rows.append(row)
        rows.append(row)
        write_table(folder, f"curves/{name}.csv", rows)
        metric = dense.source.task.metrics[0]
        parts = name if seed is None else f"{name}, seed {seed}"
        report(
            f"{parts}: {row['heads_closed']} of {closed.heads_total} heads closed, "
            f"{metric.title} {row[f'valid_{metric.name}']:.2f} on validation, "
            f"{row[f'test_{metric.name}']:.2f} on test"
        )


def check_base(row: Row, scorer: MaskScorer, path: Any) -> None:
    """Raises ValueError if the unpruned model no longer scores as in the first row of the file."""
    for split in SPLITS:
        base = scorer.base[split]
        if not np.isclose(row[f"{split}_{base.main_name}"], base.main, rtol=0, atol=1e-9):
            raise ValueError(
                f"the unpruned model translates differently from when {path} was begun (another machine, "
                f"or other packages?): {split} "
                f"{base.metrics[0].title} {base.main:.4f}, then {row[f'{split}_{base.main_name}']:.4f}; "
                f"--fresh begins anew"
            )


def score_request(dense: DenseModel, config: PruneConfig, seed: int, report: Report) -> ScoreRequest:
    """The request that prune.py's settings make of a score."""
    return ScoreRequest(
        dense.source,
        valid=dense.valid,
        kinds=config.kinds,
        seed=seed,
        sentences=config.sentences,
        absolute=config.abs,
        fresh=config.fresh,
        report=report,
    )


def divides_by_norm(order: str, config: PruneConfig) -> bool:
    """Whether each layer's scores are divided by their norm: the score's own choice, unless --normalise is
    given."""
    return SCORES[order].l2 if config.normalise is None else config.normalise == "l2"


def curve_fingerprint(
    order: str, dense: DenseModel, config: PruneConfig, kinds: Sequence[str]
) -> dict[str, Any]:
    """Everything the curve depends on: settings, weights and texts. It is the entry `cache_key` of the
    curve's
    .json."""
    score, source = SCORES[order], dense.source
    return {
        "order": order,
        "kinds": [kind for kind in KINDS if kind in kinds],
        "significance_test": TEST,
        "step": config.step,
        "at_least": config.at_least,
        **prediction_settings(source),
        "normalise": "l2" if divides_by_norm(order, config) else "none",
        "weights": source.weights,
        "sentences": config.sentences or score.sample if score.reads_pairs else None,
        "sample": source.drawn(config.sentences or score.sample or 0) if score.reads_pairs else None,
        "abs": config.abs if score.from_gradients else None,
        "recompute": config.recompute if score.from_gradients else None,
        "batch_tokens": BATCH_TOKENS if score.from_gradients and config.abs == "batch" else None,
        "closing": config.closing,
        "calibration": [config.calibration_sentences, config.calibration_targets],
        "resample_seed": config.seed if config.closing == "resample" else None,
        "seeds": [config.seed, config.random_seeds] if score.seeded else None,
        **{
            split: {"sentences": len(text[0]), "digest": digest_lines(*text)}
            for split, text in (("valid", dense.valid), ("test", dense.test))
        },
    }


# ---------------------------------------------------------------- names of files


def curve_name(order: str, config: PruneConfig, kinds: Sequence[str]) -> str:
    """The name of the curve's files: the order, and each setting that differs from its default."""
    parts, score = [order, *closing_parts(config)], SCORES[order]
    l2 = divides_by_norm(order, config)
    if score.from_gradients:
        parts += [config.abs] * (config.abs != "sentence")
    if score.reads_pairs:
        parts += [f"n{config.sentences}"] * (config.sentences > 0)
    if score.from_gradients:
        parts += ["recompute"] * config.recompute
    if l2 != score.l2:
        parts.append("l2" if l2 else "raw")
    if score.seeded:
        parts += [f"{config.random_seeds}seeds"] * (config.random_seeds != 5) + [f"from{config.seed}"] * (
            config.seed != 1
        )
    parts += [f"step{config.step:g}"] * (config.step != 0.1) + [f"atleast{config.at_least}"] * (
        config.at_least > 0
    )
    parts += [f"beam{config.beam}"] * (config.beam > 1)
    parts += [f"v{config.valid_sentences}"] * (config.valid_sentences > 0) + [f"t{config.test_sentences}"] * (
        config.test_sentences > 0
    )
    return "-".join(parts + kinds_suffix(kinds))


def closing_parts(config: PruneConfig) -> list[str]:
    """How heads are closed, as parts of a name; none for zero."""
    if config.closing == "zero":
        return []
    parts = [config.closing] + [f"c{config.calibration_sentences}"] * (
        config.calibration_sentences != SENTENCES
    )
    return parts + [config.calibration_targets] * (config.calibration_targets != "reference")


def figure_name(config: PruneConfig) -> str:
    """The name of the figure with all curves of a command."""
    if config.each_kind:
        names = [curve_name(order, config, KINDS) for order in config.orders]
        return "-".join(["+".join(names), "by-kind", *kinds_suffix(config.kinds)])
    return "+".join(curve_name(order, config, config.kinds) for order in config.orders)


# ---------------------------------------------------------------- what a curve says


def main_metric(rows: Sequence[Row]) -> str:
    """The deciding metric: the one whose differences were tested."""
    return next(name for name in rows[0] if name.startswith("valid_") and name.endswith("_p_value"))[
        len("valid_") : -len("_p_value")
    ]


def choose_step(rows: Sequence[Row]) -> Row:
    """Return the step with the most heads closed whose validation score is not significantly below the whole
    model's in any seed (p >= 0.01, or not below), and its test scores: the mean over seeds, and the lowest
    and highest ends of
    the intervals."""
    main = main_metric(rows)
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["heads_closed"], []).append(row)
    seeds = len(steps[0])
    kept = [
        count
        for count, group in steps.items()
        if len(group) == seeds
        and all(
            row[f"valid_{main}_p_value"] >= LEVEL or row[f"valid_{main}_difference"] >= 0 for row in group
        )
    ]
    group = steps[max(kept)]  # closing nothing is never significant
    compared = ("_low", "_high", "_difference", *(f"_{p}" for p in P_VALUES))
    others = [name for name in rows[0] if name.startswith("test_") and not name.endswith(compared)]
    averaged = [
        f"valid_{main}",
        f"test_{main}",
        f"test_{main}_difference",
        *(name for name in others if name != f"test_{main}"),
    ]
    mean = {name: sum(row[name] for row in group) / len(group) for name in averaged}
    edges = {
        f"test_{main}_difference_low": min(row[f"test_{main}_difference_low"] for row in group),
        f"test_{main}_difference_high": max(row[f"test_{main}_difference_high"] for row in group),
        f"test_{main}_p_value": min(row[f"test_{main}_p_value"] for row in group),
    }
    return (
        {name: group[0][name] for name in ("heads_closed", "heads_open", "heads_total", "closed_share")}
        | mean
        | edges
    )
