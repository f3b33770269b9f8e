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
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from headgates.analysis.significance import (
    LEVEL,
    P_VALUES,
    RESAMPLES,
    TEST,
    Scored,
    compare,
    resample_counts,
    score,
)
from headgates.configs.closing import ZERO
from headgates.configs.prune import PruneConfig
from headgates.configs.scores import SCORES
from headgates.data.parallel import digest_lines
from headgates.data.ranks import first
from headgates.gates import KINDS, HeadMap, find_sites
from headgates.models.progress import Report, say
from headgates.pruning.closing import SENTENCES, Calibration, closed_heads
from headgates.pruning.scores import ScoreRequest, head_scores, kinds_suffix, ranked, step_counts
from headgates.pruning.unpruned_model import UnprunedModel
from headgates.records.source import BATCH_TOKENS, prediction_settings
from headgates.records.table import Row, read_table, with_ends, write_table


class MaskScorer:
    """Scores the model's outputs with heads closed beside those of the unpruned model. No mask is translated
    twice."""

    def __init__(self, unpruned: UnprunedModel, close: str = "zero", calibration: Calibration | None = None):
        """close: what closing a head means, of configs.closing; calibration: its text, where it needs one."""
        self.unpruned, self.close, self.calibration = unpruned, close, calibration
        self.texts = {"valid": unpruned.valid, "test": unpruned.test}
        self.scored_masks: dict[bytes, dict[str, Scored]] = {}
        self.head_scores: dict[tuple[str, int | None], HeadMap] = {}  # of heads, by order and seed
        sites = find_sites(unpruned.model)
        self.all_open = HeadMap({site: torch.zeros(site.heads, dtype=torch.bool) for site in sites})

    @cached_property
    def resamples(self) -> dict[str, Any]:
        return {split: resample_counts(len(sources), RESAMPLES) for split, (sources, _) in self.texts.items()}

    @cached_property
    def base(self) -> dict[str, Scored]:
        """The scores of the model with all heads, for each split."""
        return self.score_mask(self.all_open)

    def score_mask(self, closed: HeadMap) -> dict[str, Scored]:
        """The scores of each split with these heads closed; sites that the mask lacks stay open."""
        closed = HeadMap({**self.all_open, **closed})
        key = closed.flat().numpy().tobytes()
        if key not in self.scored_masks:
            with closed_heads(self.unpruned.model, closed, self.close, self.calibration):
                self.scored_masks[key] = self.score_now()
        return self.scored_masks[key]

    def score_now(self) -> dict[str, Scored]:
        """The scores of each split by the model as it is."""
        source, (valid, test) = self.unpruned, self.texts.values()
        outputs = source.task.outputs(source.predictor, [*valid[0], *test[0]])
        parts = outputs[: len(valid[0])], outputs[len(valid[0]) :]
        return {
            split: score(part, references, source.task.metrics)
            for part, (split, (_, references)) in zip(parts, self.texts.items(), strict=True)
        }

    def row(self, closed: HeadMap, seed: int | None) -> Row:
        """The row of one step of the curve.

        closed_share is the share of the heads of the mask's kinds; heads_open, heads_total and the kinds
        count heads of the unpruned model. Each split adds its metrics with 95% intervals, and the deciding
        metric's difference from the whole
        model, with interval and p."""
        left, shut = ~HeadMap({**self.all_open, **closed}), closed.count()
        row: Row = {"seed": seed, "closed_share": shut / closed.heads_total, "heads_closed": shut}
        row |= {"heads_open": left.count(), "heads_total": left.heads_total, **dict.fromkeys(KINDS, 0)}
        row |= {kind: int(heads) for kind, heads in left.by_kind().items()}
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
        row |= {name: system[name]} | with_ends(name, compared[f"{name}_ci95"])
        if metric is system.metrics[0]:
            row[f"{name}_difference"] = compared[f"{name}_difference"]
            row |= with_ends(f"{name}_difference", compared[f"{name}_difference_ci95"])
            row |= {f"{name}_{p}": compared[f"{name}_{p}"] for p in P_VALUES if f"{name}_{p}" in compared}
    return {f"{split}_{name}": value for name, value in row.items()}


