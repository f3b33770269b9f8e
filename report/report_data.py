"""The data of the report page: `analysis/<system>/cards.json`.

    heads       a card for each head: kind, layer, roles, confidence, LRP share, importance, entropy,
    ablation, its gate's log alpha by run
    examples    a few sentences with the attention of every head
    states      which heads are open: a state for every run with gates, and for every step of the plain
    gradient curve
    metric      what the scores measure: BLEU, for translation
    curves      the score against open heads, from the base's curves/*.csv
    comparisons the comparisons that compare.py made on the base: summary, points, figure
    systems, survival, tests, correlations: rows of tables

Unknown numbers are null. `beam` says with which search a score was measured: a run's own, or that of the
command that drew the curve."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headgates.analysis.attention_pass import AttentionBatch, observe_attention
from headgates.analysis.results import AnalysisResult, head_map_of
from headgates.analysis.roles import Role
from headgates.configs.systems import TRAINED
from headgates.gates import KINDS, HeadMap, HeadSite, find_sites
from headgates.report.compare_files import comparisons_of
from headgates.report.page import json_ready
from headgates.workbench.analysed_model import AnalysedModel
from headgates.workbench.analyses import importance_of_base
from headgates.workbench.curve import main_metric
from headgates.workbench.folder import RunFolder
from headgates.workbench.related import GateRun
from headgates.workbench.row import ResultRow
from headgates.workbench.table import Row, read_table

OFFSETS = 5  # number of offsets on a card
EXAMPLE_PIECES = 16  # length of the longest example, in pieces, if there are sentences as short as that


def report_data(
    analysed: AnalysedModel,
    results: Mapping[str, AnalysisResult],
    roles: Sequence[Role],
    tables: Mapping[str, Sequence[Row]],
    *,
    with_examples: bool = True,
) -> dict[str, Any]:
    """Return the data of the page, ready for JSON. tables: the rows of `survival`, `tests` and
    `correlations`, each of them maybe empty."""
    facts = {name: result.facts for name, result in results.items()}
    data: dict[str, Any] = json_ready(
        {
            "run": analysed.folder.path.resolve().name,
            "base": analysed.base.path.resolve().name,
            "system": analysed.system,
            "metric": analysed.source.task.metrics[0].title,
            "base_value": next(
                (row.main.value for row in analysed.base.rows() if row.system == analysed.base.own_system()),
                None,
            ),
            "made": analysed.provenance,
            "settings": {**analysed.fingerprint(), "what": list(results), "facts": facts},
            "heads": head_cards(analysed, results, roles),
            "examples": example_sentences(analysed) if with_examples else [],
            "states": [
                *(gate_run_state(analysed, run) for run in analysed.gate_runs),
                *importance_states(analysed),
            ],
            "curves": [*curves_of(analysed.base), *trained_curves(analysed.gate_runs)],
            "comparisons": comparisons_of(analysed.base),
            "systems": system_rows([run.folder for run in analysed.gate_runs] or [analysed.base]),
            **{name: tables[name] for name in ("survival", "tests", "correlations")},
        }
    )
    return data


def write_cards(analysed: AnalysedModel, data: dict[str, Any]) -> None:
    """Write cards.json to the results folder; without spaces, because the attention weights are many
    numbers."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    analysed.folder.write_text(f"{analysed.results_folder}/cards.json", text + "\n")


# ---------------------------------------------------------------- heads


def head_cards(
    analysed: AnalysedModel, results: Mapping[str, AnalysisResult], roles: Sequence[Role]
) -> list[dict[str, Any]]:
    """Return a card for each head of the kinds that were analysed."""
    maps = {
        "confidence": head_map_of(results, "confidence", "confidence"),
        "lrp_share": head_map_of(results, "lrp", "share"),
        "lrp_signed": head_map_of(results, "lrp", "signed"),
        "importance": importance_of_base(analysed),
        "entropy": head_map_of(results, "alignment", "entropy"),
    }
    metric = analysed.source.task.metrics[0].name
    ablation_of = {(row["site"], row["head"]): row for row in ablation_rows(analysed)}
    offsets: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in results["positions"].tables["offsets"] if "positions" in results else []:
        offsets.setdefault((row["site"], row["head"]), []).append((row["offset"], row["share"]))
    histories = {run.name: gate_history(run.folder) for run in analysed.gate_runs}
    cards = []
    for site in sites_of(analysed):
        # where heads were removed for good, the others have moved up: their numbers are not those of the
        # history
        same_heads = [
            run
            for run, history in histories.items()
            if sum(name == site.name for name, _ in history) == site.heads
        ]
        for head in range(site.heads):
            key = (site.name, head)
            card: dict[str, Any] = {"site": site.name, "kind": site.kind, "layer": site.layer, "head": head}
            card["roles"] = [role.to_json() for role in roles if (role.site, role.head) == (site, head)]
            for name, head_map in maps.items():
                card[name] = (
                    float(head_map[site][head]) if head_map is not None and site in head_map else None
                )
            card["ablation"] = None
            if ablation := ablation_of.get(key):
                p_values = {name: ablation[name] for name in ("p_value", "p_value_holm")}
                card["ablation"] = {"difference": ablation[f"{metric}_difference"]} | p_values
            card["gate_path"] = {run: histories[run][key] for run in same_heads} or None
            largest_first = sorted(offsets.get(key, []), key=lambda pair: (-pair[1], abs(pair[0]), pair[0]))
            card["offsets"] = [list(pair) for pair in largest_first[:OFFSETS]]
            cards.append(card)
    return cards


