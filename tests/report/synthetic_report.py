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
SHORT = (["▁A", "▁dog", "▁is", "▁run", "ning", ".", "</s>"], ["<s>", "▁Ein", "▁Hund", "▁rennt", "."])
LAMBDAS = (0.003, 0.01, 0.03, 0.1)
KEPT = (0.97, 0.76, 0.44, 0.2)
ROLES = {
    "enc-self": [
        "position -1",
        "position 1",
        "nsubj head->dependent",
        "dobj dependent->head",
        "amod dependent->head",
        "rare words",
    ],
    "dec-self": ["position -1", "position -2"],
    "cross": ["aligned"],
}


def cards(*, layers: int = 3, heads: int = 8, seed: int = 0) -> dict[str, Any]:
    """3 * layers * heads heads, four lambdas and importance steps, three curves, two sentences."""
    draw = random.Random(seed)
    places = [(kind, layer, head) for kind in KINDS for layer in range(layers) for head in range(heads)]
    worth = {
        place: draw.gauss(0, 1) + (0.9 if place[0] == "cross" else 0) - (0.6 if place[0] == "enc-self" else 0)
        for place in places
    }
    order = sorted(places, key=worth.__getitem__, reverse=True)
    states = [
        state(f"λ {lam:g}", lam, order[: round(share * len(order))], places, lam)
        for lam, share in zip(LAMBDAS, KEPT, strict=True)
    ]
    for step in range(1, 9):
        kept = order[: round((1 - step / 10) * len(order))]
        states.append(state(f"importance {10 * step}%", None, kept, places, step**2 / 60))
    examples = [example(SOURCE, TARGET, places, draw), example(*SHORT, places, draw)]
    total = len(places)
    return {
        "run": "multi30k-en-de-none-s1",
        "base": "multi30k-en-de-none-s1",
        "system": "base",
        "metric": "BLEU",
        "base_value": 38.74,
        "made": {
            "command": "python analyze.py RUN --siblings",
            "commit": "0123abc",
            "seed": 1,
            "versions": {"torch": "2.6.0"},
        },
        "settings": {
            "split": "valid",
            "sentences": 1014,
            "rare_rank": 500,
            "lrp": {"rule": "ratio", "aggregation": "step"},
        },
        "heads": [card(place, worth[place], states, draw) for place in places],
        "examples": examples,
        "states": states,
        "curves": [
            curve("importance", 2.2, total),
            curve("random", 1.3, total),
            curve("weight-norm", 1.6, total),
        ],
        "systems": [
            {
                "run": "multi30k-en-de-none-s1",
                "system": "base",
                "heads_open": total,
                "heads_total": total,
                "bleu": 38.74,
                "parameters": 2_400_000,
            },
            *(
                {
                    "run": s["run"],
                    "system": "l0",
                    "lambda": s["lambda"],
                    "heads_open": s["heads_open"],
                    "heads_total": total,
                    "bleu": s["value"],
                }
                for s in states[:4]
            ),
        ],
        "survival": [
            {
                "run": s["label"],
                "heads_open": s["heads_open"],
                "kind": "all",
                "role": role,
                "heads": n,
                "at_first": 9,
                "score": n / 2,
            }
            for s in states[:4]
            for n, role in enumerate(["positional", "syntactic", "no role"], start=2)
        ],
        "tests": [
            {
                "kind": "all",
                "within": "kind",
                "runs": 4,
                "specialised": 21,
                "others": 51,
                "difference": 0.81,
                "p_value": 0.0004,
            }
        ],
    }


