"""The data of the report page: `analysis/<system>/cards.json`.

    heads       a card for each head: kind, layer, roles, confidence, LRP share, importance, entropy,
    ablation, its gate's log alpha by run; asked: the families of roles that were looked for
    examples    a few sentences with the attention of every head
    sentences   those on which closing a head costs most: their losses' rises by head, and its attention there
    measured    the files of the exact effects, and on how much text: `loss`, `metric`
    states      which heads are open: a state for every run with gates, and for every step of the plain
    gradient curve
    metric      what the scores measure: BLEU, for translation
    curves      the score against open heads, from the base's curves/*.csv
    comparisons the comparisons that compare.py made on the base: summary, points, figure
    causes      of --causes: rows of the card, pairs of heads, and for each head its exact effect and every
    score
    contrasts   of each --contrast: sentences, and a row for each head
    shapes: pruned models layer by layer (shapes.py)
    systems, survival, tests, correlations: rows of tables

Unknown numbers are null. `beam` says with which search a score was measured: a run's own, or that of the
command that drew the curve."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from headgates.analysis.attention_pass import AttentionBatch, observe_attention
from headgates.analysis.results import AnalysisResult, head_map_of
from headgates.analysis.roles import Role, families_asked
from headgates.configs.scores import SCORES
from headgates.configs.systems import TRAINED
from headgates.data.npz import read_npz
from headgates.data.text import reworded
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import base_request, base_score, score_path
from headgates.explain.findings import Findings
from headgates.gates import KINDS, HeadMap, HeadSite, find_sites
from headgates.models.progress import say
from headgates.pruning.curve import main_metric
from headgates.pruning.scores import pairs_sampled
from headgates.records.folder import VERSION, RunFolder
from headgates.records.related import GateRun
from headgates.records.row import ResultRow
from headgates.records.table import Row, read_table
from headgates.report.causes import causes_data
from headgates.report.compare_files import comparisons_of
from headgates.report.contrasts import contrast_data
from headgates.report.page import compact, json_ready
from headgates.report.shapes import shape_cards

OFFSETS = 5  # number of offsets on a card
TABLES = ("survival", "tests", "correlations")
MEASURED_BY = {"step", "search", "significance_test", "valid", "test"}  # of a curve's settings: not the order
EXAMPLE_PIECES = 16  # length of the longest example, in pieces, if there are sentences as short as that


def report_data(
    analysed: AnalysedModel,
    results: Mapping[str, AnalysisResult],
    found: Findings,
    *,
    with_examples: bool = True,
) -> dict[str, Any]:
    """Return the data of the page, ready for JSON. found: what the results say together."""
    own = [row for row in analysed.base.rows() if row.system == analysed.base.own_system()]
    facts = {name: result.facts for name, result in results.items()}
    states = [gate_run_state(analysed, run) for run in analysed.shown_runs]
    data: dict[str, Any] = json_ready(
        {
            "run": analysed.folder.path.resolve().name,
            "base": analysed.base.path.resolve().name,
            "system": analysed.system,
            "metric": analysed.source.task.metrics[0].title,
            "base_value": own[0].main.value if own else None,
            "made": analysed.provenance,
            "settings": {**analysed.fingerprint(), "what": list(results), "facts": facts},
            "heads": head_cards(analysed, results, found.roles),
            "examples": example_sentences(analysed) if with_examples else [],
            "sentences": costly_sentences(analysed, results),
            "measured": measured_effects(analysed),
            "states": [*states, *importance_states(analysed)],
            "curves": [*curves_of(analysed.base), *trained_curves(analysed.shown_runs)],
            "comparisons": comparisons_of(analysed.base),
            "causes": found.causes and causes_data(found.causes),
            "contrasts": [contrast_data(found.contrast)] if found.contrast else [],
            "shapes": shapes_of(analysed),
            "systems": system_rows([run.folder for run in analysed.shown_runs] or [analysed.base]),
            **{name: getattr(found, name) for name in TABLES},
        }
    )
    return data


def write_cards(analysed: AnalysedModel, data: dict[str, Any]) -> None:
    """Write cards.json to the results folder."""
    analysed.folder.write_text(
        f"{analysed.results_folder}/cards.json", compact({"version": VERSION, **data}) + "\n"
    )


# ---------------------------------------------------------------- heads


def head_cards(
    analysed: AnalysedModel, results: Mapping[str, AnalysisResult], roles: Sequence[Role]
) -> list[dict[str, Any]]:
    """Return a card for each head."""
    maps = {
        "confidence": head_map_of(results, "confidence", "confidence"),
        "lrp_share": head_map_of(results, "lrp", "share"),
        "lrp_signed": head_map_of(results, "lrp", "signed"),
        "importance": base_score(analysed, "importance"),
        "loss": base_score(analysed, "loss"),
        "entropy": head_map_of(results, "alignment", "entropy"),
    }
    own = [name for name, score in SCORES.items() if not score.family and not score.by_chance]
    scores = {name: found for name in own if (found := base_score(analysed, name)) is not None}
    removed = removals(analysed)
    histories = {run.name: gate_history(run.folder) for run in analysed.shown_runs}
    asked = families_asked(results)
    offsets: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in results["positions"].tables["offsets"] if "positions" in results else []:
        offsets.setdefault((row["site"], row["head"]), []).append((row["offset"], row["share"]))
    cards = []
    for site in sites_of(analysed, analysed.shown_kinds):
        for head in range(site.heads):
            key = site.name, head
            # where heads were removed for good, the others have moved up: their numbers are not those of the
            # history, which knows more heads
            whole = (each for each in histories.items() if (site.name, site.heads) not in each[1])
            far = sorted(offsets.get(key, []), key=lambda pair: (-pair[1], abs(pair[0])))
            cards.append(
                {
                    **site.row(head),
                    "roles": [role.to_json() for role in roles if (role.site, role.head) == (site, head)],
                    "asked": [family for family, heads in asked.items() if site in heads],
                    **{
                        name: float(scores[site][head]) if scores is not None and site in scores else None
                        for name, scores in maps.items()
                    },
                    "scores": {
                        name: float(found[site][head])
                        for name, found in scores.items()
                        if name not in maps and site in found
                    },
                    "ablation": removed.get(key),
                    "gate_path": {run: history[key] for run, history in whole if key in history} or None,
                    "offsets": far[:OFFSETS],
                }
            )
    return cards


def sites_of(analysed: AnalysedModel, kinds: Sequence[str]) -> list[HeadSite]:
    """Return the sites of these kinds that have heads."""
    return [site for site in find_sites(analysed.predictor.model) if site.kind in kinds and site.heads]


def removals(analysed: AnalysedModel) -> dict[tuple[str, int], Row]:
    """(site, head) -> what removing the head alone does to the metric, from `prune.py --ablate one`; empty
    where it was not run."""
    if not analysed.is_base or not (analysed.base / "ablation/one.csv").is_file():
        return {}
    difference = f"{analysed.source.task.metrics[0].name}_difference"
    return {
        (row["site"], row["head"]): {"difference": row[difference]}
        | {name: row[name] for name in ("p_value", "p_value_holm")}
        for row in read_table(analysed.base, "ablation/one.csv")
    }


def measured_effects(analysed: AnalysedModel) -> dict[str, dict[str, Any]]:
    """Where the exact effects of single heads come from: the rise of the loss and the fall of the metric."""
    found: dict[str, dict[str, Any]] = {}
    if (file := score_path(analysed, "loss")) is not None:
        pairs = pairs_sampled(SCORES["loss"], base_request(analysed)) or len(analysed.source.corpus.train)
        found["loss"] = {"file": file, "pairs": pairs}
    if removals(analysed):
        found["metric"] = {"file": "ablation/one.csv"}
    return found


def gate_history(folder: RunFolder) -> dict[tuple[str, int], dict[str, list[float]]]:
    """(site, head) -> {"steps", "log_alpha"} while the gates were trained; empty where the run recorded
    none."""
    path = folder / "gates_history.npz"
    if not path.is_file():
        return {}
    history, cure = {}, "repeat the run with --fresh, or remove the file to do without it"
    with reworded(f"{path} is broken", cure):
        recorded = read_npz(path, cure=cure)
        steps, values = recorded["steps"].tolist(), np.round(recorded["log_alpha"].astype(float), 3)
        for column, name in enumerate(recorded["heads"].tolist()):
            site, _, head = name.rpartition(".")
            history[site, int(head)] = {"steps": steps, "log_alpha": values[:, column].tolist()}
    return history


# ---------------------------------------------------------------- sentences


class KeepAttention(list[AttentionBatch]):
    """An observer that keeps the attention of every batch; for a few sentences."""

    add = list.append


def example_sentences(analysed: AnalysedModel) -> list[dict[str, Any]]:
    """Sentences of about the median length, or all of --examples-from (own), with every head's attention."""
    own = analysed.config.examples_from is not None
    lengths = analysed.data.split(analysed.examples_split).pairs.lengths("source").tolist()
    chosen = range(len(lengths)) if own else near_median_length(lengths, analysed.config.examples)
    return [{**drawn_sentence(analysed, analysed.examples_split, i), "own": own} for i in chosen]


