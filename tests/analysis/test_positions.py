"""Offsets against one sentence, head and query at a time."""

from collections import Counter

import pytest
import torch

from headgates.analysis.attention_pass import AttentionBatch, observe_attention
from headgates.analysis.positions import THRESHOLD, Positions
from headgates.data.batch import collate
from headgates.gates import HeadSite
from tests.analysis.one_by_one import in_batches, looks, random_model, random_pairs
from tests.worlds.seen_attention import seen_attention

SITE = HeadSite.at("enc-self", 0, 2)


def slow(model, pairs, exclude):
    """(looks at each offset, queries with a key there, queries) of each head."""
    at, inside, queries = {}, {}, Counter()
    for look in looks(model, pairs, exclude):
        head = look.site, look.head
        at.setdefault(head, Counter())[look.argmax - look.query] += 1
        inside.setdefault(head, Counter()).update(key - look.query for key in look.keys)
        queries[head] += 1
    return at, inside, queries


@pytest.mark.parametrize("exclude", ["both", "query", "key", "none"])
@pytest.mark.parametrize(("size", "window"), [(1, 3), (3, 20), (8, 5)])
def test_every_offset_has_the_share_that_a_slow_count_gives(exclude, size, window):
    model, pairs = random_model(), random_pairs()
    by_edges = {edges: Positions(window, exclude=exclude, edges=edges) for edges in ("inside", "all")}
    observe_attention(model, in_batches(pairs, size), list(by_edges.values()))
    at, inside, queries = slow(model, pairs, exclude)
    for edges, positions in by_edges.items():
        rows = {(row["site"], row["head"], row["offset"]): row for row in positions.offsets()}
        expected = {(*head, offset) for head in inside for offset in inside[head] if abs(offset) <= window}
        assert set(rows) == expected
        for (site, head, offset), row in rows.items():
            assert row["looks"] == at[site, head][offset]
            assert row["inside"] == inside[site, head][offset]
            assert row["queries"] == queries[site, head]
            of = row["inside"] if edges == "inside" else row["queries"]
            assert row["share"] == pytest.approx(row["looks"] / of)
            assert (row["kind"], row["layer"]) == (site.split(".")[2], int(site.split(".")[1]))


@pytest.mark.parametrize("edges", ["inside", "all"])
def test_the_best_offset_is_the_most_frequent_then_the_larger_share_the_nearest_the_earlier(
    edges,
):
    model, pairs = random_model(), random_pairs()
    positions = Positions(4, edges=edges)
    observe_attention(model, in_batches(pairs, 3), [positions])
    at, inside, queries = slow(model, pairs, "both")
    best = positions.best()
    for site, row in best.offset.items():
        for head, offset in enumerate(row.tolist()):
            counts, there = at[site.name, head], inside[site.name, head]
            share = {
                o: counts[o] / (there[o] if edges == "inside" else queries[site.name, head])
                for o in range(-4, 5)
                if there[o]
            }
            assert offset == min(share, key=lambda o: (-counts[o], -share[o], abs(o), o))
            assert float(best.share[site][head]) == pytest.approx(share[offset])


def seen_with_argmax(lengths: list[int], key_of: list[list[int]]) -> AttentionBatch:
    """Sentences of these numbers of words; head h looks from word i to key key_of[h][i]."""
    batch = collate([([5] * length, [5]) for length in lengths], list(range(len(lengths))), 1)
    weights = torch.zeros(len(lengths), 2, max(lengths) + 1, max(lengths) + 1)
    for b, length in enumerate(lengths):
        for head, keys in enumerate(key_of):
            for i in range(length):
                weights[b, head, i, keys[i]] = 1.0
    return seen_attention(batch, {SITE: weights})


def test_the_threshold_itself_is_positional():
    seen = seen_with_argmax([11], [[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0], [0, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0]])
    positions = Positions()
    positions.add(seen)
    assert positions.best().share[SITE].tolist() == [0.9, 0.8]
    assert (positions.best().share[SITE] >= THRESHOLD).tolist() == [True, False]


def test_a_head_that_looks_beyond_the_window_has_no_best_offset_in_it():
    positions = Positions(window=1)
    positions.add(seen_with_argmax([5], [[2, 3, 4, 0, 0], [0, 0, 1, 2, 3]]))
    assert positions.best().share[SITE].tolist() == [0, 1]
    assert positions.best().offset[SITE].tolist() == [0, -1]


def test_bad_settings_and_nothing_to_count_are_refused():
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        Positions(0)
    with pytest.raises(ValueError, match="unknown edges 'outside'; known: inside, all"):
        Positions(edges="outside")
    with pytest.raises(ValueError, match="unknown exclude"):
        Positions(exclude="eos")
    with pytest.raises(ValueError, match="nothing to count"):
        Positions().best()
