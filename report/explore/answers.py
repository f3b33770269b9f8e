"""From the JSON that the page sends to calls of the models, and back. Every question is bounded: in the
length of the sentence, in the beginning that it gives, in the heads that it names.

Questions are objects with `model` (0, or 1 for --against), `text`, and `shut`, the closed heads. `/api/say`
also takes `prefix` (ids of target tokens that the output begins with), `sites` (whose attention is wanted),
and `other` with `patched` (a second sentence, and the heads that read it); `/api/effects` takes `other`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from headgates.configs.json_file import parsed
from headgates.explain.sentence_model import ALTERNATIVES, Change, Said, SentenceModel
from headgates.gates import find_sites
from headgates.gates.headmap import Head
from headgates.report.page import thousandths

LONGEST_TEXT = 1000  # characters of a sentence


@dataclass(frozen=True)
class Question:
    """shut: the heads that the run itself closed, where it is None."""

    text: str
    model: int = 0
    shut: list[str] | None = None
    other: str | None = None


@dataclass(frozen=True)
class SayQuestion(Question):
    prefix: list[int] | None = None
    sites: list[str] | None = None
    patched: list[str] | None = None


QUESTIONS = {"/api/say": SayQuestion, "/api/effects": Question}


class Answers:
    """Answers the page's questions about one or two models."""

    def __init__(self, models: Sequence[SentenceModel]):
        self.models = models

    def answer(self, path: str, content: Any) -> dict[str, Any]:
        """The answer to a question. Raises ValueError with one line for the reader where it is none."""
        names = [each.name for each in fields(QUESTIONS[path])]
        if isinstance(content, dict) and (unknown := sorted({*content} - {*names})):
            raise ValueError(f"expected an object with {', '.join(names)}; got {', '.join(unknown)}")
        asked: Question = parsed(content, QUESTIONS[path])
        if not 0 <= asked.model < len(self.models):
            raise ValueError(f"model: expected a number below {len(self.models)}, got {asked.model}")
        model, text = self.models[asked.model], sentence(asked.text)
        shut = model.start if asked.shut is None else heads(model, asked.shut)
        other = sentence(asked.other) if asked.other else None
        if not isinstance(asked, SayQuestion):
            return effects(model, text, shut, other)
        patched, sites = heads(model, asked.patched or ()), sorted({*(asked.sites or ())})
        if patched and other is None:
            raise ValueError("patched heads read a second sentence: give `other`")
        if strange := {*sites} - {each.name for each in model.modules}:
            raise ValueError(f"the model has no site {min(strange)!r:.60}")
        change = Change(shut, patched)
        return say_answer(model, text, change, asked.prefix or [], sites, other if patched else None)


def sentence(text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{len(text)} characters; expected at most {LONGEST_TEXT}: shorten the sentence")
    # half a surrogate pair, which JSON can name, is no text
    return text.encode(errors="replace").decode()


def heads(model: SentenceModel, names: Sequence[str]) -> frozenset[Head]:
    if unknown := [each for each in names if each not in model.heads]:
        raise ValueError(f"the model has no head {unknown[0]!r:.60}")
    return frozenset(model.heads[each] for each in names)


def say_answer(
    model: SentenceModel, text: str, change: Change, prefix: list[int], sites: list[str], other: str | None
) -> dict[str, Any]:
    """What the model says as the run has it and under the change, with the probability of every token, and
    the attention of these sites under the change."""
    now = whole = model.as_it_is(text)
    same = whole.chosen.double()
    if prefix or change != Change(model.start):
        now = model.say(text, change, prefix=prefix, other=other, draft=whole.ids)
        same = (
            now.draft
            if now.draft is not None
            else model.token_log_probs(text, whole.ids, [change], other=other)[0]
        )
    found = {
        "source": model.source_pieces(text),
        "whole": {**said(model, whole), "now": rounded(same.exp()), "loss_now": -float(same.sum())},
        "now": said(model, now),
        "forced": len(prefix),
        "unknown": model.encode(text).count(model.source_vocab.specials.unknown),
    }
    if sites:
        found["example"] = attention(model, text, now, change, sites, other)
    return found


def said(model: SentenceModel, said: Said) -> dict[str, Any]:
    """The text, and of every token its piece, id, probability and the most probable tokens in its place."""
    best = said.log_p.topk(min(ALTERNATIVES, said.log_p.shape[1]), dim=1)
    tokens = []
    for piece, number, p, values, ids in zip(
        model.target_pieces(said.ids),
        said.ids,
        rounded(said.chosen.exp()),
        best.values.exp(),
        best.indices.tolist(),
        strict=True,
    ):
        likely = [pair for pair in zip(ids, rounded(values), strict=True) if pair[1] > 0]
        pieces = model.target_pieces([each for each, _ in likely])
        alternatives = [
            {"id": each, "piece": own, "p": share} for (each, share), own in zip(likely, pieces, strict=True)
        ]
        tokens.append({"piece": piece, "id": number, "p": p, "best": alternatives})
    return {"text": model.written(said.ids), "tokens": tokens, "loss": -float(said.chosen.double().sum())}


def attention(
    model: SentenceModel, text: str, now: Said, change: Change, sites: list[str], other: str | None
) -> dict[str, Any]:
    """The attention of some sites on the sentence and what the model says now, as the page's drawings take
    it."""
    weights = now.weights or model.attention(text, now.ids, change, other=other)
    written = model.target_pieces(now.ids)
    return {
        "text": text,
        "source": model.source_pieces(text),
        "target": ["<s>", *written[:-1]],
        "produced": written,
        "weights": thousandths({site: weights[site].tolist() for site in sites if site in weights}),
    }


def effects(model: SentenceModel, text: str, shut: frozenset[Head], other: str | None) -> dict[str, Any]:
    """The exact effect of every head: alone, beside the heads that are closed, and of patching it alone."""
    alone = model.effects_alone(text)
    found = {"effect": alone, "effect_now": alone if shut == model.start else model.effects(text, shut)}
    if other is not None:
        found["patch_effect"] = model.patch_effects(text, other)
    return found


def rounded(values: Tensor) -> list[float]:
    """Probabilities with five digits after the point, which the page's drawings need at most."""
    return [round(value, 5) for value in values.tolist()]


def site_rows(model: SentenceModel) -> list[dict[str, Any]]:
    """site, kind, layer and head of every head."""
    return [site.row(head) for site in find_sites(model.model) for head in range(site.heads)]
