"""Token-budget batches: every pair once, within the budget, the same for the same seed, whatever the number
of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgates.data.batching import TokenBatches

RNG = np.random.default_rng(0)
SOURCE = RNG.integers(1, 43, size=1009)
TARGET = np.clip(SOURCE + RNG.integers(-5, 7, size=1009), 1, None)
SETTINGS = {"max_tokens": 401, "seed": 7}


def all_ranks(source=SOURCE, target=TARGET, *, world=1, epoch=0, **options):
    """One list of (indices, step_tokens) for each rank."""
    ranks, options = [], SETTINGS | options
    for rank in range(world):
        batches = TokenBatches(source, target, world=world, rank=rank, **options)
        batches.set_epoch(epoch)
        ranks.append(list(batches))
        assert len(ranks[-1]) == len(batches)
    return ranks


def numbers(ranks) -> list[int]:
    return sorted(i for rank in ranks for indices, _ in rank for i in indices)


@pytest.mark.parametrize(("world", "accumulate"), [(2, 1), (3, 1), (3, 2), (5, 3)])
def test_the_steps_of_ranks_are_those_of_one_that_accumulates_the_batches_of_all(world, accumulate):
    (one,) = all_ranks(accumulate=world * accumulate)
    ranks = all_ranks(world=world, accumulate=accumulate)
    in_turns = [item for of_turn in zip(*ranks, strict=True) for item in of_turn]
    assert [item for item in in_turns if item[0]] == one
    empty = [rank for rank in ranks for indices, _ in rank[:-1] if not indices]
    assert empty == [], "only a rank's last batch may be empty"


@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (1, 3), (2, 3)])
def test_an_epoch_goes_on_in_its_middle_once(world, accumulate):
    for rank, whole in enumerate(all_ranks(world=world, accumulate=accumulate, epoch=3)):
        batches = TokenBatches(SOURCE, TARGET, **SETTINGS, accumulate=accumulate, world=world, rank=rank)
        batches.set_epoch(3)
        assert batches.steps == -(-len(whole) // accumulate)
        batches.first_step = 5
        assert list(batches) == whole[5 * accumulate :]
        assert list(batches) == whole


@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 8}])
def test_another_epoch_or_seed_mixes_the_pairs_anew(other):
    first = {tuple(sorted(indices)) for indices, _ in all_ranks()[0]}
    second = {tuple(sorted(indices)) for indices, _ in all_ranks(**other)[0]}
    assert len(first & second) < len(first) / 4, "batches themselves differ, not only their order"


def test_long_and_short_batches_are_mixed_and_little_is_padding():
    batches = [(SOURCE[indices], TARGET[indices]) for indices, _ in all_ranks()[0]]
    longest = [max(source.max(), target.max()) for source, target in batches]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4
    padded = sum(len(source) * (source.max() + target.max()) for source, target in batches)
    assert (SOURCE.sum() + TARGET.sum()) / padded > 0.8


def test_an_epoch_is_ordered_as_sorting_by_both_keys_at_once():
    """Losses at a fixed seed depend on it."""
    rng = np.random.default_rng([7, 2])
    longer = np.maximum(SOURCE, TARGET)
    shuffled = rng.permutation(len(longer))
    mixed = TARGET + rng.uniform(0, 4.0, size=len(longer))
    order = shuffled[np.lexsort((-mixed[shuffled], -longer[shuffled]))]
    sizes = [0]
    while sizes[-1] < len(order):
        sizes.append(min(sizes[-1] + max(1, 401 // int(longer[order[sizes[-1]]])), len(order)))
    expected = np.split(order, sizes[1:-1])
    expected = [expected[i].tolist() for i in rng.permutation(len(expected))]
    assert [batch for batch, _ in all_ranks(epoch=2)[0]] == expected


@given(
    lengths=st.lists(st.tuples(st.integers(1, 61), st.integers(1, 61)), min_size=5, max_size=97),
    max_tokens=st.integers(1, 211),
    world=st.integers(1, 5),
    accumulate=st.integers(1, 4),
    options=st.fixed_dictionaries(
        {"epoch": st.integers(0, 3), "shuffle": st.booleans(), "unasked": st.integers(0, 1)}
    ),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_text_is_covered_once_with_equal_ranks_and_right_step_tokens(
    lengths, max_tokens, world, accumulate, options
):
    source, target = (np.array(side) for side in zip(*lengths, strict=True))
    ranks = all_ranks(source, target, world=world, accumulate=accumulate, max_tokens=max_tokens, **options)
    assert numbers(ranks) == list(range(len(lengths)))
    if not options["shuffle"] and world == 1:
        longest = [max(*source[indices], *target[indices]) for indices, _ in ranks[0]]
        assert longest == sorted(longest, reverse=True)
    assert len({len(rank) for rank in ranks}) == 1
    assert all(indices for rank in ranks for indices, _ in rank[:-1]), "only a last batch may be empty"
    for start in range(0, len(ranks[0]), accumulate):
        step = [item for rank in ranks for item in rank[start : start + accumulate]]
        asked = [int(target[i]) - options["unasked"] for indices, _ in step for i in indices]
        assert {tokens for _, tokens in step} == {sum(asked)}
    for indices, _ in (item for rank in ranks for item in rank):
        padded = len(indices) * max(source[indices].max(initial=0), target[indices].max(initial=0))
        assert len(indices) <= 1 or padded <= max_tokens
