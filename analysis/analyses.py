"""The analyses that `analyze.py` runs, each with what it depends on; what is there already with the same settings is read again.

One pass over the text serves all but relevance, which has a pass of its own. In `analysis/<system>/`:

    <what>.json     settings, head maps by name, numbers of the whole (facts), provenance
    <table>.csv     the tables of the analyses that have some

To add one: a function of a Study that gives observers and what is found when they have seen all, and a line in PARTS (its name in
configs/analyze.py too)."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.alignment import Alignment, Entropy, piece_links
from analysis.attention_pass import Observer, record
from analysis.confidence import Confidence
from analysis.lrp import relevance
from analysis.parses import parses
from analysis.positions import Positions
from analysis.rare_words import RareWords, token_counts
from analysis.study import Study
from analysis.syntax import CLEAR_NAMES, Syntax, clear_name
from analysis.word_pieces import word_of_piece
from configs.analyze import LABELS
from data.conllu import Tree
from data.toy import toy_pairs
from gates import KINDS, HeadMap
from models.progress import Report
from runfolder.table import Row, read_table, write_table


@dataclass(frozen=True)
class Found:
    """What one analysis found."""

    head_maps: dict[str, HeadMap]
    facts: dict[str, Any] = field(default_factory=dict)  # of all heads together: baselines, numbers of sentences
    tables: dict[str, list[Row]] = field(default_factory=dict)


Begun = tuple[Sequence[Observer], Callable[[], Found]]


@dataclass(frozen=True)
class Part:
    """begin: observers for the pass, and what is found after it. settings: what it depends on beside the study's own."""

    begin: Callable[[Study], Begun]
    settings: Callable[[Study], dict[str, Any]]
    kinds: tuple[str, ...] = KINDS  # that it looks at


# ---------------------------------------------------------------- the analyses


def confidence(study: Study) -> Begun:
    seen = Confidence()
    return [seen], lambda: Found({"confidence": seen.head_map()})


def positions(study: Study) -> Begun:
    seen = Positions()

    def finish() -> Found:
        best = seen.best()
        return Found({"offset": best.offset, "share": best.share}, {}, {"offsets": seen.offsets()})

    return [seen], finish


def rare(study: Study) -> Begun:
    vocab = study.translator.source_vocab
    counts = token_counts((source for source, _ in study.data.train_pairs), len(vocab))
    seen = RareWords(counts, rank_of(study))

    def finish() -> Found:
        maps = {"rarest": seen.rarest(), "two_rarest": seen.two_rarest()}
        one, two = seen.chance()
        facts = {"chance_rarest": one, "chance_two_rarest": two, "sentences_counted": seen.sentences, "queries": seen.queries}
        return Found(maps, {"rank": seen.rank, **facts})

    return [seen], finish


def rank_of(study: Study) -> int:
    return study.config.rare_rank or (50 if study.toy else 500)


def alignment(study: Study) -> Begun:
    """Entropy always; agreement where alignments are known, and there is cross attention to look at."""
    entropy = Entropy()
    gold = None
    if study.toy and "cross" in study.config.kinds:
        gold = Alignment(toy_links(study))

    def finish() -> Found:
        found = Found({"entropy": entropy.nats(), "entropy_relative": entropy.relative()})
        if gold is None:
            return found
        baseline = gold.baseline()
        facts = {"baseline": baseline.share, "baseline_offset": baseline.offset, "tokens": gold.tokens}
        return Found({**found.head_maps, "agreement": gold.agreement()}, facts)

    return [entropy, *([] if gold is None else [gold])], finish


def toy_links(study: Study) -> dict[int, Sequence[tuple[int, int]]]:
    """The known links between the pieces of every pair."""
    source_vocab, target_vocab = study.translator.source_vocab, study.translator.target_vocab
    links = {}
    for number in study.data.split(study.split).numbers:
        pair = toy_pairs(study.split)[number]
        source = word_of_piece(source_vocab, study.text.sources[number], pair.words)
        target = word_of_piece(target_vocab, study.text.targets[number], pair.target_words)
        links[number] = piece_links(pair.alignment, source, target)
    return links