def sites_of(analysed: AnalysedModel) -> list[HeadSite]:
    """Return the sites of the kinds that were analysed."""
    return [
        site
        for site in find_sites(analysed.predictor.model)
        if site.kind in analysed.config.kinds and site.heads
    ]


def ablation_rows(analysed: AnalysedModel) -> list[Row]:
    """Return the rows of `prune.py --ablate one`: what removing each head alone does to the score. Empty
    where it was not run."""
    exists = analysed.is_base and (analysed.base / "ablation/one.csv").is_file()
    return read_table(analysed.base, "ablation/one.csv") if exists else []


def gate_history(folder: RunFolder) -> dict[tuple[str, int], dict[str, list[float]]]:
    """(site, head) -> {"steps", "log_alpha"} while the gates were trained; empty where the run recorded
    none."""
    path = folder / "gates_history.npz"
    if not path.is_file():
        return {}
    history = {}
    try:
        with np.load(path) as recorded:
            steps, values, names = (
                recorded["steps"].tolist(),
                recorded["log_alpha"].astype(float),
                recorded["heads"].tolist(),
            )
        for column, name in enumerate(names):
            site, _, head = name.rpartition(".")
            history[site, int(head)] = {"steps": steps, "log_alpha": np.round(values[:, column], 3).tolist()}
    except Exception as error:  # strange bytes send zipfile and numpy anywhere
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{path} is broken ({reason}); repeat the run with --fresh, or remove the file to do without it"
        ) from error
    return history


# ---------------------------------------------------------------- sentences


class KeepAttention:
    """An observer that keeps the attention of every batch; for a few sentences."""

    def __init__(self) -> None:
        self.batches: list[AttentionBatch] = []

    def add(self, attention: AttentionBatch) -> None:
        self.batches.append(attention)


def example_sentences(analysed: AnalysedModel) -> list[dict[str, Any]]:
    """Sentences of about the median length, or all of --examples-from, with every head's attention, (H, L, S)
    by site, rounded to 3 digits.

    source: its pieces and the end; target: what the decoder reads (queries and keys of its self-attention);
    produced: what it writes (the queries of cross attention)."""
    split, predictor = analysed.data.split(analysed.examples_split), analysed.predictor
    lengths = split.pairs.lengths("source").tolist()
    own = analysed.config.examples_from is not None
    examples = []
    for i in range(len(lengths)) if own else near_median_length(lengths, analysed.config.examples):
        kept = KeepAttention()
        observe_attention(
            predictor.model, [split[([i], len(split.pairs[i][1]) + 1)]], [kept], kinds=analysed.config.kinds
        )
        weights = {
            site.name: np.round(w[0].double().cpu().numpy(), 3).tolist()
            for site, w in sorted(kept.batches[0].weights.items())
        }
        end = predictor.source_vocab.specials.end
        source, target = (
            predictor.source_vocab.pieces([*split.pairs[i][0], end]),
            predictor.target_vocab.pieces(split.pairs[i][1]),
        )
        pieces = {"source": source, "target": ["<s>", *target], "produced": [*target, "</s>"]}
        examples.append({"number": int(split.numbers[i]), **pieces, "weights": weights})
    return examples


def near_median_length(lengths: Sequence[int], count: int) -> list[int]:
    """The numbers of `count` sentences, those nearest to the median length, or to EXAMPLE_PIECES where that
    is less."""
    wanted = min(int(np.median(lengths)), EXAMPLE_PIECES) if lengths else 0
    nearest_first = sorted(range(len(lengths)), key=lambda i: (abs(lengths[i] - wanted), i))
    return sorted(nearest_first[:count])


# ---------------------------------------------------------------- states, curves and systems


def gate_run_state(analysed: AnalysedModel, run: GateRun) -> dict[str, Any]:
    row, main = run.row, run.row.main
    return {
        "label": run.label,
        "series": run.method.label,
        "learned": True,
        "run": run.name,
        "lambda": run.config["lambda"] if run.method.controlled_by == "lambda" else None,
        **point(row.heads_open, main.value, *(main.ci95 or (None, None))),
        "heads_total": row.heads_total,
        "beam": beam_of(row),
        "open": open_by_site(analysed, run.open),
    }


def point(heads_open: int, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"heads_open": heads_open, "value": value, "low": low, "high": high}


