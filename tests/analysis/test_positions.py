"""Offsets against one sentence, head and query at a time."""

from collections import Counter

import pytest

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.positions import Positions
from tests.worlds.one_by_one import in_batches, looks, random_model, random_pairs


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


def test_bad_settings_and_nothing_to_count_are_refused():
    with pytest.raises(ValueError, match="expected at least 1, got 0"):
        Positions(0)
    with pytest.raises(ValueError, match="nothing to count"):
        Positions().best()