def curve(
    order: str,
    unpruned: UnprunedModel,
    config: PruneConfig,
    *,
    kinds: Sequence[str],
    scorer: MaskScorer,
    report: Report = say,
) -> tuple[str, list[Row]]:
    """Return the curve's name and rows. A finished curve is read from its files, an interrupted one is
    continued. report: takes a line for every step.

    Raises ValueError if the files of that name have another fingerprint (settings, model or text) or are
    broken, unless --fresh."""
    name, score, folder = curve_name(order, config, kinds), SCORES[order], unpruned.folder
    file = f"curves/{name}"
    cache_key = curve_fingerprint(order, unpruned, config, kinds)
    record, rows = first(lambda: begun_curve(file, unpruned, cache_key, fresh=config.fresh))
    if record["finished"]:
        report(f"{name}: finished, same settings; --fresh repeats it")
        return name, rows
    if rows:
        report(f"{name}: {len(rows)} finished steps are there, the rest follows")
    metric, l2 = unpruned.task.metrics[0], divides_by_norm(order, config)
    for seed in range(config.seed, config.seed + config.random_seeds) if score.by_chance else [None]:
        of_seed = "" if seed is None else f"-seed{seed}"
        seed_rows = [row for row in rows if row["seed"] == seed]
        request = score_request(unpruned, config, config.seed if seed is None else seed)
        if (order, seed) not in scorer.head_scores:  # the curves of the kinds share it
            scorer.head_scores[order, seed] = head_scores(order, request)
        scores = ranked(order, scorer.head_scores[order, seed], l2=l2).select(kinds)
        places = scores.map(lambda row: torch.full_like(row, -1.0))
        if seed_rows:
            check_base(seed_rows[0], scorer, folder / f"{file}.csv")
            done = seed_rows[-1]["heads_closed"]  # an unfinished step's heads reopen
            places = HeadMap.load(folder / f"{file}-order{of_seed}.json").select(kinds)
            places = places.map(partial(reopened, done))
        for count in step_counts(scores.heads_total, config.step):
            closed = places.map(lambda row: row >= 0)
            if seed_rows and count <= closed.count():
                continue
            if config.recompute and score.from_gradients and seed_rows:
                # 0 for the closed heads, which the order then leaves out
                again = replace(request, kinds=list(closed.by_kind()), closed=closed)
                scores = ranked(order, head_scores(order, again), l2=l2)
            new = scores.closing_order(count, closed=closed, at_least=config.at_least)
            if seed_rows and not new:
                break  # --at-least keeps the others
            flat = places.flat()
            flat[new] = torch.arange(closed.count(), closed.count() + len(new), dtype=flat.dtype)
            places = places.like(flat)
            folder.write_json(f"{file}-order{of_seed}.json", places.to_json())
            row = scorer.row(places.map(lambda row: row >= 0), seed)
            seed_rows.append(row)
            rows.append(row)
            write_table(folder, f"{file}.csv", rows)
            report(
                f"{name}{of_seed}: {row['heads_closed']} of {closed.heads_total} heads closed, "
                f"{metric.title} {row[f'valid_{metric.name}']:.2f} on validation, "
                f"{row[f'test_{metric.name}']:.2f} on test"
            )
    signatures = scorer.base["test"].signatures
    record |= {"finished": True, "chosen": choose_step(rows)}
    record |= {f"{metric}_signature": text for metric, text in signatures.items()}
    folder.write_json(f"{file}.json", record)
    return name, rows


def begun_curve(
    file: str, unpruned: UnprunedModel, cache_key: dict[str, Any], *, fresh: bool
) -> tuple[dict[str, Any], list[Row]]:
    """The record and the rows of a curve of this fingerprint, which is begun where there is none. Raises
    ValueError as `curve` does."""
    folder = unpruned.folder
    stored = None if fresh else folder.stored(f"{file}.json", cache_key)
    record = {"cache_key": cache_key, **(stored or {"finished": False, **unpruned.facts})}
    if stored is None:
        for suffix in ("json", "csv"):  # the .json vouches for the .csv, so it goes first
            (folder / f"{file}.{suffix}").unlink(missing_ok=True)
        folder.write_json(f"{file}.json", record)
    there = record["finished"] or (folder / f"{file}.csv").is_file()
    return record, read_table(folder, f"{file}.csv") if there else []


def check_base(row: Row, scorer: MaskScorer, path: Any) -> None:
    """Raises ValueError if the unpruned model no longer scores as in the first row of the file."""
    for split, base in scorer.base.items():
        if not np.isclose(row[f"{split}_{base.main_name}"], base.main, rtol=0, atol=1e-9):
            raise ValueError(
                f"the unpruned model translates differently from when {path} was begun (another machine, "
                f"or other packages?): {split} "
                f"{base.metrics[0].title} {base.main:.4f}, then {row[f'{split}_{base.main_name}']:.4f}; "
                f"--fresh begins anew"
            )


