"""Masks that are given: by head, by sentence, by position; a closed gate is a head whose columns of W_O are
zero."""

import pytest
import torch

from headgates.configs.settings import SearchConfig
from headgates.gates import HeadMask, HeadSite, attach, find_sites
from headgates.models.search import best_hypotheses

HEADS, WIDTH = 3, 7


def masks(model, length: dict[str, int] | None = None) -> dict[HeadSite, torch.Tensor]:
    """Random 0/1 masks (3, H) or, with a length a kind, (3, H, L)."""
    generator = torch.Generator().manual_seed(3)
    return {
        site: torch.randint(2, (3, HEADS, *([length[site.kind]] if length else [])), generator=generator)
        * 1.0
        for site in find_sites(model)
    }


@pytest.mark.parametrize("by_position", [False, True], ids=["by sentence", "by position"])
def test_cached_decoding_with_masks_equals_every_sentence_alone(model, batch, by_position):
    def found(source):
        both = (best_hypotheses(model, source, SearchConfig(beam=beam)) for beam in (1, 3))
        return [(a.ids, b.ids) for (a,), (b, *_) in zip(*both, strict=True)]

    source, _ = batch
    length = {"enc-self": source.shape[1], "dec-self": 24, "cross": 24}  # 24: the longest hypothesis
    own = masks(model, length if by_position else None)
    bank, alone = attach(model, gate="mask"), []
    for b in range(3):
        bank.assign({site: xi[b : b + 1] for site, xi in own.items()})
        alone += found(source[b : b + 1])
    bank.assign(own)
    assert found(source) == alone


def test_cached_decoding_with_position_masks_equals_the_whole_pass(model, batch):
    source, target_in = batch
    attach(model, gate="mask").assign(masks(model, {"enc-self": 7, "dec-self": 5, "cross": 5}))
    state = model.start(source)
    steps = torch.stack([model.step(ids, state) for ids in target_in.T], dim=1)
    torch.testing.assert_close(steps, model(source, target_in))
    with pytest.raises(ValueError, match="covers 5 positions, position 6 was asked for"):
        model.step(target_in[:, 0], state)


@pytest.mark.parametrize("shape", [(), (4,), (HEADS, 5), (5, 4, HEADS), (1, 1, HEADS, 1)])
def test_a_mask_of_another_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected xi of shape .* with H = 3, got"):
        HeadMask(HEADS, torch.ones(shape))


def test_a_mask_goes_to_the_device_of_the_one_before():
    gate = HeadMask(HEADS).to("meta")
    gate.assign(torch.ones(HEADS))
    assert gate.xi.device.type == "meta"


def test_only_a_mask_by_head_has_a_value_and_is_part_of_the_state_dict():
    gate = HeadMask(HEADS)
    assert set(gate.state_dict()) == {"xi"}
    gate.assign(torch.ones(5, HEADS))
    assert set(gate.state_dict()) == set()
    with pytest.raises(ValueError, match="differs by sentence"):
        gate.test_value()
    gate.assign(torch.ones(HEADS))
    assert set(gate.state_dict()) == {"xi"}
