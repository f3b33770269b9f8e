"""Fisher information against one backward pass a sentence, and rearrangement against a search over all
choices."""

from itertools import combinations

import numpy as np
import pytest
import torch

from headgates.analysis.scores.fisher import fisher, fisher_blocks, rearranged, swapped
from headgates.gates import HeadMap, find_sites
from tests.analysis.scores.test_importance import batches, model, pairs, signed  # noqa: F401 - fixtures


def test_it_is_the_mean_square_of_one_gradient_for_each_sentence(model, pairs):  # noqa: F811
    rows = [signed(model, pair) for pair in pairs]
    for size in (1, 3, len(pairs)):  # so padding and neighbours do not count
        found, blocks = fisher(model, batches(pairs, size)), fisher_blocks(model, batches(pairs, size))
        assert list(found) == list(find_sites(model))
        for site in found:
            by_sentence = torch.stack([row[site] for row in rows]).double()  # (sentences, H)
            torch.testing.assert_close(found[site], by_sentence.square().mean(0), rtol=1e-4, atol=1e-7)
            slow = sum(torch.outer(row, row) for row in by_sentence) / len(pairs)
            torch.testing.assert_close(blocks[site], slow, rtol=1e-4, atol=1e-7)


def test_without_a_sentence_it_says_so(model):  # noqa: F811
    with pytest.raises(ValueError, match="at least one batch of sentence pairs, got none"):
        fisher(model, [])


def random_block(heads: int, seed: int, shared: float = 2.0) -> torch.Tensor:
    """E[g g^T] of gradients with much in common, so that cross terms count."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(101, heads)) + shared * rng.normal(size=(101, 1)) * rng.normal(size=heads)
    return torch.tensor(g.T @ g / 101)


def cost(chosen, block) -> float:
    """m^T I m, a sum over pairs."""
    return sum(float(block[i, j]) for i in chosen for j in chosen)


def diagonal_choice(block: torch.Tensor, count: int) -> torch.Tensor:
    closed = torch.zeros(len(block), dtype=torch.bool)
    closed[block.diagonal().argsort()[:count]] = True
    return closed


@pytest.mark.parametrize("count", range(6))
def test_swaps_end_where_no_exchange_of_two_heads_helps_and_never_above_the_diagonals_choice(count):
    improved = 0
    for seed in range(30):
        block = random_block(5, seed)
        before = diagonal_choice(block, count)
        after = swapped(before, block)
        assert int(after.sum()) == count
        found = cost(after.nonzero().flatten().tolist(), block)
        improved += found < cost(before.nonzero().flatten().tolist(), block) - 1e-9
        for out in after.nonzero().flatten().tolist():
            for into in (~after).nonzero().flatten().tolist():
                other = {*after.nonzero().flatten().tolist()} - {out} | {into}
                assert cost(other, block) >= found - 1e-9
        if count in (1, 4):  # every choice is one exchange away
            assert found == pytest.approx(min(cost(each, block) for each in combinations(range(5), count)))
    assert count in (0, 1, 5) or improved > 10  # else little was tried


def test_two_heads_that_undo_each_other_close_together():
    # alone each costs 4, together nothing; the third costs 1, the fourth 1.5 and, with the third, more
    g = torch.tensor([[2.0, -2.0, 1.0, 1.1], [2.0, -2.0, -1.0, -1.1]], dtype=torch.float64)
    block = g.T @ g / 2
    assert diagonal_choice(block, 2).tolist() == [False, False, True, True]
    assert swapped(torch.tensor([True, False, True, False]), block).tolist() == [True, True, False, False]


def test_rearranged_keeps_the_number_of_closed_heads_of_every_site(model, pairs):  # noqa: F811
    data = batches(pairs, 3)
    closed = fisher(model, data).lowest(5)
    found = rearranged(model, data, closed)
    assert found.by_site() == closed.by_site()
    blocks = fisher_blocks(model, data)
    assert found == HeadMap({site: swapped(row, blocks[site]) for site, row in closed.items()})
    assert rearranged(model, data, closed.select(["cross"])) == found.select(["cross"])