def costly_sentences(analysed: AnalysedModel, results: Mapping[str, AnalysisResult]) -> list[dict[str, Any]]:
    """The sentences of the analysis of that name: `effects` of heads by name, in nats, and the attention of
    these heads alone, (L, S) by site and head."""
    heads: dict[int, dict[tuple[str, int], float]] = {}
    for row in results["sentences"].tables["sentences"] if "sentences" in results else []:
        heads.setdefault(row["sentence"], {})[row["site"], row["head"]] = round(row["effect"], 4)
    places = {int(number): i for i, number in enumerate(analysed.data.split(analysed.split).numbers)}
    sentences = []
    for number, effects in sorted(heads.items()):
        sentence = drawn_sentence(analysed, analysed.split, places[number])
        every, kept = sentence["weights"], dict[str, dict[int, Any]]()
        for site, head in effects:
            kept.setdefault(site, {})[head] = every[site][head]
        named = {f"{site}.{head}": effect for (site, head), effect in effects.items()}
        sentences.append({**sentence, "weights": kept, "effects": named})
    return sentences


def drawn_sentence(analysed: AnalysedModel, split_name: str, i: int) -> dict[str, Any]:
    """Pair i of a split, with every head's attention, (H, L, S) by site, rounded to 3 digits.

    source: its pieces and the end; target: what the decoder reads (queries and keys of its self-attention);
    produced: what it writes (the queries of cross attention)."""
    split, predictor = analysed.data.split(split_name), analysed.predictor
    source, target = split.pairs[i]
    kept = KeepAttention()
    batch = split[([i], len(target) + 1)]
    observe_attention(predictor.model, [batch], [kept], kinds=analysed.shown_kinds)
    written = predictor.target_vocab.pieces(target)
    return {
        "number": int(split.numbers[i]),
        "source": predictor.source_vocab.pieces([*source, predictor.source_vocab.specials.end]),
        "target": ["<s>", *written],
        "produced": [*written, "</s>"],
        "weights": {
            site.name: np.round(weights[0].double().cpu().numpy(), 3).tolist()
            for site, weights in sorted(kept[0].weights.items())
        },
    }


