"""BLEU and chrF against closed heads: the curve of one order, written step by step.   Michel et al. 2019, section 4.2.

    curves/<name>.csv         a row for every step (and seed), see `Measure.row`
    curves/<name>.json        settings, provenance, signatures, what was chosen on validation
    curves/<name>-order.json  HeadMap: the place of each head in the order of closing, from 0; -1 where it stays open
    scores/<name>.json        HeadMap: the scores that the order was made of

A step is on disk before the next begins, so a command that was interrupted goes on where it stopped.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from configs.prune import PruneConfig
from configs.scores import SCORES
from data.parallel import digest_lines
from gates import KINDS, HeadMap, attach, detach, find_sites
from models.progress import Report
from pruning.dense_model import DenseModel
from pruning.scores import ScoreRequest, head_scores, kinds_words, ranked, step_counts
from pruning.significance import Scored, compare, resample_counts, score
from runfolder.source import BATCH_TOKENS, prediction_settings
from runfolder.table import Row, read_table, write_table

RESAMPLES = 1000
SIGNIFICANT = 0.01  # the paper's level
SPLITS = ("valid", "test")


class Measure:
    """What the subject's model translates with heads closed, scored against the model with all heads. Nothing is translated twice."""

    def __init__(self, dense: DenseModel):
        self.dense = dense
        self.texts = {"valid": dense.valid, "test": dense.test}
        self.known: dict[bytes, dict[str, Scored]] = {}
        self.scores: dict[tuple[str, int | None], HeadMap] = {}  # of heads, by order and seed
        self.site_heads = {site: site.heads for site in find_sites(dense.source.predictor.model)}

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
            source = self.dense.source
            model = source.predictor.model
            if whole.count():
                attach(model, gate="mask", xi=whole.map(lambda row: (~row).double())).requires_grad_(False)
            try:
                lines = iter(source.task.predict(source.predictor, [line for sources, _ in self.texts.values() for line in sources]))
            finally:
                detach(model)
            self.known[key] = {
                split: score([next(lines) for _ in sources], references, source.task.metrics)
                for split, (sources, references) in self.texts.items()
            }
        return self.known[key]

    def row(self, closed: HeadMap, seed: int | None) -> Row:
        """One step of the curve.

        closed_share is among the heads of the map's kinds; heads_open, heads_total and the kinds count those of the whole model. Then for
        each split the metrics, their 95% intervals, and the difference from all heads in the one that decides, with its interval and p."""
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
    """The columns of one split: the metric that decides with its intervals, its difference and p-value, then the others."""
    found = compare(system, reference, counts)
    row: Row = {}
    for metric in system.metrics:
        name = metric.name
        low, high = found[f"{name}_ci95"]
        row |= {name: system[name], f"{name}_low": low, f"{name}_high": high}
        if metric is system.metrics[0]:
            low, high = found[f"{name}_difference_ci95"]
            row |= {f"{name}_difference": found[f"{name}_difference"], f"{name}_difference_low": low, f"{name}_difference_high": high}
            row[f"{name}_p_value"] = found[f"{name}_p_value"]
    return {f"{split}_{name}": value for name, value in row.items()}


def curve(
    order: str, dense: DenseModel, config: PruneConfig, *, kinds: Sequence[str], measure: Measure, report: Report
) -> tuple[str, list[Row]]:
    """The curve's name and its rows: found where they are there already, continued where they were interrupted.

    Raises ValueError if the files of that name are of other settings, another model or text, or broken, unless --fresh."""
    name = curve_name(order, config, kinds)
    made_of = settings(order, dense, config, kinds)
    rows: list[Row] = []
    about = {"settings": made_of, "finished": False, **dense.facts}
    if (dense.folder / f"curves/{name}.json").is_file() and not config.fresh:
        about = dense.folder.read_json(f"curves/{name}.json")
        if other := [key for key in made_of if about.get("settings", {}).get(key) != made_of[key]]:
            path = dense.folder / f"curves/{name}.json"
            raise ValueError(f"{path} was made with other {' and '.join(other)} than this command; --fresh makes it anew")
        if about["finished"] or (dense.folder / f"curves/{name}.csv").is_file():
            rows = read_table(dense.folder, f"curves/{name}.csv")
        if about["finished"]:
            report(f"{name}: finished, same settings; --fresh repeats it")
            return name, rows
        report(f"{name}: {len(rows)} finished steps are there, the rest follows")
    else:
        for suffix in ("json", "csv"):  # the .json vouches for the .csv, so it goes first
            (dense.folder / f"curves/{name}.{suffix}").unlink(missing_ok=True)
        dense.folder.write_json(f"curves/{name}.json", about)
    for seed in range(config.seed, config.seed + config.random_seeds) if SCORES[order].seeded else [None]:
        one_seed(order, name, dense, config, kinds=kinds, seed=seed, rows=rows, measure=measure, report=report)
    signatures = measure.base["test"].signatures
    about |= {"finished": True, "chosen": choose(rows), **{f"{metric}_signature": text for metric, text in signatures.items()}}
    dense.folder.write_json(f"curves/{name}.json", about)
    return name, rows


