"""Confidence against one sentence, head and query at a time."""

from collections import defaultdict

import pytest

from headgates.analysis.attention_pass import observe_attention
from headgates.analysis.confidence import Confidence, confidence
from tests.analysis.one_by_one import assert_equal, in_batches, looks, mean_map, random_model, random_pairs


def slow(model, pairs, exclude):
    values = defaultdict(list)
    for look in looks(model, pairs, exclude):
        values[look.site, look.head].append(max(look.keys.values()))
    return mean_map(values)


@pytest.mark.parametrize("exclude", ["both", "query", "key", "none"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_confidence_is_the_mean_over_tokens_of_the_largest_weight(exclude, size):
    model, pairs = random_model(), random_pairs()
    observer = Confidence(exclude)
    observe_attention(model, in_batches(pairs, size), [observer])
    assert_equal(observer.head_map(), slow(model, pairs, exclude))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_score_leaves_the_end_of_sentence_out_as_query_and_as_key(size):
    model, pairs = random_model(), random_pairs()
    assert_equal(confidence(model, in_batches(pairs, size)), slow(model, pairs, "both"))
    with pytest.raises(ValueError, match="got no batch"):
        confidence(model, [])


def test_the_readings_differ():
    model, pairs = random_model(), random_pairs()
    maps = [slow(model, pairs, exclude).flat() for exclude in ("both", "query", "key", "none")]
    assert all((a - b).abs().max() > 0.01 for i, a in enumerate(maps) for b in maps[:i])


def test_an_observer_may_be_fed_in_several_passes():
    model, pairs = random_model(), random_pairs()
    observer = Confidence()
    for some in in_batches(pairs, 3):
        observe_attention(model, [some], [observer])
    assert_equal(observer.head_map(), slow(model, pairs, "both"))


def test_without_a_token_there_is_no_confidence():
    with pytest.raises(ValueError, match="confidence has nothing to count"):
        Confidence().head_map()


def test_an_unknown_reading_is_refused():
    with pytest.raises(ValueError, match="did you mean 'both'"):
        Confidence("boths")
