"""Every head's card, and all else that the report page shows: `analysis/<system>/cards.json`.

    heads       kind, layer, roles, confidence, LRP share, importance, entropy, ablation, the gate's way in each run
    examples    a few sentences with the attention of every head
    states      which heads are open: a state for every run with gates, and for every step of the plain gradient curve
    metric      what the scores are: BLEU, for translation
    curves      the score against open heads, of the base's curves/*.csv
    systems, survival, tests, correlations: rows of tables

Numbers that are not known are null. Search differs: a run's score is by its own search, a curve's by its command's (`beam` says which)."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.analyses import Found, importance, of
from analysis.attention_pass import Seen, record
from analysis.roles import Role
from analysis.study import Study
from gates import KINDS, HeadMap, HeadSite, find_sites
from pruning.curve import main_metric
from runfolder.folder import RunFolder
from runfolder.related import GateRun
from runfolder.table import Row, read_table

OFFSETS = 5  # of a card
EXAMPLE_PIECES = 16  # the longest example, if there are so short ones


def cards(
    study: Study, found: Mapping[str, Found], roles: Sequence[Role], tables: Mapping[str, Sequence[Row]], *, with_examples: bool = True
) -> dict[str, Any]:
    """The data of the page; JSON without NaN. tables: survival, tests and correlations, each may be empty."""
    settings: dict[str, Any] = {**study.made_of(), "what": list(found), "facts": {name: one.facts for name, one in found.items()}}
    data = {
        "run": study.folder.path.resolve().name,
        "base": study.base.path.resolve().name,
        "system": study.system,
        "metric": study.source.task.metrics[0].title,
        "base_value": next((row.main.value for row in study.base.rows() if row.system == study.base.own_system()), None),
        "made": study.facts,
        "settings": settings,
        "heads": heads(study, found, roles),
        "examples": examples(study) if with_examples else [],
        "states": [*(state(study, run) for run in study.gate_runs), *greedy_states(study)],
        "curves": curves(study.base),
        "systems": systems(study.gate_runs or [study.base]),
        **{name: list(tables[name]) for name in ("survival", "tests", "correlations")},
    }
    clean = plain(data)
    assert isinstance(clean, dict)
    return clean


def write_cards(study: Study, data: dict[str, Any]) -> None:
    """Compact: attention has many numbers."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    study.folder.write_text(f"{study.place}/cards.json", text + "\n")


def plain(value: Any) -> Any:
    """The same with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- heads


def heads(study: Study, found: Mapping[str, Found], roles: Sequence[Role]) -> list[dict[str, Any]]:
    """One card a head, of the kinds that were looked at."""
    maps = {
        "confidence": of(found, "confidence", "confidence"),
        "lrp_share": of(found, "lrp", "share"),
        "lrp_signed": of(found, "lrp", "signed"),
        "importance": importance(study),
        "entropy": of(found, "alignment", "entropy"),
    }
    removed = {(row["site"], row["head"]): row for row in ablation(study)}
    offsets: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in found["positions"].tables["offsets"] if "positions" in found else []:
        offsets.setdefault((row["site"], row["head"]), []).append((row["offset"], row["share"]))
    paths = {run.name: gate_paths(run.folder) for run in study.gate_runs}
    mine: dict[tuple[HeadSite, int], list[dict[str, Any]]] = {}
    for role in roles:
        mine.setdefault((role.site, role.head), []).append(role.to_json())
    result = []
    main = study.source.task.metrics[0].name
    for site in sites_of(study):
        for head in range(site.heads):
            here = (site.name, head)
            card: dict[str, Any] = {"site": site.name, "kind": site.kind, "layer": site.layer, "head": head}
            card["roles"] = mine.get((site, head), [])
            card |= {name: float(each[site][head]) if each is not None and site in each else None for name, each in maps.items()}
            lost = removed.get(here)
            card["ablation"] = lost and {
                "difference": lost[f"{main}_difference"],
                **{name: lost[name] for name in ("p_value", "p_value_holm")},
            }
            # where heads were removed for good, the others have moved up: their numbers are not those of the history
            path = {name: ways[here] for name, ways in paths.items() if here in ways and gated_heads(ways, site) == site.heads}
            card["gate_path"] = path or None
            best = sorted(offsets.get(here, []), key=lambda pair: (-pair[1], abs(pair[0]), pair[0]))
            card["offsets"] = [list(pair) for pair in best[:OFFSETS]]
            result.append(card)
    return result


def sites_of(study: Study) -> list[HeadSite]:
    """The sites that were looked at."""
    return [site for site in find_sites(study.translator.model) if site.kind in study.config.kinds and site.heads]


def gated_heads(ways: Mapping[tuple[str, int], Any], site: HeadSite) -> int:
    """How many heads the site had while its gates were trained."""
    return sum(name == site.name for name, _ in ways)


def ablation(study: Study) -> list[Row]:
    """What the removal of each head alone does to the score, where `prune.py --ablate one` left it."""
    there = study.is_base and (study.base / "ablation/one.csv").is_file()
    return read_table(study.base, "ablation/one.csv") if there else []


def gate_paths(folder: RunFolder) -> dict[tuple[str, int], dict[str, list[float]]]:
    """(site, head) -> steps and log alpha while the gates were trained; empty where the run kept none."""
    path = folder / "gates_history.npz"
    if not path.is_file():
        return {}
    with np.load(path) as history:
        steps, values, names = history["steps"].tolist(), history["log_alpha"].astype(float), history["heads"].tolist()
    ways = {}
    for column, name in enumerate(names):
        site, _, head = name.rpartition(".")
        ways[site, int(head)] = {"steps": steps, "log_alpha": np.round(values[:, column], 3).tolist()}
    return ways


# ---------------------------------------------------------------- sentences


class Weights:
    """Keeps all that it sees: for a few sentences."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    def add(self, seen: Seen) -> None:
        self.seen.append(seen)