def one_seed(
    order: str,
    name: str,
    dense: DenseModel,
    config: PruneConfig,
    *,
    kinds: Sequence[str],
    seed: int | None,
    rows: list[Row],
    measure: Measure,
    report: Report,
) -> None:
    """Add the steps that `rows` lack of one seed, each written before the next."""
    score, folder = SCORES[order], dense.folder
    places_file = f"curves/{name}-order{'' if seed is None else f'-seed{seed}'}.json"
    mine = [row for row in rows if row["seed"] == seed]
    request = score_request(dense, config, config.seed if seed is None else seed, report)
    if (order, seed) not in measure.scores:  # the curves of the kinds share it
        measure.scores[order, seed] = head_scores(order, request)
    scores = ranked(order, measure.scores[order, seed], l2=by_layer(order, config)).select(kinds)
    closed = scores.map(lambda row: torch.zeros(len(row), dtype=torch.bool))
    places = closed.map(lambda row: torch.full((len(row),), -1.0))
    if mine:
        check_base(mine[0], measure, folder / f"curves/{name}.csv")
        places = HeadMap.load(folder / places_file).select(kinds)  # heads that a later, unfinished step closed are put back
        places = places.map(lambda row: row.masked_fill(row >= mine[-1]["heads_closed"], -1.0))
        closed = places.map(lambda row: row >= 0)
    for count in step_counts(scores.heads_total, config.step):
        if mine and count <= mine[-1]["heads_closed"]:
            continue
        if config.recompute and score.from_gradients and mine:  # 0 for the closed heads, which the order then leaves out
            again = head_scores(order, replace(request, kinds=list(dict.fromkeys(site.kind for site in closed)), closed=closed))
            scores = ranked(order, again, l2=by_layer(order, config))
        new = scores.closing_order(count, closed=closed, at_least=config.at_least)
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
        metric = dense.source.task.metrics[0]
        words = name if seed is None else f"{name}, seed {seed}"
        report(
            f"{words}: {row['heads_closed']} of {closed.heads_total} heads closed, "
            f"{metric.title} {row[f'valid_{metric.name}']:.2f} on validation, {row[f'test_{metric.name}']:.2f} on test"
        )


def check_base(row: Row, measure: Measure, path: Any) -> None:
    """Raises ValueError where the model with all heads does not translate as in the file's first row."""
    for split in SPLITS:
        base = measure.base[split]
        if not np.isclose(row[f"{split}_{base.main_name}"], base.main, rtol=0, atol=1e-9):
            raise ValueError(
                f"the unpruned model translates otherwise than when {path} was begun (another machine, or other packages?): {split} "
                f"{base.metrics[0].title} {base.main:.4f}, then {row[f'{split}_{base.main_name}']:.4f}; --fresh begins anew"
            )


def score_request(dense: DenseModel, config: PruneConfig, seed: int, report: Report) -> ScoreRequest:
    """What prune.py's settings ask of a score."""
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


def by_layer(order: str, config: PruneConfig) -> bool:
    """Whether each layer's scores are divided by their norm: as the score does, unless --normalise says otherwise."""
    return SCORES[order].l2 if config.normalise is None else config.normalise == "l2"