def card(
    place: tuple[str, int, int], worth: float, states: list[dict[str, Any]], draw: random.Random
) -> dict[str, Any]:
    kind, layer, head = place
    site = f"{KINDS[kind]}.{layer}.{kind}"
    roles = []
    if worth + draw.gauss(0, 0.6) > 0.2:
        for role in draw.sample(ROLES[kind], 2 if kind == "enc-self" and draw.random() < 0.3 else 1):
            score = draw.uniform(0.9, 0.99) if role.startswith("position") else draw.uniform(0.5, 0.9)
            roles.append(
                {
                    "role": role,
                    "score": score,
                    "baseline": None if role.startswith("position") else score - draw.uniform(0.1, 0.4),
                }
            )
    steps = list(range(0, 4900, 100))
    paths = {}
    for number, state_ in enumerate(states[:4], start=1):
        end = 4 + draw.random() if state_["open"][site][head] else -3 - draw.random()
        paths[state_["run"]] = {
            "steps": steps,
            "log_alpha": [
                2.5 + (end - 2.5) * (1 - math.exp(-step / (2600 - 400 * number))) + draw.gauss(0, 0.07)
                for step in steps
            ],
        }
    best = draw.choice([-1, 1, 0])
    return {
        "site": site,
        "kind": kind,
        "layer": layer,
        "head": head,
        "roles": roles,
        "confidence": min(0.97, max(0.1, 0.42 + 0.15 * worth + draw.gauss(0, 0.05))),
        "lrp_share": min(0.6, max(0.01, 0.125 + 0.05 * worth + draw.gauss(0, 0.02))),
        "lrp_signed": draw.gauss(0.1, 0.08),
        "importance": math.exp(worth * 0.55 - 1.6),
        "entropy": max(0.1, 1.9 - 0.4 * worth),
        "ablation": {"difference": -0.25 * max(0.0, worth + 0.2), "p_value": 0.03, "p_value_holm": 0.8},
        "gate_path": paths,
        "offsets": [
            [best, 0.93 if roles else 0.41],
            [best - 1, 0.03],
            [best + 1, 0.02],
            [best + 2, 0.01],
            [best - 3, 0.004],
        ],
    }


def state(
    label: str,
    lam: float | None,
    open_: list[tuple[str, int, int]],
    places: list[tuple[str, int, int]],
    loss: float,
) -> dict[str, Any]:
    is_open: dict[str, list[bool]] = {}
    for kind, layer, head in places:
        is_open.setdefault(f"{KINDS[kind]}.{layer}.{kind}", []).append((kind, layer, head) in open_)
    bleu = 38.7 - loss * (46 if lam else 20)
    run = f"multi30k-en-de-l0-{lam}-s1" if lam else "multi30k-en-de-none-s1"
    known = {
        "value": bleu,
        "low": bleu - 0.9,
        "high": bleu + 0.8,
        "learned": bool(lam),
        "series": "learned gates" if lam else "importance",
    }
    return {
        "label": label,
        "run": run,
        "lambda": lam,
        "heads_open": len(open_),
        "heads_total": len(places),
        **known,
        "open": is_open,
    }


def curve(name: str, speed: float, total: int) -> dict[str, Any]:
    points = []
    for step in range(11):
        bleu = 38.1 * max(0.0, 1 - (step / 10) ** speed)
        points.append(
            {
                "heads_open": round(total * (1 - step / 10)),
                "value": bleu,
                "low": max(0.0, bleu - 1.1),
                "high": bleu + 1.1,
            }
        )
    return {"name": name, "points": points}


def example(
    source: list[str], target: list[str], places: list[tuple[str, int, int]], draw: random.Random
) -> dict[str, Any]:
    weights: dict[str, list[Any]] = {}
    for kind, layer, _ in places:
        queries = source if kind == "enc-self" else target
        keys = target if kind == "dec-self" else source
        sharp, offset = draw.uniform(0.5, 6), draw.choice([-1, 0, 1])
        matrix = []
        for i in range(len(queries)):
            seen = i + 1 if kind == "dec-self" else len(keys)
            scores = [
                math.exp(sharp * (1 if j == min(max(i + offset, 0), seen - 1) else draw.random() * 0.5))
                for j in range(seen)
            ]
            matrix.append([round(score / sum(scores), 3) for score in scores] + [0.0] * (len(keys) - seen))
        weights.setdefault(f"{KINDS[kind]}.{layer}.{kind}", []).append(matrix)
    return {"source": source, "target": target, "weights": weights}
