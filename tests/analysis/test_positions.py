"""Offsets against one sentence, head and query at a time."""

from collections import Counter

import pytest
import torch

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.positions import Positions
from headgates.gates import HeadSite
from tests.worlds.one_by_one import in_batches, looks, random_model, random_pairs
from tests.worlds.seen_attention import seen_attention


@pytest.mark.parametrize("size", [1, 3])
def test_every_offset_has_the_share_of_a_slow_count_and_the_best_is_chosen_of_them(size):
    """The best: the most frequent, then the larger share, the nearest, the earlier."""
    model, pairs, window = random_model(), random_pairs(), 2 + size
    positions = Positions(window)
    observe_attention(model, in_batches(pairs, size), [positions])
    at, inside, queries = {}, {}, Counter()
    for look in looks(model, pairs):
        head = look.site, look.head
        at.setdefault(head, Counter())[look.argmax - look.query] += 1
        inside.setdefault(head, Counter()).update(key - look.query for key in look.keys)
        queries[head] += 1
    rows = {(row["site"], row["head"], row["offset"]): row for row in positions.offsets()}
    assert set(rows) == {(*head, o) for head in inside for o in inside[head] if abs(o) <= window}
    best = positions.best()
    for (site, head), counts in at.items():
        shares = {}
        for offset in range(-window, window + 1):
            if there := inside[site, head][offset]:
                row = rows[site, head, offset]
                shares[offset] = counts[offset] / there
                expected = (counts[offset], there, queries[site, head], pytest.approx(shares[offset]))
                assert (row["looks"], row["inside"], row["queries"], row["share"]) == expected
                assert row["site"].endswith(f"{row['layer']}.{row['kind']}")
        chosen = min(shares, key=lambda o: (-counts[o], -shares[o], abs(o), o))
        assert best.offset[site][head] == chosen
        assert float(best.share[site][head]) == pytest.approx(shares[chosen])


def test_a_head_that_looks_beyond_the_window_has_no_best_offset_in_it():
    keys = torch.tensor([[2, 3, 4, 0, 0], [0, 0, 1, 2, 3]])  # of head h from word i
    site, weights = HeadSite.at("enc-self", 0, 2), torch.zeros(1, 2, 6, 6)
    weights[0, :, :5] = torch.nn.functional.one_hot(keys, 6).float()
    positions = Positions(window=1)
    positions.add(seen_attention(in_batches([([5] * 5, [5])], 1)[0], {site: weights}))
    best = positions.best()
    assert best.share.flat().tolist() == [0, 1]
    assert best.offset.flat().tolist() == [0, -1]


def test_bad_settings_and_nothing_to_count_are_refused():
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        Positions(0)
    with pytest.raises(ValueError, match="nothing to count"):
        Positions().best()