def syntax(study: Study) -> Begun:
    numbers = study.data.split(study.split).numbers
    lines = [study.text.sources[number] for number in numbers]
    trees = dict(zip(numbers, parses(parses_of(study) or "", lines), strict=True))
    words = {n: word_of_piece(study.translator.source_vocab, study.text.sources[n], tree.written) for n, tree in trees.items()}
    labels = study.config.labels or present(trees.values())
    seen = Syntax(trees, words, labels or LABELS)  # with none of them it says which labels there are

    def finish() -> Found:
        maps = {"gain": seen.gain(), "syntactic": seen.syntactic()}
        maps |= {f"{r.label} {r.direction}": seen.accuracy(r.label, r.direction) for r in seen.relations() if r.n}
        facts = {"labels": seen.labels, "absent": [name for name in LABELS if name not in seen.labels and not study.config.labels]}
        return Found(maps, {**facts, "left_out": dict(seen.left_out)}, {"syntax": seen.rows(), "syntax-best": seen.best()})

    return [seen], finish


def parses_of(study: Study) -> str | None:
    """Where trees come from: --parses, or the toy language's own."""
    return study.config.parses or ("gold" if study.toy else None)


def present(trees: Iterable[Tree]) -> list[str]:
    """Those of the paper's labels that some word has."""
    own = {clear_name(label, word) for tree in trees for label, word in zip(tree.labels, tree.words, strict=True)}
    return [label for label in LABELS if label in own]


def lrp(study: Study) -> Begun:
    config = study.config

    def finish() -> Found:
        model, kinds = study.translator.model, config.kinds
        found = relevance(model, study.batches(), rule=config.lrp_rule, aggregation=config.lrp_aggregation, kinds=kinds)
        return Found(found.head_maps(), found.facts())

    return [], finish


def nothing_more(study: Study) -> dict[str, Any]:
    return {}


def trees_settings(study: Study) -> dict[str, Any]:
    """Of a file its content, not its place."""
    kind, _, where = (parses_of(study) or "").partition(":")
    path = Path(where).expanduser() if where else None
    if path is not None and path.is_dir():
        path = path / "meta.json"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path is not None and path.is_file() else None
    names = [CLEAR_NAMES.get(label, label) for label in study.config.labels]
    return {"parses": f"{kind}:{Path(where).name}" if where else kind, "parses_digest": digest, "labels": names or None}


PARTS: dict[str, Part] = {
    "confidence": Part(confidence, nothing_more),
    "lrp": Part(lrp, lambda study: {"rule": study.config.lrp_rule, "aggregation": study.config.lrp_aggregation}),
    "positions": Part(positions, nothing_more),
    "syntax": Part(syntax, trees_settings, ("enc-self",)),
    "rare": Part(rare, lambda study: {"rank": rank_of(study)}, ("enc-self",)),
    "alignment": Part(alignment, lambda study: {"alignments": "toy" if study.toy else None}),
}


# ---------------------------------------------------------------- running them


def chosen(study: Study, report: Report) -> list[str]:
    """What is to be done: --what, or all that can be, saying what is left out and why. Raises ValueError where --what cannot be done."""
    config = study.config
    reasons = {name: reason for name in PARTS if (reason := obstacle(study, name))}
    for name in config.what:
        if name in reasons:
            raise ValueError(reasons[name])
    if not config.what:
        for reason in reasons.values():
            report(f"left out: {reason}")
    return [name for name in PARTS if name in (config.what or PARTS) and name not in reasons]


def obstacle(study: Study, name: str) -> str | None:
    """Why an analysis cannot be done."""
    kinds = PARTS[name].kinds
    if not set(kinds) & set(study.config.kinds):
        return f"{name} looks at {' and '.join(kinds)} attention, and --kinds is {','.join(study.config.kinds)}; add {kinds[0]}"
    if name == "lrp" and study.config.text is not None:
        return "lrp starts at the words of translations, and --text has none; look at a split for it"
    if name == "syntax" and parses_of(study) is None:
        return f"syntax needs dependency trees of the {study.split} text; give --parses spacy:MODEL or --parses conllu:FILE"
    return None