def beam_of(row: ResultRow) -> int | None:
    beam: int | None = row.evaluation.get("search", {}).get("beam")
    return beam


def open_by_site(analysed: AnalysedModel, is_open: HeadMap) -> dict[str, list[bool]]:
    """Whether each head is open. At sites without a gate all heads are, and at sites that lost heads for
    good, all that are left."""
    return {
        site.name: is_open[site].tolist() if site in is_open else [True] * site.heads
        for site in sites_of(analysed)
    }


def importance_states(analysed: AnalysedModel) -> list[dict[str, Any]]:
    """The steps of the plain gradient curve over all kinds, where prune.py drew one on the base; empty
    otherwise."""
    for path in sorted(analysed.base.path.glob("curves/gradient*-order.json")) if analysed.is_base else []:
        name = path.name.removesuffix("-order.json")
        settings = finished_curve_settings(analysed.base, name)
        if settings is None or settings["recompute"] or settings["closing"] != "zero":
            continue
        order = HeadMap.load(path)  # the step at which each head closes, below 0 for those that never do
        rows = read_table(analysed.base, f"curves/{name}.csv")
        main = main_metric(rows)
        return [
            {
                "label": f"importance {row['closed_share']:.0%}",
                "series": "importance",
                "learned": False,
                "run": name,
                "lambda": None,
                **point(row["heads_open"], *(row[f"test_{main}{end}"] for end in ("", "_low", "_high"))),
                "heads_total": row["heads_total"],
                "beam": settings.get("search", {}).get("beam"),
                "open": open_by_site(analysed, open_after(order, row["heads_closed"])),
            }
            for row in rows
            if row["heads_closed"]
        ]
    return []


def open_after(order: HeadMap, closed: int) -> HeadMap:
    """The heads that are open after so many are closed."""
    return order.map(lambda step: (step < 0) | (step >= closed))


def finished_curve_settings(base: RunFolder, name: str) -> dict[str, Any] | None:
    """The cache key of a curve; None unless it is finished and closes heads of all kinds."""
    if not (base / f"curves/{name}.json").is_file() or not (base / f"curves/{name}.csv").is_file():
        return None
    content = base.read_json(f"curves/{name}.json")
    settings: dict[str, Any] = content.get("cache_key") or {} if content.get("finished") else {}
    whole = {"order", "closing", "recompute"} <= settings.keys() and settings.get("kinds") == list(KINDS)
    return settings if whole else None


def curves_of(base: RunFolder) -> list[dict[str, Any]]:
    """For every finished curve the test score at each number of open heads: its mean over seeds, and the ends
    of the widest interval."""
    curves = []
    for path in sorted(base.path.glob("curves/*.csv")):
        settings = finished_curve_settings(base, path.stem)
        if settings is None:
            continue
        all_rows = read_table(base, f"curves/{path.name}")
        main = main_metric(all_rows)
        rows_at: dict[int, list[Row]] = {}
        for row in all_rows:
            rows_at.setdefault(row["heads_open"], []).append(row)
        points = []
        for heads_open, rows in sorted(rows_at.items(), reverse=True):
            value = sum(row[f"test_{main}"] for row in rows) / len(rows)
            low, high = (
                min(row[f"test_{main}_low"] for row in rows),
                max(row[f"test_{main}_high"] for row in rows),
            )
            points.append(point(heads_open, value, low, high))
        name = ":".join([settings["order"], *[settings["closing"]] * (settings["closing"] != "zero")])
        curves.append(
            {
                "name": name,
                "file": path.stem,
                "beam": settings.get("search", {}).get("beam"),
                "points": points,
            }
        )
    return curves


def trained_curves(runs: Sequence[GateRun]) -> list[dict[str, Any]]:
    """What trained on for as long as the gates did: the base, and the base pruned by each score, at the
    numbers of open heads of the runs. Without them learned gates would stand beside pruning without training
    alone, and seem ahead by what any
    training gains."""
    curves: dict[str, dict[str, Any]] = {}
    for row in (row for run in runs for row in run.folder.rows()):
        if row.system != "base-continued" and not row.system.endswith(TRAINED):
            continue
        known: dict[str, Any] = {
            "name": row.system,
            "file": None,
            "trained": True,
            "beam": beam_of(row),
            "points": {},
        }
        interval = row.main.ci95 or (None, None)
        curve = curves.setdefault(row.system, known)
        curve["points"][row.heads_open] = point(row.heads_open, row.main.value, *interval)
    return [
        curve | {"points": sorted(curve["points"].values(), key=lambda point: -point["heads_open"])}
        for curve in curves.values()
    ]


def system_rows(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Return the rows of the runs' result.json, each with its run's name, but without how its system was
    trained and evaluated."""
    left_out = ("stage", "evaluation", "heads_by_site")
    rows = [(folder.path.resolve().name, row.to_json()) for folder in folders for row in folder.rows()]
    return [
        {"run": name, **{key: value for key, value in row.items() if key not in left_out}}
        for name, row in rows
    ]