def near_median_length(lengths: Sequence[int], count: int) -> list[int]:
    """The numbers of `count` sentences, those nearest to the median length, or to EXAMPLE_PIECES where that
    is less."""
    wanted = min(int(np.median(lengths)), EXAMPLE_PIECES) if lengths else 0
    nearest_first = sorted(range(len(lengths)), key=lambda i: (abs(lengths[i] - wanted), i))
    return sorted(nearest_first[:count])


# ---------------------------------------------------------------- states, curves and systems


def gate_run_state(analysed: AnalysedModel, run: GateRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "series": run.method.label,
        "learned": True,
        "run": run.name,
        "lambda": run.config["lambda"] if run.method.controlled_by == "lambda" else None,
        **row_point(run.row),
        "heads_total": run.row.heads_total,
        "reference": run.row.reference,
        "difference": run.row.main.difference,
        "difference_ci95": run.row.main.difference_ci95,
        "beam": beam_of(run.row.evaluation),
        "open": open_by_site(analysed, run.open),
    }


def point(heads_open: int, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"heads_open": heads_open, "value": value, "low": low, "high": high}


def row_point(row: ResultRow) -> dict[str, Any]:
    return point(row.heads_open, row.main.value, *(row.main.ci95 or (None, None)))


def beam_of(settings: Mapping[str, Any]) -> Any:
    return settings.get("search", {}).get("beam")


def open_by_site(analysed: AnalysedModel, is_open: HeadMap) -> dict[str, list[bool]]:
    """Whether each head is open. At sites without a gate all heads are, and at sites that lost heads for
    good, all that are left."""
    return {
        site.name: is_open[site].tolist() if site in is_open else [True] * site.heads
        for site in sites_of(analysed, analysed.shown_kinds)
    }


def finished_curves(base: RunFolder) -> list[tuple[str, dict[str, Any], str, list[Row]]]:
    """File, cache key, metric and rows of the finished curves that close heads of all kinds; of one that is
    broken is said that it is left out. Of those that differ in text, search and steps alone, the one on the
    most test lines."""
    best: dict[str, tuple[tuple[int, int], Any]] = {}
    for path in sorted(base.path.glob("curves/*.csv")):
        record = f"curves/{path.stem}.json"
        try:
            content = base.read_json(record) if (base / record).is_file() else {}
            settings: dict[str, Any] = content.get("cache_key") or {} if content.get("finished") else {}
            if {"order", "closing", "recompute"} <= settings.keys() and settings.get("kinds") == list(KINDS):
                rows = read_table(base, f"curves/{path.name}")
                found = path.stem, settings, measured_by(base, f"curves/{path.name}", settings, rows), rows
                method = {name: settings[name] for name in settings.keys() - MEASURED_BY}
                rank, name = (settings["test"]["sentences"], len(rows)), json.dumps(method, sort_keys=True)
                best[name] = max(best.get(name, (rank, found)), (rank, found), key=lambda each: each[0])
        except ValueError as error:
            say(f"left out: {error}")
    return [found for _, found in best.values()]