def score_request(unpruned: UnprunedModel, config: PruneConfig, seed: int) -> ScoreRequest:
    """The request that prune.py's settings make of a score."""
    return ScoreRequest(
        unpruned,
        valid=unpruned.valid,
        kinds=config.kinds,
        seed=seed,
        sentences=config.sentences,
        absolute=config.abs,
        fresh=config.fresh,
    )


def divides_by_norm(order: str, config: PruneConfig) -> bool:
    """Whether each layer's scores are divided by their norm: the score's own choice, unless --normalise is
    given."""
    return SCORES[order].l2 if config.normalise is None else config.normalise == "l2"


def curve_fingerprint(
    order: str, unpruned: UnprunedModel, config: PruneConfig, kinds: Sequence[str]
) -> dict[str, Any]:
    """Everything the curve depends on: settings, weights and texts. It is the entry `cache_key` of the
    curve's .json."""
    score = SCORES[order]
    return {
        "order": order,
        "kinds": [kind for kind in KINDS if kind in kinds],
        "significance_test": TEST,
        "step": config.step,
        "at_least": config.at_least,
        **prediction_settings(unpruned),
        "normalise": "l2" if divides_by_norm(order, config) else "none",
        "weights": unpruned.weights,
        "sentences": config.sentences or score.sample if score.reads_pairs else None,
        "sample": unpruned.sampled(config.sentences or score.sample or 0) if score.reads_pairs else None,
        "abs": config.abs if score.from_gradients else None,
        "recompute": config.recompute if score.from_gradients else None,
        "batch_tokens": BATCH_TOKENS if score.from_gradients and config.abs == "batch" else None,
        "closing": config.closing,
        "calibration": [config.calibration_sentences, config.calibration_targets],
        "resample_seed": config.seed if config.closing == "resample" else None,
        "seeds": [config.seed, config.random_seeds if score.by_chance else 1],
        **{
            split: {"sentences": len(text[0]), "digest": digest_lines(*text)}
            for split, text in (("valid", unpruned.valid), ("test", unpruned.test))
        },
    }


# ---------------------------------------------------------------- names of files


def curve_name(order: str, config: PruneConfig, kinds: Sequence[str]) -> str:
    """The name of the curve's files: the order, and each setting that differs from its default."""
    score, l2 = SCORES[order], divides_by_norm(order, config)
    refitted, by_chance = config.closing != ZERO, score.by_chance
    marks = {
        config.closing: refitted,
        f"c{config.calibration_sentences}": refitted and config.calibration_sentences != SENTENCES,
        config.calibration_targets: refitted and config.calibration_targets != "reference",
        config.abs: score.from_gradients and config.abs != "sentence",
        f"n{config.sentences}": score.reads_pairs and config.sentences,
        "recompute": score.from_gradients and config.recompute,
        "l2" if l2 else "raw": l2 != score.l2,
        f"{config.random_seeds}seeds": by_chance and config.random_seeds != 5,
        f"from{config.seed}": config.seed != 1,
        f"step{config.step:g}": config.step != 0.1,
        f"atleast{config.at_least}": config.at_least,
        f"beam{config.beam}": config.beam > 1,
        f"v{config.valid_sentences}": config.valid_sentences,
        f"t{config.test_sentences}": config.test_sentences,
    }
    return "-".join([order, *(mark for mark, differs in marks.items() if differs), *kinds_suffix(kinds)])


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
    tested, heads = f"test_{main}", ("heads_closed", "heads_open", "heads_total", "closed_share")
    compared = ("_low", "_high", "_difference", *(f"_{p}" for p in P_VALUES))
    others = [name for name in rows[0] if name.startswith("test_") and not name.endswith(compared)]
    averaged = dict.fromkeys([f"valid_{main}", tested, f"{tested}_difference", *others])
    edges = {"difference_low": min, "difference_high": max, "p_value": min}
    return {
        **{name: group[0][name] for name in heads},
        **{name: sum(row[name] for row in group) / len(group) for name in averaged},
        **{f"{tested}_{end}": edge(row[f"{tested}_{end}"] for row in group) for end, edge in edges.items()},
    }


def reopened(done: int, row: torch.Tensor) -> torch.Tensor:
    """The steps (H,) at which heads close; -1 where that is not one of the first `done`."""
    return row.masked_fill(row >= done, -1.0)
