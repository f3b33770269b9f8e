"""Which cross heads of a run align words, for runtimes that give a translation's alignment by one of them.

heads, words = aligning_heads(open_source(RUN))
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from headgates.analysis.alignment import Alignment, Baseline, Links, alignment_heads, piece_links
from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.word_links import word_links
from headgates.data.batch import Batch
from headgates.data.corpus import EncodedSplit
from headgates.data.toy import toy_pairs
from headgates.data.word_pieces import word_of_piece
from headgates.explain.analysed_model import PASS_TOKENS
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.gates.sites import BANK
from headgates.records.folder import base_of
from headgates.records.source import Source

VALID_PAIRS = 500  # validation pairs on which heads are judged
TRAIN_PAIRS = 5_000  # training pairs from which alignments are made where none are known


def aligning_heads(source: Source) -> tuple[list[tuple[int, int]], str]:
    """(layer, head) of the cross heads that align, best first and numbered without closed heads, and a line
    that says how they were found; none, and why, where there are none.

    Heads agree with alignments of validation text: as `analyze` found, for these weights; else the gold ones
    of the toy text; else those of word_links.py."""
    if not any(site.heads for site in find_sites(source.model, ["cross"])):
        return [], "no head aligns words: there is no cross-attention"
    try:
        agreement, baseline, by = analysed(source) or looked_at(source)
        found = alignment_heads(without_closed(agreement, source.model), baseline)
    except ValueError as error:
        return [], f"no head that aligns words was found: {error}"
    return found, f"{len(found)} heads align words, {named(found[0])} best, {by}"


def named(head: tuple[int, int]) -> str:
    return f"{HeadSite.at('cross', head[0], 0).name}.{head[1]}"


def analysed(source: Source) -> tuple[HeadMap, Baseline, str] | None:
    """What `analyze` found of these weights; None where it has not looked, or knew no alignments."""
    file = f"analysis/{source.system}/alignment.json"
    for folder in {source.folder, base_of(source.folder)}:
        content: Any = folder.read_json(file) if (folder / file).is_file() else {"head_maps": {}}
        agreement, facts = content["head_maps"].get("agreement"), content.get("facts")
        if agreement is not None and content["cache_key"]["weights"] == source.weights:
            baseline = Baseline(facts["baseline_offset"], facts["baseline"])
            return HeadMap.from_json(agreement), baseline, "as analyze found"
    return None


def looked_at(source: Source) -> tuple[HeadMap, Baseline, str]:
    """By one pass over validation pairs."""
    corpus = replace(source.corpus, valid=source.corpus.valid.first(VALID_PAIRS))
    data = source.data(corpus)
    batches = list(data.batches("valid", PASS_TOKENS))
    if corpus.name == "toy":
        gold = toy_links(source.translator, data.split("valid"), corpus.valid, "valid")
        by = "by gold alignments"
    else:
        gold = counted_links(source, batches)
        by = f"by alignments counted in up to {TRAIN_PAIRS:,} training pairs"
    alignment = Alignment(gold)
    observe_attention(source.model, batches, [alignment], kinds=["cross"])
    return alignment.agreement(), alignment.baseline(), by


def toy_links(predictor: Any, pairs: EncodedSplit, text: Any, split: str) -> dict[int, Links]:
    """The gold links between the pieces of every pair of the toy text, by the pair's number."""
    links = {}
    for number in pairs.numbers:
        pair = toy_pairs(split)[number]
        source = word_of_piece(predictor.source_vocab, text.sources[number], pair.words)
        target = word_of_piece(predictor.target_vocab, text.targets[number], pair.target_words)
        links[number] = piece_links(pair.alignment, source, target)
    return links


def counted_links(source: Source, batches: Sequence[Batch]) -> dict[int, Links]:
    """Links between the pieces of these pairs, by the pair's number, from pieces that stand together in them
    and in training pairs."""
    specials = source.model.source_specials, source.model.target_specials
    texts = [(batch.source, batch.target_out) for batch in (*batches, *source.train_batches(TRAIN_PAIRS))]
    rows = [
        [(row[where := each.is_piece(row)], where) for each, row in zip(specials, pair, strict=True)]
        for text in texts
        for pair in zip(*text, strict=True)
    ]
    found = word_links([(of_source.tolist(), of_target.tolist()) for (of_source, _), (of_target, _) in rows])
    numbers = [number for batch in batches for number in batch.index.tolist()]
    places = [[where.nonzero().flatten().tolist() for _, where in row] for row in rows]
    return {
        number: [(at_source[s], at_target[t]) for s, t in links]
        for number, (at_source, at_target), links in zip(numbers, places, found, strict=False)
    }


def without_closed(agreement: HeadMap, model: Any) -> HeadMap:
    """Without the heads that gates of the model close, which are not written."""
    bank = getattr(model, BANK, None)
    if bank is None:
        return agreement
    values = bank.values()
    rows: dict[HeadSite, Tensor] = {}
    for site, row in agreement.items():
        own = row[values[site] != 0] if site in values else row
        rows[HeadSite.at(site.kind, site.layer, len(own))] = own
    return HeadMap(rows)
