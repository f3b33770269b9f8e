"""The kept keys and values, against lists in which every row has its own positions."""

import pytest
import torch

from headgates.models.decoder_state import ROOM, DecoderState

B, BEAM, S, WIDTH = 5, 3, 7, 11
HEADS = [2, 0, 1]  # of each layer


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


@pytest.fixture
def state(generator):
    cross = [tuple(torch.randn(2, B, heads, S, WIDTH, generator=generator)) for heads in HEADS]
    sentences = torch.arange(B)
    return DecoderState(
        cross, torch.zeros(B, 1, 1, S), sentences, sentences.repeat_interleave(BEAM), [None] * len(HEADS)
    )


def test_rows_keep_their_own_positions_through_every_reordering(state, generator):
    rows = [
        [([], []) for _ in HEADS] for _ in range(B * BEAM)
    ]  # row -> layer -> keys, values of each position
    cross, numbers = list(state.cross), list(range(B))
    for step in range(2 * ROOM + 3):
        for layer, heads in enumerate(HEADS):
            new = [torch.randn(len(rows), heads, 1, WIDTH, generator=generator) for _ in range(2)]
            if step:
                assert torch.equal(
                    state.newest(layer), torch.stack([row[layer][0][-1] for row in rows])[:, :, None]
                )
            for n, row in enumerate(rows):
                for kept, one in zip(row[layer], new, strict=True):
                    kept.append(one[n, :, 0])
            for found, place in zip(state.grow(layer, *new), (0, 1), strict=True):
                assert torch.equal(found, torch.stack([torch.stack(row[layer][place], 1) for row in rows]))
        state.length += 1
        chosen = (
            torch.randint(BEAM, (len(numbers), BEAM), generator=generator)
            + torch.arange(len(numbers))[:, None] * BEAM
        )
        left = torch.tensor([n for n in range(len(numbers)) if not (step in (3, ROOM, 2 * ROOM) and n == 1)])
        dropped = len(left) < len(numbers)
        chosen = chosen[left].flatten()
        state.select(chosen, left if dropped else None)
        rows = [[(list(keys), list(values)) for keys, values in rows[n]] for n in chosen.tolist()]
        numbers = [numbers[n] for n in left.tolist()]
        assert state.sentences.tolist() == numbers
        assert state.row_sentences.tolist() == [n for n in numbers for _ in range(BEAM)]
        assert all(
            torch.equal(now[0], before[0][numbers]) for now, before in zip(state.cross, cross, strict=True)
        )
    assert len(numbers) == B - 3


def test_before_the_first_position_there_is_none(state):
    assert state.newest(0) is None
