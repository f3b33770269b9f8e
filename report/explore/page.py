"""explore's page: the head map, card and drawings of report.html, with the model behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from headgates.data.contrast import NAMED, names_for, read_contrasts
from headgates.explain.sentence_model import SentenceModel
from headgates.gates import HeadMap
from headgates.pruning.scores import ScoreRequest, ScoresRecord, checked_scores, score_file
from headgates.records.row import BASE
from headgates.records.source import Source
from headgates.report.cards import kept_cards
from headgates.report.explore.answers import site_rows
from headgates.report.page import SHARED_SCRIPTS, STYLES, framed

EXPLORE_SCRIPTS = (*SHARED_SCRIPTS, "sentence.js", "picture.js", "explore.js")
READY_PAIRS = 8  # ready pairs of sentences of each contrast

CARD_FIELDS = {
    *("roles", "confidence", "lrp_share", "lrp_signed", "importance"),
    *("loss", "entropy", "scores", "offsets", "ablation"),
}


@dataclass(frozen=True)
class Known:
    """What lies in the folder of a model: of each (site, head) what commands found, and a sentence."""

    heads: Mapping[tuple[str, int], Mapping[str, Any]]
    sentence: str


def known(source: Source) -> Known:
    """What analyze found of these weights, and what closing each head of a base costs. To be asked before the
    model has masks."""
    kept = kept_cards(source.folder, f"analysis/{source.system}", source.weights)
    heads = {
        (card["site"], card["head"]): {name: value for name, value in card.items() if name in CARD_FIELDS}
        for card in (kept["heads"] if kept else ())
    }
    for site, row in costs(source).items():
        for head, cost in enumerate(row.tolist()):
            heads.setdefault((site.name, head), {})["loss"] = cost
    return Known(heads, kept["examples"][0]["text"] if kept and kept["examples"] else "")


def costs(source: Source) -> HeadMap:
    """What closing each head alone adds to the loss on the base's own text, of its scores/; no head where
    that is not kept, or cannot be read."""
    if source.system != BASE or not any(source.folder.path.glob("scores/loss*.json")):
        return HeadMap({})
    try:
        request = ScoreRequest(source, sentences=source.config.get("sentences", 0))
        file = f"scores/{score_file('loss', request)}.json"
        return checked_scores(source, file, source.folder.read_json(file, ScoresRecord), None)[""]
    except (ValueError, OSError):
        return HeadMap({})


def explore_page(models: Sequence[SentenceModel], kept: Sequence[Known], number: int, token: str) -> str:
    """The page of model `number`; the token stands in it, and lets it ask. kept: what is known of each
    model."""
    model = models[number]
    pairs = ready_pairs(model)
    data = {
        "run": label(model),
        "metric": model.source.task.metrics[0].title,
        "heads": [
            {**row, **kept[number].heads.get((row["site"], row["head"]), {})} for row in site_rows(model)
        ],
        "live": {
            "token": token,
            "number": number,
            "translates": model.translates,
            "target": model.source.config.get("tgt"),
            "contrasts": pairs,
            # to begin with
            "sentence": pairs[0]["pairs"][0][0] if pairs else kept[number].sentence,
            "models": [
                {
                    "label": label(each),
                    "heads": len(each.heads),
                    "start": [name for name, head in each.heads.items() if head in each.start],
                }
                for each in models
            ],
        },
    }
    return framed(
        data,
        body="explore_body.html",
        styles=(*STYLES, "explore.css"),
        scripts=EXPLORE_SCRIPTS,
        policy="; connect-src 'self'; form-action 'self'",
    )


def ready_pairs(model: SentenceModel) -> list[dict[str, Any]]:
    """The named contrasts of the model's text or languages, each with its first READY_PAIRS (source,
    corrupted source) of as many pieces, between which heads can be patched."""
    config, found = model.source.config, []
    for name in names_for(str(config.get("data")), f"{config.get('src')}-{config.get('tgt')}"):
        prefix, _, own = name.partition(":")
        both = ([each.source, each.corrupted] for each in read_contrasts(name) if each.corrupted is not None)
        equal = (pair for pair in both if pieces(model, pair[0]) == pieces(model, pair[1]) <= model.longest)
        found.append({"name": name, "about": NAMED[prefix][own], "pairs": list(islice(equal, READY_PAIRS))})
    return [each for each in found if each["pairs"]]


def pieces(model: SentenceModel, text: str) -> int:
    return len(model.source_vocab.encode([text])[0])


def label(model: SentenceModel) -> str:
    """The run's name, and its system where that is not its own."""
    folder, system = model.source.folder, model.source.system
    name = folder.path.resolve().name
    return name if system == folder.own_system() else f"{name}, {system}"
