"""The analyses that `analyze.py` runs, each with the settings its result depends on; a stored result with the
same settings is read again.

One pass over the text serves every analysis but relevance, which makes a pass of its own. Files in
`analysis/<system>/`, or `analysis/<system>-<kinds>/` with --kinds:

    <analysis>.json    settings, head maps by name, facts (numbers that hold for all heads together),
    provenance
    <table>.csv        the tables of the analyses that have some

To add an analysis: write a function AnalysedModel -> StartedAnalysis, and add a line to ANALYSES (and its
name to configs/analyses.py)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

import numpy as np

from headgates.analysis.alignment import Alignment, Entropy
from headgates.analysis.attention_pass import Observer, observe_attention
from headgates.analysis.confidence import Confidence
from headgates.analysis.contrasts import pair_values
from headgates.analysis.lrp import relevance
from headgates.analysis.positions import Positions
from headgates.analysis.rare_words import RareWords, token_counts
from headgates.analysis.ratio_walk import RatioWalk
from headgates.analysis.results import AnalysisResult
from headgates.analysis.syntax import CLEAR_NAMES, Syntax, clear_labels
from headgates.analysis.without_heads import all_heads, closing
from headgates.configs.analyses import LABELS
from headgates.data import ranks
from headgates.data.file_digest import file_digest
from headgates.data.parses import parses
from headgates.data.ranks import first, wait
from headgates.data.text import DataError
from headgates.data.word_pieces import word_of_piece
from headgates.explain.aligning import toy_links
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.causes import causes
from headgates.explain.contrast import contrast, contrast_settings, contrast_slug
from headgates.gates import KINDS, HeadMap
from headgates.models.translator import Translator
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import ScoreRequest, ScoresRecord, checked_scores, score_file
from headgates.records.folder import HeadMapRecord, plain
from headgates.records.table import read_table, write_table

# the observers that need the pass over the text, and the function that gives the result after it
StartedAnalysis = tuple[Sequence[Observer], Callable[[], AnalysisResult]]
MEASURED_SENTENCES = 50  # whose effects are measured: each costs a pass for every head
DRAWN_PIECES = 24  # on either side, of a sentence whose attention the page draws
SHOWN = 3  # sentences of a head


@dataclass(frozen=True)
class Analysis:
    """settings: what the result depends on besides the model and its text. by_flag: made only where the
    setting of its name asks for it. suffix: what the name of its file ends in."""

    start: Callable[[AnalysedModel], StartedAnalysis]
    settings: Callable[[AnalysedModel], dict[str, Any]] = lambda analysed: {}
    kinds: tuple[str, ...] = KINDS  # the kinds of attention that it looks at
    by_flag: bool = False
    suffix: Callable[[AnalysedModel], str] = lambda analysed: ""


# ---------------------------------------------------------------- the analyses


def start_confidence(analysed: AnalysedModel) -> StartedAnalysis:
    observer = Confidence()
    return [observer], lambda: AnalysisResult({"confidence": observer.head_map()})


def start_positions(analysed: AnalysedModel) -> StartedAnalysis:
    observer = Positions()

    def finish() -> AnalysisResult:
        best = observer.best()
        return AnalysisResult(
            {"offset": best.offset, "share": best.share}, {}, {"offsets": observer.offsets()}
        )

    return [observer], finish


def start_rare(analysed: AnalysedModel) -> StartedAnalysis:
    # copies: torch warns of read-only arrays
    ids = (part.copy() for part in analysed.data.train_pairs.flat("source"))
    counts = token_counts(ids, len(analysed.predictor.source_vocab))
    observer = RareWords(counts, rare_rank(analysed))

    def finish() -> AnalysisResult:
        maps = {"rarest": observer.rarest(), "two_rarest": observer.two_rarest()}
        one, two = observer.chance()
        facts = {"rank": observer.rank, "chance_rarest": one, "chance_two_rarest": two}
        return AnalysisResult(
            maps, {**facts, "sentences_counted": observer.sentences, "queries": observer.queries}
        )

    return [observer], finish


def rare_rank(analysed: AnalysedModel) -> int:
    return analysed.config.rare_rank or (50 if analysed.toy else 500)


def start_alignment(analysed: AnalysedModel) -> StartedAnalysis:
    """Entropy always; agreement too where the gold alignments are known and cross attention is looked at."""
    entropy = Entropy()
    gold = None
    if analysed.toy and "cross" in analysed.config.attention:
        pairs = analysed.data.split(analysed.split)
        gold = Alignment(toy_links(analysed.predictor, pairs, analysed.text, analysed.split))

    def finish() -> AnalysisResult:
        maps = {"entropy": entropy.nats(), "entropy_relative": entropy.relative()}
        if gold is None:
            return AnalysisResult(maps)
        baseline = gold.baseline()
        facts = {"baseline": baseline.share, "baseline_offset": baseline.offset, "tokens": gold.tokens}
        return AnalysisResult({**maps, "agreement": gold.agreement()}, facts)

    return [entropy, *([] if gold is None else [gold])], finish


def start_syntax(analysed: AnalysedModel) -> StartedAnalysis:
    config, sources = analysed.config, analysed.text.sources
    numbers = analysed.data.split(analysed.split).numbers
    found = parses(parses_source(analysed) or "", [sources[number] for number in numbers])
    trees = dict(zip(numbers, found, strict=True))
    words, unfit = {}, []
    for number, tree in trees.items():
        try:
            words[number] = word_of_piece(analysed.predictor.source_vocab, sources[number], tree.written)
        except DataError as error:  # the tokenizer cannot say which characters its pieces stand for
            unfit.append(error)
    if unfit:
        analysed.report(f"syntax: {len(unfit)} of {len(trees)} sentences left out: {unfit[0]}")
    trees = {number: trees[number] for number in words}
    present = clear_labels(trees.values())
    # without any of them, the error says which labels there are
    labels = config.labels or [label for label in LABELS if label in present] or LABELS
    observer = Syntax(trees, words, labels)

    def finish() -> AnalysisResult:
        maps = {"gain": observer.gain(), "syntactic": observer.syntactic()}
        maps |= observer.accuracies()
        absent = [name for name in LABELS if name not in observer.labels and not config.labels]
        facts = {"labels": observer.labels, "absent": absent, "left_out": dict(observer.left_out)}
        return AnalysisResult(maps, facts, {"syntax": observer.rows(), "syntax-best": observer.best()})

    return [observer], finish


def parses_source(analysed: AnalysedModel) -> str | None:
    """Where the trees come from: --parses, or the toy language's own."""
    return analysed.config.parses or ("gold" if analysed.toy else None)


