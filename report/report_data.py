"""The data of the report page: `analysis/<system>/cards.json`.

    heads       a card for each head: kind, layer, roles, confidence, LRP share, importance, entropy,
    ablation, its gate's log alpha by run; asked: the families of roles that were looked for
    examples    a few sentences with the attention of every head
    sentences   those on which closing a head costs most: their losses' rises by head, and its attention there
    measured    the files of the exact effects, and on how much text: `loss`, `metric`
    states      which heads are open: a state for every finished run that a recipe made of the base
    metric      what the scores measure: BLEU, for translation; unit: what its loss is per
    curves      the score against open heads of what gates did not learn, a curve for each recipe that differs
    in its budget alone
    comparisons the comparisons of rows on the base: summary, points, figure
    causes      of --causes: rows of the card, pairs of heads, and for each head its exact effect and every
    score
    contrasts   of each --contrast: sentences, and a row for each head
    shapes: pruned models layer by layer (shapes.py)
    systems, survival, tests, correlations: rows of tables

Unknown numbers are null. `beam` says with which search a score was measured."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Literal

import numpy as np

from headgates.analysis.attention_pass import AttentionBatch, observe_attention
from headgates.analysis.results import AnalysisResult, head_map_of
from headgates.analysis.roles import Role, families_asked
from headgates.configs.recipe import Lambda, Recipe
from headgates.data.npz import read_npz
from headgates.data.text import reworded
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import base_request, base_score, score_path
from headgates.explain.findings import Findings
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import pairs_sampled
from headgates.records.folder import RunFolder
from headgates.records.related import MadeRun
from headgates.records.row import CONTINUED, UNPRUNED_LABELS, ResultRow
from headgates.records.table import TableRow, read_table
from headgates.report.causes import causes_data
from headgates.report.comparisons import comparisons_of
from headgates.report.contrasts import contrast_data
from headgates.report.page import json_ready
from headgates.report.shapes import shape_cards

OFFSETS = 5  # number of offsets on a card
FOUND_TABLES: tuple[Literal["survival", "tests", "correlations"], ...] = ("survival", "tests", "correlations")
READ = ("split", "sentences", "text")  # of an analysis: earlier ones of the page may have read other text
EXAMPLE_PIECES = 16  # length of the longest example, in pieces, if there are sentences as short as that


def report_data(
    analysed: AnalysedModel,
    results: Mapping[str, AnalysisResult],
    found: Findings,
    *,
    with_examples: bool = True,
) -> dict[str, Any]:
    """Return the data of the page, ready for JSON. found: what the results say together."""
    own = analysed.base.own_row()
    asked = analysed.fingerprint()
    settings = {
        "system": analysed.system,
        "weights": analysed.weights,
        "read": {name: {each: asked[each] for each in READ} for name in results},
        "facts": {name: result.facts for name, result in results.items()},
    }
    runs = [run.folder for run in analysed.shown_runs]
    data: dict[str, Any] = json_ready(
        {
            "run": analysed.folder.path.resolve().name,
            "base": analysed.base.path.resolve().name,
            "system": analysed.system,
            "metric": analysed.source.task.metrics[0].title,
            "unit": analysed.source.task.unit.removesuffix("s"),  # of the loss, of which lambda is a price
            "base_value": own.main.value if own else None,
            "made": analysed.provenance,
            "settings": settings,
            "heads": head_cards(analysed, results, found.roles),
            "examples": example_sentences(analysed) if with_examples else [],
            "sentences": costly_sentences(analysed, results),
            "measured": measured_effects(analysed),
            "states": [model_state(analysed, run) for run in learned_first(analysed.shown_runs)],
            "curves": curves_of(analysed.shown_runs),
            "comparisons": comparisons_of(analysed.base),
            "causes": found.causes and causes_data(found.causes),
            "contrasts": [contrast_data(found.contrast)] if found.contrast else [],
            "shapes": shape_cards([analysed.base, *runs]) if analysed.is_base else [],
            "systems": system_rows(runs or [analysed.base]),
            **{name: getattr(found, name) for name in FOUND_TABLES},
        }
    )
    return data


# ---------------------------------------------------------------- heads


def head_cards(
    analysed: AnalysedModel, results: Mapping[str, AnalysisResult], roles: Sequence[Role]
) -> list[dict[str, Any]]:
    """Return a card for each head."""
    own = [name for name, score in SCORES.items() if not score.family and not score.by_chance]
    scores = {name: found for name in own if (found := base_score(analysed, name)) is not None}
    maps = {
        "confidence": head_map_of(results, "confidence", "confidence"),
        "lrp_share": head_map_of(results, "lrp", "share"),
        "lrp_signed": head_map_of(results, "lrp", "signed"),
        "importance": scores.pop("importance", None),
        "loss": scores.pop("loss", None),
        "entropy": head_map_of(results, "alignment", "entropy"),
    }
    removed = removals(analysed)
    histories = {run.name: gate_history(run.folder) for run in analysed.shown_runs}
    asked = families_asked(results)
    offsets: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in results["positions"].tables["offsets"] if "positions" in results else []:
        offsets.setdefault((row["site"], row["head"]), []).append((row["offset"], row["share"]))
    cards = []
    for site in shown_sites(analysed, analysed.shown_kinds):
        for head in range(site.heads):
            key = site.name, head
            # where heads were removed for good, the others have moved up: their numbers are not those of the
            # history, which knows more heads
            whole = (each for each in histories.items() if (site.name, site.heads) not in each[1])
            far = sorted(offsets.get(key, []), key=lambda pair: (-pair[1], abs(pair[0])))
            cards.append(
                {
                    **site.row(head),
                    "before": analysed.before.get(key),
                    "roles": [role.to_json() for role in roles if (role.site, role.head) == (site, head)],
                    "asked": [family for family, heads in asked.items() if site in heads],
                    **{name: number_of(found, site, head) for name, found in maps.items()},
                    "scores": {
                        name: number_of(found, site, head) for name, found in scores.items() if site in found
                    },
                    "ablation": removed.get(key),
                    "gate_path": {run: history[key] for run, history in whole if key in history} or None,
                    "offsets": far[:OFFSETS],
                }
            )
    return cards


def number_of(found: HeadMap | None, site: HeadSite, head: int) -> float | None:
    return float(found[site][head]) if found is not None and site in found else None


def shown_sites(analysed: AnalysedModel, kinds: Sequence[str]) -> list[HeadSite]:
    """Return the sites of these kinds that have heads."""
    return [site for site in find_sites(analysed.predictor.model) if site.kind in kinds and site.heads]


def removals(analysed: AnalysedModel) -> dict[tuple[str, int], TableRow]:
    """(site, head) -> what removing the head alone does to the metric, from `analyze --ablate one`; empty
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

    text: its source; source: the pieces and the end; target: what the decoder reads (queries and keys of its
    self-attention); produced: what it writes (the queries of cross attention)."""
    split, predictor = analysed.data.split(split_name), analysed.predictor
    source, target = split.pairs[i]
    kept = KeepAttention()
    batch = split[([i], len(target) + 1)]
    observe_attention(predictor.model, [batch], [kept], kinds=analysed.shown_kinds)
    written = predictor.target_vocab.pieces(target)
    number = int(split.numbers[i])
    return {
        "number": number,
        "text": analysed.corpus.split(split_name).sources[number],
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


def learned_first(runs: Sequence[MadeRun]) -> list[MadeRun]:
    """Then those that trained longest: the page opens with the first."""
    return sorted(runs, key=lambda run: (not run.recipe.learns, -run.recipe.epochs))


def model_state(analysed: AnalysedModel, run: MadeRun) -> dict[str, Any]:
    """A model that a recipe made, and which heads it left open. series: all that the recipe is beside its
    budget and seed."""
    budget, row = run.recipe.budget, run.row
    return {
        "label": budget.words,
        "series": series_of(row),
        "learned": run.recipe.learns,
        "run": run.name,
        "lambda": budget.price if isinstance(budget, Lambda) else None,
        "seed": run.recipe.seed,
        **point(row.heads_open, row.main.value, *(row.main.ci95 or (None, None))),
        "heads_total": row.heads_total,
        "words": row.open_words,
        "against": UNPRUNED_LABELS.get(row.reference or "", row.reference),
        "difference": row.main.difference,
        "difference_ci95": row.main.difference_ci95,
        "beam": row_beam(row),
        "open": open_by_site(analysed, run.open),
        "path": row.path or [],
    }


def series_of(row: ResultRow) -> str:
    """What rows of one line in a figure have in common: the label, and how long they trained."""
    epochs = row.recipe.epochs if row.recipe else 0
    return row.label + (f", {epochs} epoch{'s' * (epochs > 1)}" if epochs else "")


def point(heads_open: int, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"heads_open": heads_open, "value": value, "low": low, "high": high}


def row_beam(row: ResultRow) -> Any:
    return row.evaluation.get("search", {}).get("beam")


def open_by_site(analysed: AnalysedModel, is_open: HeadMap) -> dict[str, list[bool]]:
    """Whether each head is open. At sites without a gate all heads are, and at sites that lost heads for
    good, all that are left."""
    return {
        site.name: is_open[site].tolist() if site in is_open else [True] * site.heads
        for site in shown_sites(analysed, analysed.shown_kinds)
    }


def curves_of(runs: Sequence[MadeRun]) -> list[dict[str, Any]]:
    """The score at each number of open heads of what gates did not learn, and of the base that trained as
    long, without which learned gates would seem ahead by what any training gains: its mean over seeds, and
    the ends of the widest interval. Models that lost neurons or layers too are no points of it."""
    found: dict[str, dict[tuple[int, Recipe | None], list[ResultRow]]] = {}
    for run in runs:
        rows = [row for row in run.folder.rows() if row.system == CONTINUED]
        for row in [*rows, *[run.row] * (not run.recipe.learns)]:
            if row.neurons_open is None and row.layers_left is None:
                alike = row.recipe and replace(row.recipe, seed=0)
                found.setdefault(series_of(row), {}).setdefault((row.heads_open, alike), []).append(row)
    return [curve(name, rows) for name, rows in found.items()]


def curve(name: str, rows: Mapping[tuple[int, Recipe | None], Sequence[ResultRow]]) -> dict[str, Any]:
    """rows: by their number of open heads, and what made them beside the seed."""
    recipe = (first := next(iter(rows.values()))[0]).recipe
    points = []
    for (heads, _), same in sorted(rows.items(), key=lambda pair: pair[0][0], reverse=True):
        ends = [end for row in same for end in row.main.ci95 or ()]
        low, high = (min(ends), max(ends)) if ends else (None, None)
        points.append(point(heads, fmean(row.main.value for row in same), low, high))
    trained = first.is_base or bool(recipe and recipe.epochs)
    choose = recipe.choose if recipe else first.system
    return {"name": name, "method": choose, "trained": trained, "beam": row_beam(first), "points": points}


def system_rows(folders: Iterable[RunFolder]) -> list[dict[str, Any]]:
    """The rows of the runs' result.json, each with its run's name, without how its system was trained and
    evaluated."""
    rows = []
    for folder in folders:
        for row in folder.rows():
            short = replace(row, stage=None, evaluation={}, heads_by_site=None, recipe=None, others={})
            asked = row.recipe.budget.words if row.recipe else None
            named = {"run": folder.path.resolve().name, "label": series_of(row), "asked": asked}
            rows.append({**named, **short.to_json()})
    return rows