def measured_by(base: RunFolder, name: str, settings: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The column of the deciding metric. Raises ValueError unless the rows are those of a curve."""
    with suppress(AttributeError, IndexError, StopIteration, TypeError):
        metric = f"test_{main_metric(rows)}"
        counts = ("heads_open", "heads_closed", "heads_total")
        numbers = ("closed_share", *(metric + end for end in ("", "_low", "_high")))
        if (
            all(isinstance(row.get(each), int) for row in rows for each in counts)
            and all(isinstance(row.get(each), int | float) for row in rows for each in numbers)
            and isinstance(settings.get("search", {}), dict)
            and isinstance(settings.get("test", {}).get("sentences"), int)
            and all(isinstance(settings[each], str) for each in ("order", "closing"))
        ):
            return metric
    raise base.foreign(name, "its rows are not those of a curve")


def importance_states(analysed: AnalysedModel) -> list[dict[str, Any]]:
    """The steps of the plain importance curve over all kinds, where prune.py drew one on the base; empty
    otherwise."""
    for name, settings, measured, rows in finished_curves(analysed.base) if analysed.is_base else ():
        plain = (settings["order"], settings["closing"], bool(settings["recompute"]))
        path = analysed.base / f"curves/{name}-order.json"
        if plain != ("importance", "zero", False) or not path.is_file():
            continue
        order = HeadMap.load(path)  # the step at which each head closes, below 0 for those that never do
        return [
            {
                "label": f"importance {row['closed_share']:.0%}",
                "series": "importance",
                "learned": False,
                "run": name,
                "lambda": None,
                **point(row["heads_open"], *(row[measured + end] for end in ("", "_low", "_high"))),
                "heads_total": row["heads_total"],
                "beam": beam_of(settings),
                "open": open_by_site(analysed, order.map(partial(stay_open, row["heads_closed"]))),
            }
            for row in rows
            if row["heads_closed"]
        ]
    return []


def curves_of(base: RunFolder) -> list[dict[str, Any]]:
    """For every finished curve the test score at each number of open heads: its mean over seeds, and the ends
    of the widest interval."""
    curves = []
    for file, settings, measured, rows in finished_curves(base):
        points = []
        for heads in sorted({row["heads_open"] for row in rows}, reverse=True):
            at = [row for row in rows if row["heads_open"] == heads]
            low, high = min(row[f"{measured}_low"] for row in at), max(row[f"{measured}_high"] for row in at)
            points.append(point(heads, fmean(row[measured] for row in at), low, high))
        name = ":".join([settings["order"], *[settings["closing"]] * (settings["closing"] != "zero")])
        lines = settings["test"]["sentences"]
        curves.append(
            {"name": name, "file": file, "beam": beam_of(settings), "lines": lines, "points": points}
        )
    return curves


def trained_curves(runs: Sequence[GateRun]) -> list[dict[str, Any]]:
    """What trained on for as long as the gates did: the base, and the base pruned by each score, at the
    numbers of open heads of the runs. Without them learned gates would stand beside pruning without training
    alone, and seem ahead by what any training gains."""
    found: dict[str, dict[int, ResultRow]] = {}
    for row in (row for run in runs for row in run.folder.rows()):
        if row.system == "base-continued" or row.system.endswith(TRAINED):
            found.setdefault(row.system, {})[row.heads_open] = row
    curves = []
    for name, rows in found.items():
        points = [row_point(rows[heads]) for heads in sorted(rows, reverse=True)]
        beam = beam_of(next(iter(rows.values())).evaluation)
        curves.append({"name": name, "file": None, "trained": True, "beam": beam, "points": points})
    return curves


def shapes_of(analysed: AnalysedModel) -> list[dict[str, Any]]:
    """Of the base's page and those of the runs on it; elsewhere empty."""
    gated = {run.name: (f"{run.method.label}, {run.label}", run.row) for run in analysed.shown_runs}
    if not analysed.is_base:
        return []
    return shape_cards(analysed.base, analysed.source.model, gated, analysed.folders)


def system_rows(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the rows of the runs' result.json, each with its run's name, but without how its system was
    trained and evaluated."""
    rows = []
    for folder in folders:
        for row in folder.rows():
            short = replace(row, stage=None, evaluation={}, heads_by_site=None)
            rows.append({"run": folder.path.resolve().name, **short.to_json()})
    return rows


def stay_open(closed: int, step: Tensor) -> Tensor:
    """(H,) bool from the steps at which heads close: those still open when `closed` are."""
    return (step < 0) | (step >= closed)