def start_lrp(analysed: AnalysedModel) -> StartedAnalysis:
    config, logits = analysed.config, analysed.source.task.top_logits

    def finish() -> AnalysisResult:
        shares = relevance(
            analysed.predictor.model,
            analysed.batches("lrp"),
            walk=partial(RatioWalk, logits=logits) if config.lrp_rule == "ratio" else None,
            aggregation=config.lrp_aggregation,
            kinds=config.attention,
            logits=logits,
            ranks=ranks,
        )
        return AnalysisResult(shares.head_maps(), shares.facts())

    return [], finish


def start_sentences(analysed: AnalysedModel) -> StartedAnalysis:
    """For every head the sentences on which closing it alone costs most, of the first MEASURED_SENTENCES of
    the text that are short enough to be drawn."""

    def finish() -> AnalysisResult:
        split = analysed.data.split(analysed.split)
        longest = np.maximum(split.pairs.lengths("source"), split.pairs.lengths("target"))
        chosen = np.flatnonzero(longest <= DRAWN_PIECES)[:MEASURED_SENTENCES].tolist()
        if not chosen:
            raise ValueError(f"no sentence of {analysed.split} has at most {DRAWN_PIECES} pieces")
        model, losses = analysed.predictor.model, analysed.source.task.losses
        heads, batch, rows = all_heads(model), split[(chosen, 1)], []
        closings = [closing([]), *(closing([head]) for head in heads)]
        whole, *without = pair_values(model, [batch], closings, losses)
        for (site, head), alone in zip(heads, without, strict=True):
            if site.kind in analysed.config.attention:
                values, best = (alone - whole).topk(min(SHOWN, len(whole)))
                for place, (i, effect) in enumerate(
                    zip(best.tolist(), values.tolist(), strict=True), start=1
                ):
                    number = int(batch.index[i])
                    rows.append({**site.row(head), "place": place, "sentence": number, "effect": effect})
        return AnalysisResult({}, {"sentences": len(whole)}, {"sentences": rows})

    return [], lambda: first(finish)


def syntax_settings(analysed: AnalysedModel) -> dict[str, Any]:
    """A file of parses stands with its name and the digest of its content, not its path."""
    kind, _, name_or_path = (parses_source(analysed) or "").partition(":")
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        path = path / "meta.json"
    digest = file_digest(path)[:12] if name_or_path and path.is_file() else None
    labels = [CLEAR_NAMES.get(label, label) for label in analysed.config.labels]
    parses_name = f"{kind}:{Path(name_or_path).name}" if name_or_path else kind
    return {"parses": parses_name, "parses_digest": digest, "labels": labels or None}


