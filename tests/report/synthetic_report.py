"""Made-up data of the report page, as cards.json holds them: every part is there, and numbers look as they do
in a run."""

import math
import random
from typing import Any

KINDS = {"enc-self": "encoder", "dec-self": "decoder", "cross": "decoder"}
SOURCE = [
    "▁Two",
    "▁young",
    "▁men",
    "▁are",
    "▁play",
    "ing",
    "▁gui",
    "tar",
    "▁in",
    "▁front",
    "▁of",
    "▁a",
    "▁crowd",
    ".",
    "</s>",
]
TARGET = [
    "<s>",
    "▁Zwei",
    "▁junge",
    "▁Männer",
    "▁spielen",
    "▁vor",
    "▁einer",
    "▁Menschen",
    "menge",
    "▁Gi",
    "tarre",
    ".",
]
SHORT = ["▁A", "▁dog", "▁is", "▁run", "ning", ".", "</s>"], ["<s>", "▁Ein", "▁Hund", "▁rennt", "."]
LAMBDAS = {0.003: 0.97, 0.01: 0.76, 0.03: 0.44, 0.1: 0.2}  # the share of heads that each leaves open
ROLES = {
    "enc-self": ["position -1", "nsubj head->dependent", "rare words"],
    "dec-self": ["position -1", "position -2"],
    "cross": ["aligned"],
}
Place = tuple[str, int, int]  # kind, layer, head


def cards(*, layers: int = 3, heads: int = 8, seed: int = 0) -> dict[str, Any]:
    """3 * layers * heads heads, four prices and eight numbers of heads, three curves, two sentences."""
    draw = random.Random(seed)
    places = [(kind, layer, head) for kind in KINDS for layer in range(layers) for head in range(heads)]
    worth = {place: draw.gauss(0, 1) for place in places}
    order, total = sorted(places, key=worth.__getitem__, reverse=True), len(places)
    gated = [
        state(f"λ {lam:g}", lam, order[: round(share * total)], places, lam) for lam, share in LAMBDAS.items()
    ]
    steps = [
        state(f"{heads} heads", None, order[:heads], places, step**2 / 60)
        for step in range(1, 9)
        for heads in [round((1 - step / 10) * total)]
    ]
    base = {"run": "multi30k-en-de-none-s1", "system": "base", "heads_open": total, "heads_total": total}
    of_run = ("run", "lambda", "heads_open", "heads_total")
    survivors = [
        {
            "run": s["label"],
            "heads_open": s["heads_open"],
            "kind": "all",
            "role": role,
            "heads": n,
            "score": n / 2,
        }
        for s in gated
        for n, role in enumerate(["positional", "syntactic", "no role"], start=2)
    ]
    tested = {"kind": "all", "within": "kind", "specialised": 21, "difference": 0.81, "p_value": 0.0004}
    return {
        "run": base["run"],
        "base": base["run"],
        "system": "base",
        "metric": "BLEU",
        "base_value": 38.74,
        "made": {"command": "headgates analyze RUN --siblings", "seed": 1, "versions": {"torch": "2.6.0"}},
        "settings": {"split": "valid", "rare_rank": 500, "lrp": {"rule": "ratio", "aggregation": "step"}},
        "heads": [card(place, worth[place], gated, draw) for place in places],
        "examples": [example(SOURCE, TARGET, places, draw), example(*SHORT, places, draw)],
        "states": gated + steps,
        "curves": [
            curve(name, speed, total)
            for name, speed in (("importance", 2.2), ("random", 1.3), ("weight-norm", 1.6))
        ],
        "sentences": [costly(places, number) for number in range(2)],
        "measured": {"loss": {"file": "scores/loss-sampled200.json", "pairs": 200}},
        "lines": test_lines([s["run"] for s in gated], base["run"], total),
        "causes": causes(places, worth, draw),
        "contrasts": [contrast("toy:case", places, worth)],
        "systems": [
            base | {"label": "unpruned", "bleu": 38.74, "parameters": 2_400_000},
            *(
                {
                    "system": "pruned",
                    "label": "learned gates",
                    "bleu": s["value"],
                    **{name: s[name] for name in of_run},
                }
                for s in gated
            ),
        ],
        "shapes": shapes(layers, heads, gated[0]["run"]),
        "survival": survivors,
        "tests": [tested],
    }