def analyse(study: Study, names: Sequence[str], report: Report) -> dict[str, Found]:
    """What every named analysis found, written where it was not there already.

    Raises ValueError at broken files, unless --fresh, and where an analysis that --what names has nothing to count."""
    found: dict[str, Found] = {}
    made_of = {name: settings_of(study, name) for name in names}
    for name in names:
        known = None if study.config.fresh else stored(study, name, made_of[name])
        if known is not None:
            report(f"{name}: there already, same settings; --fresh repeats it")
            found[name] = known
    begun = {name: PARTS[name].begin(study) for name in names if name not in found}
    observers = [observer for seen, _ in begun.values() for observer in seen]
    if observers:
        reading = [name for name, (seen, _) in begun.items() if seen]
        kinds = {kind for name in reading for kind in PARTS[name].kinds} & set(study.config.kinds)
        sentences = len(study.data.split(study.split))
        report(
            f"{', '.join(reading)}: one pass over {sentences:,} {'pairs' if study.config.text is None else 'sentences'} of {study.split}"
        )
        record(study.translator.model, study.batches(), observers, kinds=kinds)
    for name, (seen, finish) in begun.items():
        if not seen:
            report(f"{name}: {', '.join(f'{key} {value}' for key, value in PARTS[name].settings(study).items())}")
        try:
            found[name] = finish()
        except ValueError as error:  # such as no rare word in a few sentences: the other analyses go on
            if name in study.config.what:
                raise
            report(f"left out: {name}: {error}")
            continue
        store(study, name, made_of[name], found[name])
    return {name: found[name] for name in names if name in found}


def settings_of(study: Study, name: str) -> dict[str, Any]:
    kinds = [kind for kind in PARTS[name].kinds if kind in study.config.kinds]
    return {**study.made_of(), "kinds": kinds, **PARTS[name].settings(study)}


def store(study: Study, name: str, settings: dict[str, Any], found: Found) -> None:
    """The tables first: the .json vouches for them."""
    (study.folder / f"{study.place}/{name}.json").unlink(missing_ok=True)
    for table, rows in found.tables.items():
        write_table(study.folder, f"{study.place}/{table}.csv", rows)
    maps = {title: head_map.to_json() for title, head_map in found.head_maps.items()}
    about = {"settings": settings, "head_maps": maps, "facts": found.facts, "tables": list(found.tables), **study.facts}
    study.folder.write_json(f"{study.place}/{name}.json", about)


def stored(study: Study, name: str, settings: dict[str, Any]) -> Found | None:
    """What was found before with these settings, or None."""
    file = f"{study.place}/{name}.json"
    if not (study.folder / file).is_file():
        return None
    about = study.folder.read_json(file)
    if not isinstance(about, dict) or about.get("settings") != settings:
        return None
    maps = {title: boolean(HeadMap.from_json(rows), rows) for title, rows in about["head_maps"].items()}
    return Found(maps, about["facts"], {table: read_table(study.folder, f"{study.place}/{table}.csv") for table in about["tables"]})


def boolean(head_map: HeadMap, rows: dict[str, list[Any]]) -> HeadMap:
    """Truth values come back as such."""
    flags = all(isinstance(value, bool) for row in rows.values() for value in row)
    return head_map.map(lambda row: row.bool()) if flags else head_map


def of(found: Mapping[str, Found], what: str, name: str) -> HeadMap | None:
    return found[what].head_maps.get(name) if what in found else None


def importance(study: Study) -> HeadMap | None:
    """Michel's importance of the base in nats, where fit.py or prune.py left it; of another system it is not known."""
    if not study.is_base:
        return None
    for name in (f"gradient-{study.text_digest}", "gradient"):
        path = study.base / f"scores/{name}.json"
        if path.is_file():
            return HeadMap.load(path)
    return None