def causes_settings(analysed: AnalysedModel) -> dict[str, Any]:
    """Its text is the training text, and what other commands left beside it is part of the card."""
    ablation = analysed.base / "ablation/one.csv"
    return {
        "training pairs": analysed.config.causes_sentences,
        "training text": analysed.source.corpus.digest(),
        "scores": list(SCORES),
        "pair_heads": analysed.config.pair_heads,
        "ablation": file_digest(ablation)[:12] if ablation.is_file() else None,
    }


ANALYSES: dict[str, Analysis] = {
    "confidence": Analysis(start_confidence),
    "lrp": Analysis(
        start_lrp,
        lambda analysed: {"rule": analysed.config.lrp_rule, "aggregation": analysed.config.lrp_aggregation},
    ),
    "positions": Analysis(start_positions),
    "syntax": Analysis(start_syntax, syntax_settings, ("enc-self",)),
    "rare": Analysis(start_rare, lambda analysed: {"rank": rare_rank(analysed)}, ("enc-self",)),
    "alignment": Analysis(start_alignment, lambda analysed: {"alignments": "toy" if analysed.toy else None}),
    "sentences": Analysis(
        start_sentences,
        lambda analysed: {"first": MEASURED_SENTENCES, "of at most": f"{DRAWN_PIECES} pieces"},
    ),
    "causes": Analysis(lambda analysed: ([], lambda: causes(analysed)), causes_settings, by_flag=True),
    "contrast": Analysis(
        lambda analysed: ([], lambda: contrast(analysed)),
        contrast_settings,
        by_flag=True,
        suffix=lambda analysed: f"-{contrast_slug(analysed.config.contrast or '')}",
    ),
}


# ---------------------------------------------------------------- running them


def chosen_analyses(analysed: AnalysedModel) -> list[str]:
    """The names of --what, or of all analyses that can be run, and why the others cannot is said.

    Raises ValueError where an analysis of --what cannot be run."""
    flags = [name for name, each in ANALYSES.items() if each.by_flag and getattr(analysed.config, name)]
    free = [name for name, each in ANALYSES.items() if not each.by_flag]
    obstacles = {name: reason for name in (*free, *flags) if (reason := obstacle(analysed, name))}
    for name in (*analysed.config.what, *flags):
        if name in obstacles:
            raise ValueError(obstacles[name])
    if not analysed.config.what:
        for reason in obstacles.values():
            analysed.report(f"left out: {reason}")
    return [name for name in (*(analysed.config.what or free), *flags) if name not in obstacles]


def obstacle(analysed: AnalysedModel, name: str) -> str | None:
    """Why an analysis cannot be run, None where it can."""
    kinds = ANALYSES[name].kinds
    if name == "causes" and not analysed.is_whole:
        return "--causes reads the base and its training text; leave --system, --text and --name out"
    if name == "contrast" and not (analysed.is_whole and isinstance(analysed.predictor, Translator)):
        return "--contrast looks at a base that translates; leave --system, --text and --name out"
    if not set(kinds) & set(analysed.config.attention):
        return (
            f"{name} looks at {' and '.join(kinds)} attention, and --kinds is "
            f"{','.join(analysed.config.attention)}; add {kinds[0]}"
        )
    if name == "sentences" and (analysed.closed is not None or analysed.config.text is not None):
        return "sentences closes heads of the base and reads its text; leave --system and --text out"
    if name == "lrp" and analysed.config.text is not None:
        return "lrp starts at the words of translations, and --text has none; use --set split=test for it"
    if name == "syntax" and parses_source(analysed) is None:
        return (
            f"syntax needs dependency trees of the {analysed.split} text; give --parses spacy:MODEL or "
            f"--parses conllu:FILE"
        )
    return None


