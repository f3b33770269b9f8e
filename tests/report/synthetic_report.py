"""Made-up data of the report page, as cards.json holds them: every part is there, and numbers look as they do
in a run."""

import math
import random
from typing import Any

from headgates.gates import HeadSite

KINDS = {"enc-self": "encoder", "dec-self": "decoder", "cross": "decoder"}
SOURCE = ["▁Two", "▁young", "▁men", "▁are", "▁play", "ing", "▁gui", "tar", "▁in", "▁a", "▁crowd", ".", "</s>"]
TARGET = ["<s>", "▁Zwei", "▁junge", "▁Männer", "▁spielen", "▁vor", "▁einer", "▁Menschen", "menge", "."]
SHORT = ["▁A", "▁dog", "▁is", "▁run", "ning", ".", "</s>"], ["<s>", "▁Ein", "▁Hund", "▁rennt", "."]
LAMBDAS = {0.003: 0.97, 0.01: 0.76, 0.03: 0.44, 0.1: 0.2}  # the share of heads that each leaves open
ROLES = {
    "enc-self": ["position -1", "nsubj head->dependent", "rare words"],
    "dec-self": ["position -1", "position -2"],
    "cross": ["aligned"],
}
RUN = "multi30k-en-de-none-s1"
Place = tuple[str, int, int]  # kind, layer, head
Data = dict[str, Any]


def cards(*, layers: int = 3, heads: int = 8) -> Data:
    """3 * layers * heads heads, four prices and eight numbers of heads, three curves, two sentences."""
    draw = random.Random(0)
    places = [(kind, layer, head) for kind in KINDS for layer in range(layers) for head in range(heads)]
    worth = {place: draw.gauss(0, 1) for place in places}
    order, total = sorted(places, key=worth.__getitem__, reverse=True), len(places)
    gated = [
        state(f"λ {lam:g}", lam, order[: round(share * total)], places, lam) for lam, share in LAMBDAS.items()
    ]
    counts = {step: round((1 - step / 10) * total) for step in range(1, 9)}
    steps = [
        state(f"{count} heads", None, order[:count], places, step**2 / 60) for step, count in counts.items()
    ]
    base = {"run": RUN, "system": "base", "label": "unpruned", "heads_open": total, "heads_total": total}
    curves = {"importance": 2.2, "random": 1.3, "weight-norm": 1.6}
    return {
        "run": RUN,
        "base": RUN,
        "system": "base",
        "metric": "BLEU",
        "base_value": 38.74,
        "made": {"command": "headgates analyze RUN --siblings", "seed": 1, "versions": {"torch": "2.6.0"}},
        "settings": {"split": "valid", "rare_rank": 500, "lrp": {"rule": "ratio", "aggregation": "step"}},
        "heads": [card(place, worth[place], gated, draw) for place in places],
        "examples": [example(SOURCE, TARGET, places, draw), example(*SHORT, places, draw)],
        "states": gated + steps,
        "curves": [curve(name, speed, total) for name, speed in curves.items()],
        "sentences": [costly(places, number) for number in range(2)],
        "measured": {"loss": {"file": "scores/loss-sampled200.json", "pairs": 200}},
        "lines": lines([base, *gated]),
        "causes": causes(places, worth, draw),
        "contrasts": [contrast("toy:case", order, worth)],
        "systems": [
            base | {"bleu": 38.74, "parameters": 2_400_000},
            *(of_run(each) | {"label": "learned gates", "bleu": each["value"]} for each in gated),
        ],
        "shapes": shapes(layers, heads, gated[0]["run"]),
        "survival": [
            {"run": each["label"], "heads_open": each["heads_open"], "kind": "all", "role": role, "heads": n}
            for each in gated
            for n, role in enumerate(["positional", "syntactic", "no role"], start=2)
        ],
        "tests": [{"kind": "all", "specialised": 21, "difference": 0.81, "p_value": 0.0004}],
    }


def site_of(place: Place) -> str:
    return HeadSite.at(place[0], place[1], 1).name


def name_of(place: Place) -> str:
    return f"{site_of(place)}.{place[2]}"


def of_run(state: Data) -> Data:
    return {"system": "pruned"} | {name: state[name] for name in ("run", "heads_open", "heads_total")}