def examples(study: Study) -> list[dict[str, Any]]:
    """Sentences of middling length with every head's attention, (L, S) rounded to 3 digits.

    source: pieces and end; target: what the decoder reads (queries and keys of its self-attention); produced: what it writes (the queries
    of cross attention)."""
    split = study.data.split(study.split)
    shown = []
    for i in middling([len(source) for source, _ in split.pairs], study.config.examples):
        batch = split[([i], len(split.pairs[i][1]) + 1)]
        keep = Weights()
        record(study.translator.model, [batch], [keep], kinds=study.config.kinds)
        weights = {site.name: np.round(each[0].double().cpu().numpy(), 3).tolist() for site, each in sorted(keep.seen[0].weights.items())}
        source, target = study.translator.source_vocab.pieces(split.pairs[i][0]), study.translator.target_vocab.pieces(split.pairs[i][1])
        ends = {"source": [*source, "</s>"], "target": ["<s>", *target], "produced": [*target, "</s>"]}
        shown.append({"number": split.numbers[i], **ends, "weights": weights})
    return shown


def middling(lengths: Sequence[int], count: int) -> list[int]:
    """The first `count` sentences of about the median length, or of EXAMPLE_PIECES where that is less."""
    wanted = min(int(np.median(lengths)), EXAMPLE_PIECES) if lengths else 0
    nearest = sorted(range(len(lengths)), key=lambda i: (abs(lengths[i] - wanted), i))
    return sorted(nearest[:count])


# ---------------------------------------------------------------- states, curves and systems


def state(study: Study, run: GateRun) -> dict[str, Any]:
    low, high = run.row.main.ci95 or (None, None)
    return {
        "label": run.label,
        "series": run.method.words,
        "learned": True,
        "run": run.name,
        "lambda": run.config["lambda"] if run.method.steered_by == "lambda" else None,
        "heads_open": run.row.heads_open,
        "heads_total": run.row.heads_total,
        "value": run.row.main.value,
        "low": low,
        "high": high,
        "beam": run.row.evaluation.get("search", {}).get("beam"),
        "open": opened(study, run.open),
    }


def opened(study: Study, heads: HeadMap) -> dict[str, list[bool]]:
    """Whether each head is open; heads of sites without a gate are, and those of a site that lost heads for good: what is left was open."""
    return {site.name: heads[site].tolist() if site in heads else [True] * site.heads for site in sites_of(study)}


def greedy_states(study: Study) -> list[dict[str, Any]]:
    """The steps of the plain gradient curve over all kinds, where prune.py drew one on the base."""
    for path in sorted(study.base.path.glob("curves/gradient*-order.json")) if study.is_base else []:
        name = path.name.removesuffix("-order.json")
        about = finished_curve(study.base, name)
        if about is None or about["settings"].get("recompute"):
            continue
        place = HeadMap.load(path)
        states = []
        rows = read_table(study.base, f"curves/{name}.csv")
        main = main_metric(rows)
        for row in rows:
            if not row["heads_closed"]:
                continue
            count = row["heads_closed"]
            still = place.map(lambda order, count=count: (order < 0) | (order >= count))  # type: ignore[misc]
            states.append(
                {
                    "label": f"greedy {row['closed_share']:.0%}",
                    "series": "greedy",
                    "learned": False,
                    "run": name,
                    "lambda": None,
                    "heads_open": row["heads_open"],
                    "heads_total": row["heads_total"],
                    "value": row[f"test_{main}"],
                    "low": row[f"test_{main}_low"],
                    "high": row[f"test_{main}_high"],
                    "beam": about["settings"].get("search", {}).get("beam"),
                    "open": opened(study, still),
                }
            )
        return states
    return []


def finished_curve(base: RunFolder, name: str) -> dict[str, Any] | None:
    """What curves/<name>.json says, if the curve is whole and closes heads of all kinds."""
    if not (base / f"curves/{name}.json").is_file() or not (base / f"curves/{name}.csv").is_file():
        return None
    about = base.read_json(f"curves/{name}.json")
    whole = isinstance(about, dict) and about.get("finished") and about.get("settings", {}).get("kinds") == list(KINDS)
    return about if whole else None


def curves(base: RunFolder) -> list[dict[str, Any]]:
    """The test score at every number of open heads, the mean over seeds, with the lowest and highest end of the intervals."""
    found = []
    for path in sorted(base.path.glob("curves/*.csv")):
        about = finished_curve(base, path.stem)
        if about is None:
            continue
        steps: dict[int, list[Row]] = {}
        curve_rows = read_table(base, f"curves/{path.name}")
        main = main_metric(curve_rows)
        for row in curve_rows:
            steps.setdefault(row["heads_open"], []).append(row)
        points = [
            {
                "heads_open": heads_open,
                "value": sum(row[f"test_{main}"] for row in rows) / len(rows),
                "low": min(row[f"test_{main}_low"] for row in rows),
                "high": max(row[f"test_{main}_high"] for row in rows),
            }
            for heads_open, rows in sorted(steps.items(), reverse=True)
        ]
        settings = about["settings"]
        found.append({"name": settings["order"], "file": path.stem, "beam": settings.get("search", {}).get("beam"), "points": points})
    return found


def systems(runs: Sequence[GateRun] | Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The rows of result.json of the runs, each with its run's name; how they were trained is left to that file."""
    rows = []
    for run in runs:
        folder = run.folder if isinstance(run, GateRun) else run
        for row in folder.rows():
            kept = {key: value for key, value in row.to_json().items() if key not in ("stage", "evaluation", "heads_by_site")}
            rows.append({"run": folder.path.resolve().name, **kept})
    return rows