def shapes(layers: int, heads: int, run: str) -> list[dict[str, Any]]:
    """A planned model without its first decoder layer, and a run with gates that lost neurons."""
    sites = {f"{stack}.{layer}.{kind}": heads for kind, stack in KINDS.items() for layer in range(layers)}
    sites |= {
        f"{stack}.{layer}.{stack[:3]}-ffn": 512 for stack in ("encoder", "decoder") for layer in range(layers)
    }
    half = {site: count // 2 for site, count in sites.items()}
    sentence = "1.97x as fast (predicted 2.05x) at -0.2 BLEU (-0.7 to +0.3), 58% of the parameters"
    return [
        {
            **{
                "label": "planned, 2 times the speed",
                "run": None,
                "everywhere": True,
                "sentence": sentence,
                "words": "half",
            },
            "shape": {"open": half, "of": sites, "dropped": {"decoder": [0]}},
        },
        {
            **{"label": "learned gates", "run": run, "everywhere": False, "sentence": None, "words": "all"},
            "shape": {"open": sites, "of": sites, "dropped": {}},
        },
    ]


def causes(places: list[Place], worth: dict[Place, float], draw: random.Random) -> dict[str, Any]:
    """Two scores, one near to the truth, and a pair of each sign."""
    names = [f"{site_of(place)}.{place[2]}" for place in places]
    heads = {
        name: [worth[place], worth[place] + draw.gauss(0, 0.3), draw.random()]
        for name, place in zip(names, places, strict=True)
    }
    row = {"sign": 0.9, "top_quarter": 0.75, "seconds": 3.5}
    alone = {"head": names[0], "head_alone": 0.5, "other_alone": 0.25}
    return {
        "title": "Nearest to what closing each head alone adds to the loss is integrated",
        "sentences": 200,
        "paired": 24,
        "rows": [
            {"approximation": name, "spearman": rho, **row}
            for name, rho in (("loss (exact)", 1.0), ("integrated", 0.95), ("confidence", None))
        ],
        "pairs": [
            {**alone, "other": names[1], "both": 1.5, "interaction": 0.75},
            {**alone, "other": names[2], "both": 0.25, "interaction": -0.5},
        ],
        "names": ["loss", "integrated", "confidence"],
        "heads": heads,
        "gating": {
            "title": "Causal gates of 5 seeds: 1 of 2 heads have the same label in every seed",
            "lines": ["facilitating: 1 head", "interfering: no head in any seed", "irrelevant: 1 head"],
            "heads": [
                {"site": site_of(place), "head": place[2], "label": label, "facilitation": 0.75, "loss": 0.5}
                for place, label in zip(places, ("facilitating", "irrelevant"), strict=False)
            ],
        },
    }


def costly(places: list[Place], number: int) -> dict[str, Any]:
    """A sentence on which the first head of each site matters, its attention there all on the first key."""
    source, target = SHORT
    first = [place for place in places if place[2] == 0]
    weights = {}
    for place in first:
        queries, keys = (
            source if place[0] == "enc-self" else target,
            target if place[0] == "dec-self" else source,
        )
        weights[site_of(place)] = {0: [[1.0] + [0.0] * (len(keys) - 1) for _ in queries]}
    effects = {f"{site_of(place)}.0": 2.5 - number for place in first}
    pieces = ["▁Number", f"▁{number}", *source[2:]]
    return {"number": number, "source": pieces, "target": target, "weights": weights, "effects": effects}


def test_lines(runs: list[str], base: str, total: int) -> dict[str, Any]:
    """The base and a system of each run; in line i the run's i-th word and those after it are wrong."""
    systems = [
        {"run": run, "system": "pruned", "own": True, "label": f"λ {run.split('-')[-2]}", "heads_open": 20}
        for run in runs
    ]
    systems.insert(0, {"run": base, "system": "base", "own": True, "label": "unpruned", "heads_open": total})
    words = ["Zwei", "junge", "Männer", "spielen", "Gitarre"]
    lines = []
    for i in range(23):
        wrong = min(i // 4, len(words))
        outputs = [" ".join(words) + ".", " ".join(words[: len(words) - wrong] + ["falsch"] * wrong) + "."]
        of = [0] + [1 if wrong else 0] * len(runs)
        source = f"Two young men play, line {i}."
        reference = outputs[0]
        lines.append(
            {"number": 7 * i, "source": source, "reference": reference, "outputs": outputs, "of": of}
        )
    return {
        "total": 1000,
        "src": "en",
        "tgt": "de",
        "systems": [each | {"heads_total": total, "value": 38.0} for each in systems],
        "lines": lines,
    }


def contrast(name: str, places: list[Place], worth: dict[Place, float]) -> dict[str, Any]:
    """Every head's effect, the largest first, and no corrupted sources."""
    rows = [
        {
            "site": site_of(place),
            "kind": place[0],
            "layer": place[1],
            "head": place[2],
            "effect": worth[place],
        }
        | {"effect_low": worth[place] - 0.5, "effect_high": worth[place] + 0.5}
        | {"effect_p_value": 0.002, "effect_p_value_holm": 0.04}
        for place in sorted(places, key=worth.__getitem__, reverse=True)
    ]
    return {
        "name": name,
        "title": f"{name}: the right output",
        "sentences": ["Said."],
        "into": None,
        "rows": rows,
    }


def site_of(place: Place) -> str:
    kind, layer, _ = place
    return f"{KINDS[kind]}.{layer}.{kind}"


def card(place: Place, worth: float, gated: list[dict[str, Any]], draw: random.Random) -> dict[str, Any]:
    kind, layer, head = place
    names = draw.sample(ROLES[kind], min(len(ROLES[kind]), 1 + (worth > 1))) if worth > 0.2 else []
    steps = list(range(0, 4900, 100))
    paths = {}
    for each in gated:
        end = 4 if each["open"][site_of(place)][head] else -3
        log_alpha = [2.5 + (end - 2.5) * (1 - math.exp(-step / 1000)) + draw.gauss(0, 0.07) for step in steps]
        paths[each["run"]] = {"steps": steps, "log_alpha": log_alpha}
    return {
        "site": site_of(place),
        "kind": kind,
        "layer": layer,
        "head": head,
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


def state(
    label: str, lam: float | None, opened: list[Place], places: list[Place], loss: float
) -> dict[str, Any]:
    is_open: dict[str, list[bool]] = {}
    for place in places:
        is_open.setdefault(site_of(place), []).append(place in opened)
    bleu = 38.7 - loss * (46 if lam else 20)
    return {
        "label": label,
        "run": f"multi30k-en-de-{f'l0-{lam}' if lam else f'importance-{len(opened)}'}-s1",
        "lambda": lam,
        "heads_open": len(opened),
        "heads_total": len(places),
        "value": bleu,
        "low": bleu - 0.9,
        "high": bleu + 0.8,
        "learned": bool(lam),
        "series": "learned gates" if lam else "importance",
        "open": is_open,
    }


def curve(name: str, speed: float, total: int) -> dict[str, Any]:
    values = {round(total * (1 - step / 10)): 38.1 * (1 - (step / 10) ** speed) for step in range(11)}
    points = [
        {"heads_open": heads, "value": bleu, "low": bleu - 1.1, "high": bleu + 1.1}
        for heads, bleu in values.items()
    ]
    return {"name": name, "method": name, "trained": False, "points": points}


def example(source: list[str], target: list[str], places: list[Place], draw: random.Random) -> dict[str, Any]:
    weights: dict[str, list[Any]] = {}
    for place in places:
        queries, keys = (
            source if place[0] == "enc-self" else target,
            target if place[0] == "dec-self" else source,
        )
        matrix = []
        for i in range(len(queries)):
            seen = i + 1 if place[0] == "dec-self" else len(keys)
            scores = [draw.random() + 2 * (j == min(i, seen - 1)) for j in range(seen)]
            matrix.append([score / sum(scores) for score in scores] + [0.0] * (len(keys) - seen))
        weights.setdefault(site_of(place), []).append(matrix)
    return {"source": source, "target": target, "weights": weights}