def shapes(layers: int, heads: int, run: str) -> list[Data]:
    """A planned model without its first decoder layer, and a run with gates that lost nothing."""
    sites = {site_of((kind, layer, 0)): heads for kind in KINDS for layer in range(layers)}
    sites |= {site_of((kind, layer, 0)): 512 for kind in ("enc-ffn", "dec-ffn") for layer in range(layers)}
    half = {site: count // 2 for site, count in sites.items()}
    sentence = "1.97x as fast (predicted 2.05x) at -0.2 BLEU (-0.7 to +0.3), 58% of the parameters"
    planned = {"label": "planned, 2 times the speed", "run": None, "everywhere": True, "words": "half"}
    gated = {"label": "learned gates", "run": run, "everywhere": False, "words": "all", "sentence": None}
    dropped = {"open": half, "of": sites, "dropped": {"decoder": [0]}}
    return [
        planned | {"sentence": sentence, "shape": dropped},
        gated | {"shape": {"open": sites, "of": sites, "dropped": {}}},
    ]


def causes(places: list[Place], worth: dict[Place, float], draw: random.Random) -> Data:
    """Two scores, one near to the truth, and a pair of each sign."""
    names = [name_of(place) for place in places[:3]]
    row = {"sign": 0.9, "top_quarter": 0.75, "seconds": 3.5}
    found = {"loss (exact)": 1.0, "integrated": 0.95, "confidence": None}
    alone = {"head": names[0], "head_alone": 0.5, "other_alone": 0.25}
    gates = {"facilitation": 0.75, "loss": 0.5}
    return {
        "title": "Nearest to what closing each head alone adds to the loss is integrated",
        "sentences": 200,
        "paired": 24,
        "rows": [{"approximation": name, "spearman": rho, **row} for name, rho in found.items()],
        "pairs": [
            {**alone, "other": names[1], "both": 1.5, "interaction": 0.75},
            {**alone, "other": names[2], "both": 0.25, "interaction": -0.5},
        ],
        "names": ["loss", "integrated", "confidence"],
        "heads": {
            name_of(place): [value, value + draw.gauss(0, 0.3), draw.random()]
            for place, value in worth.items()
        },
        "gating": {
            "title": "Causal gates of 5 seeds: 1 of 2 heads have the same label in every seed",
            "lines": ["facilitating: 1 head", "interfering: no head in any seed", "irrelevant: 1 head"],
            "heads": [
                {"site": site_of(place), "head": place[2], "label": label, **gates}
                for place, label in zip(places, ("facilitating", "irrelevant"), strict=False)
            ],
        },
    }


def read_by(kind: str, source: list[str], target: list[str]) -> tuple[list[str], list[str]]:
    """The queries and the keys of a kind of attention."""
    return source if kind == "enc-self" else target, target if kind == "dec-self" else source


def costly(places: list[Place], number: int) -> Data:
    """A sentence on which the first head of each site matters, its attention there all on the first key."""
    weights: Data = {}
    for place in (place for place in places if place[2] == 0):
        queries, keys = read_by(place[0], *SHORT)
        weights[site_of(place)] = {0: [[1.0] + [0.0] * (len(keys) - 1) for _ in queries]}
    pieces = ["▁Number", f"▁{number}", *SHORT[0][2:]]
    effects = {f"{site}.0": 2.5 - number for site in weights}
    own = {"text": f"Number {number}, in short.", "source": pieces, "target": SHORT[1]}
    return {"number": number, **own, "weights": weights, "effects": effects}


def lines(systems: list[Data]) -> Data:
    """The base and a system of each run; from line 4 n on the last n words of the runs are wrong."""
    words = ["Zwei", "junge", "Männer", "spielen", "Gitarre"]
    found = []
    for i in range(23):
        wrong = min(i // 4, len(words))
        outputs = [" ".join(each) + "." for each in (words, words[: 5 - wrong] + ["falsch"] * wrong)]
        line = {"number": 7 * i, "source": f"Two young men play, line {i}.", "reference": outputs[0]}
        of = [0] + [bool(wrong) * 1] * (len(systems) - 1)
        found.append({**line, "outputs": outputs, "of": of})
    known = [{"system": "pruned", "own": True, "value": 38.0} | each for each in systems]
    return {"total": 1000, "src": "en", "tgt": "de", "systems": known, "lines": found}


def contrast(name: str, order: list[Place], worth: dict[Place, float]) -> Data:
    """Every head's effect, the largest first, and no corrupted sources."""
    known = {"effect_p_value": 0.002, "effect_p_value_holm": 0.04}
    rows = [
        HeadSite.at(place[0], place[1], 8).row(place[2])
        | {"effect": worth[place], "effect_low": worth[place] - 0.5, "effect_high": worth[place] + 0.5}
        | known
        for place in order
    ]
    said = {"title": f"{name}: the right output", "sentences": ["Said."], "into": None}
    return {"name": name, **said, "rows": rows}


def card(place: Place, worth: float, gated: list[Data], draw: random.Random) -> Data:
    kind, layer, head = place
    names = draw.sample(ROLES[kind], min(len(ROLES[kind]), 1 + (worth > 1))) if worth > 0.2 else []
    steps = list(range(0, 4900, 100))
    paths = {}
    for each in gated:
        end = 4 if each["open"][site_of(place)][head] else -3
        log_alpha = [2.5 + (end - 2.5) * (1 - math.exp(-step / 1000)) + draw.gauss(0, 0.07) for step in steps]
        paths[each["run"]] = {"steps": steps, "log_alpha": log_alpha}
    return {
        **HeadSite.at(kind, layer, 8).row(head),
        "roles": [{"role": name, "score": draw.uniform(0.5, 0.99), "baseline": 0.3} for name in names],
        "confidence": min(0.97, max(0.1, 0.42 + 0.15 * worth)),
        "lrp_share": min(0.6, max(0.01, 0.125 + 0.05 * worth)),
        "lrp_signed": draw.gauss(0.1, 0.08),
        "importance": math.exp(worth * 0.55 - 1.6),
        "entropy": max(0.1, 1.9 - 0.4 * worth),
        "ablation": {"difference": -0.25 * max(0.0, worth), "p_value": 0.03, "p_value_holm": 0.8},
        "gate_path": paths,
        "offsets": [[1, 0.93 if names else 0.41], [0, 0.03], [-1, 0.02]],
    }


def state(label: str, lam: float | None, opened: list[Place], places: list[Place], loss: float) -> Data:
    is_open: dict[str, list[bool]] = {}
    for place in places:
        is_open.setdefault(site_of(place), []).append(place in opened)
    bleu = 38.7 - loss * (46 if lam else 20)
    return {
        "label": label,
        "run": f"multi30k-en-de-{f'l0-{lam}' if lam else f'importance-{len(opened)}'}-s1",
        "lambda": lam,
        **point(len(opened), bleu, 0.9),
        "heads_total": len(places),
        "words": f"{len(opened)} of {len(places)} heads and 7 of 9 feed-forward neurons",
        "against": "unpruned, trained as long",
        "learned": bool(lam),
        "series": "learned gates" if lam else "importance",
        "open": is_open,
    }


def point(heads: int, bleu: float, half: float) -> Data:
    return {"heads_open": heads, "value": bleu, "low": bleu - half, "high": bleu + half}


def curve(name: str, speed: float, total: int) -> Data:
    values = {round(total * (1 - step / 10)): 38.1 * (1 - (step / 10) ** speed) for step in range(11)}
    points = [point(heads, bleu, 1.1) for heads, bleu in values.items()]
    return {"name": name, "method": name, "trained": False, "points": points}


def example(source: list[str], target: list[str], places: list[Place], draw: random.Random) -> Data:
    weights: dict[str, list[Any]] = {}
    for place in places:
        queries, keys = read_by(place[0], source, target)
        matrix = []
        for i in range(len(queries)):
            seen = i + 1 if place[0] == "dec-self" else len(keys)
            scores = [draw.random() + 2 * (j == min(i, seen - 1)) for j in range(seen)]
            matrix.append([score / sum(scores) for score in scores] + [0.0] * (len(keys) - seen))
        weights.setdefault(site_of(place), []).append(matrix)
    text = "".join(source[:-1]).replace("▁", " ").strip()
    return {"text": text, "source": source, "target": target, "weights": weights}