def run_analyses(analysed: AnalysedModel, names: Sequence[str]) -> dict[str, AnalysisResult]:
    """The result of every named analysis, in the order of `names`. Results that were not stored are written
    to the results folder.

    An analysis that finds nothing to count is left out. Raises ValueError where --what names such an
    analysis, and, unless --fresh, where a stored file is broken."""
    settings = {name: analysis_settings(analysed, name) for name in names}
    results: dict[str, AnalysisResult] = {}
    for name in names:
        stored = None if analysed.config.fresh else stored_result(analysed, name, settings[name])
        if stored is not None:
            analysed.report(f"{name}: there already, same settings; --fresh repeats it")
            results[name] = stored
    wait()  # until every rank has read them: what follows writes
    started = {name: ANALYSES[name].start(analysed) for name in names if name not in results}
    in_pass = [name for name, (observers, _) in started.items() if observers]
    unit = "pairs" if analysed.config.text is None else "sentences"
    size = f"{len(analysed.data.split(analysed.split)):,} {unit} of {analysed.split}"
    if in_pass:
        kinds = {kind for name in in_pass for kind in ANALYSES[name].kinds} & set(analysed.config.attention)
        analysed.report(f"{', '.join(in_pass)}: one pass over {size}")
        all_observers = [observer for observers, _ in started.values() for observer in observers]
        observe_attention(analysed.predictor.model, analysed.batches("one pass"), all_observers, kinds=kinds)
    for name, (_, finish) in started.items():
        if name not in in_pass and not ANALYSES[name].by_flag:
            words = ", ".join(f"{key} {value}" for key, value in ANALYSES[name].settings(analysed).items())
            analysed.report(f"{name}: {words}, over {size}")
        try:
            results[name] = finish()
        except ValueError as error:  # such as no rare word in a few sentences: the other analyses go on
            if name in analysed.config.what or name == "contrast":
                raise
            analysed.report(f"left out: {name}: {error}")
            continue
        store_result(analysed, name, settings[name], results[name])
    return {name: results[name] for name in names if name in results}


def earlier_results(analysed: AnalysedModel, names: Sequence[str]) -> dict[str, AnalysisResult]:
    """What the results folder holds of other analyses by the same settings; not of those of flags."""
    found: dict[str, AnalysisResult] = {}
    for name, each in ANALYSES.items():
        if name not in names and not each.by_flag and obstacle(analysed, name) is None:
            stored = stored_result(analysed, name, analysis_settings(analysed, name))
            found |= {} if stored is None else {name: stored}
    return found


def analysis_settings(analysed: AnalysedModel, name: str) -> dict[str, Any]:
    """Everything that the analysis depends on, as its .json file holds it."""
    kinds = [kind for kind in ANALYSES[name].kinds if kind in analysed.config.attention]
    return {**analysed.fingerprint(), "kinds": kinds, **ANALYSES[name].settings(analysed)}


def result_file(analysed: AnalysedModel, name: str) -> str:
    return f"{analysed.results_folder}/{name}{ANALYSES[name].suffix(analysed)}.json"


class AnalysisRecord(TypedDict):
    """The .json file of an analysis. tables: the names of its .csv files."""

    head_maps: dict[str, HeadMapRecord]
    facts: dict[str, Any]
    tables: list[str]


def store_result(
    analysed: AnalysedModel, name: str, settings: dict[str, Any], result: AnalysisResult
) -> None:
    """Write the tables and then the .json file, which vouches for them."""

    def write() -> AnalysisRecord:
        for table, rows in result.tables.items():
            write_table(analysed.folder, f"{analysed.results_folder}/{table}.csv", rows)
        maps = {title: head_map.to_json() for title, head_map in result.head_maps.items()}
        tables = list(result.tables)
        record = AnalysisRecord(head_maps=maps, facts=result.facts, tables=tables)
        return cast(AnalysisRecord, record | analysed.provenance)

    analysed.folder.cached(result_file(analysed, name), AnalysisRecord, settings, write, fresh=True)


def stored_result(analysed: AnalysedModel, name: str, settings: dict[str, Any]) -> AnalysisResult | None:
    """The stored result of the analysis, None where there is none with these settings."""
    folder, file = analysed.folder, result_file(analysed, name)
    if not (folder / file).is_file() or folder.read_json(file).get("cache_key") != plain(settings):
        return None
    content = folder.read_json(file, AnalysisRecord)
    maps = {title: HeadMap.from_json(rows) for title, rows in content["head_maps"].items()}
    tables = {
        table: read_table(folder, f"{analysed.results_folder}/{table}.csv") for table in content["tables"]
    }
    return AnalysisResult(maps, content["facts"], tables)


def base_request(analysed: AnalysedModel) -> ScoreRequest:
    """What a recipe asks of a score of the base."""
    return ScoreRequest(analysed.source, sentences=analysed.source.config.get("sentences", 0))


def score_path(analysed: AnalysedModel, name: str) -> str | None:
    """Where a score of the base is kept, relative to its folder; None where none is, and for any system but
    the base."""
    own = base_request(analysed)
    for request in (own, replace(own, sentences=0)) if analysed.is_base else ():
        path = f"scores/{score_file(name, request)}.json"
        if (analysed.base / path).is_file():
            return path
    return None


def base_score(analysed: AnalysedModel, name: str) -> HeadMap | None:
    """A score of the base in nats, where it is kept."""
    path = score_path(analysed, name)
    if path is None:
        return None
    found = checked_scores(
        analysed.source, path, analysed.base.read_json(path, ScoresRecord), analysed.config.attention
    )
    return found[SCORES[name].part]