def settings(order: str, dense: DenseModel, config: PruneConfig, kinds: Sequence[str]) -> dict[str, Any]:
    """All that a curve depends on."""
    score, source = SCORES[order], dense.source
    made_of: dict[str, Any] = {"order": order, "kinds": [kind for kind in KINDS if kind in kinds]}
    made_of |= {"step": config.step, "at_least": config.at_least} | prediction_settings(source)
    made_of |= {"normalise": "l2" if by_layer(order, config) else "none", "weights": source.weights}
    if score.from_gradients:
        made_of |= {"abs": config.abs, "sentences": config.sentences, "recompute": config.recompute}
        if config.abs == "batch":
            made_of["batch_tokens"] = BATCH_TOKENS
    if score.seeded:
        made_of |= {"seed": config.seed, "random_seeds": config.random_seeds}
    for split, text in (("valid", dense.valid), ("test", dense.test)):
        made_of[split] = {"sentences": len(text[0]), "digest": digest_lines(*text)}
    return made_of


# ---------------------------------------------------------------- names of files


def curve_name(order: str, config: PruneConfig, kinds: Sequence[str]) -> str:
    """Of the curve's files: the order, and each setting that is not the usual one."""
    words, score = [order], SCORES[order]
    l2 = by_layer(order, config)
    if score.from_gradients:
        words += [config.abs] * (config.abs != "sentence") + [f"n{config.sentences}"] * (config.sentences > 0)
        words += ["recompute"] * config.recompute
    if l2 != score.l2:
        words.append("l2" if l2 else "raw")
    if score.seeded:
        words += [f"{config.random_seeds}seeds"] * (config.random_seeds != 5) + [f"from{config.seed}"] * (config.seed != 1)
    words += [f"step{config.step:g}"] * (config.step != 0.1) + [f"atleast{config.at_least}"] * (config.at_least > 0)
    words += [f"beam{config.beam}"] * (config.beam > 1)
    words += [f"v{config.valid_sentences}"] * (config.valid_sentences > 0) + [f"t{config.test_sentences}"] * (config.test_sentences > 0)
    return "-".join(words + kinds_words(kinds))


def figure_name(config: PruneConfig) -> str:
    """Of the figure with all curves of a command."""
    if config.each_kind:
        names = [curve_name(order, config, KINDS) for order in config.orders]
        return "-".join(["+".join(names), "by-kind", *kinds_words(config.kinds)])
    return "+".join(curve_name(order, config, config.kinds) for order in config.orders)


# ---------------------------------------------------------------- what a curve says


def main_metric(rows: Sequence[Row]) -> str:
    """The metric that decides: the one whose differences were tested."""
    return next(name for name in rows[0] if name.startswith("valid_") and name.endswith("_p_value"))[len("valid_") : -len("_p_value")]


def choose(rows: Sequence[Row]) -> Row:
    """The most heads closed whose validation score is not significantly below the whole model's (p >= 0.01, or not below), in every seed;
    with what that gives on test: the mean over seeds, and the lowest and highest end of the intervals."""
    main = main_metric(rows)
    steps: dict[int, list[Row]] = {}
    for row in rows:
        steps.setdefault(row["heads_closed"], []).append(row)
    seeds = len(steps[0])
    kept = [
        count
        for count, group in steps.items()
        if len(group) == seeds and all(row[f"valid_{main}_p_value"] >= SIGNIFICANT or row[f"valid_{main}_difference"] >= 0 for row in group)
    ]
    group = steps[max(kept)]  # closing nothing is never significant
    others = [name for name in rows[0] if name.startswith("test_") and not name.endswith(("_low", "_high", "_p_value", "_difference"))]
    averaged = [f"valid_{main}", f"test_{main}", f"test_{main}_difference", *(name for name in others if name != f"test_{main}")]
    mean = {name: sum(row[name] for row in group) / len(group) for name in averaged}
    edges = {
        f"test_{main}_difference_low": min(row[f"test_{main}_difference_low"] for row in group),
        f"test_{main}_difference_high": max(row[f"test_{main}_difference_high"] for row in group),
        f"test_{main}_p_value": min(row[f"test_{main}_p_value"] for row in group),
    }
    return {name: group[0][name] for name in ("heads_closed", "heads_open", "heads_total", "closed_share")} | mean | edges
