"""resampled: closed heads give what they give elsewhere in the text, head by head, the same for the same
seed; then all is as it was."""

import pytest
import torch

from headgates.gates import HeadMap, find_sites, resampled
from tests.worlds.slow_reconstruct import WIDTH, forward, module_at

HEADS, SITE = 3, "decoder.0.cross"


@pytest.fixture
def text():
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randint(4, 23, (5, s), generator=generator), torch.randint(4, 19, (5, 3), generator=generator))
        for s in (7, 4)
    ]


def closing(model, *heads) -> HeadMap:
    (site,) = [site for site in find_sites(model) if site.name == SITE]
    return HeadMap({site: [h in heads for h in range(HEADS)]})


def at_the_site(model, batches):
    """What W_O of the site gets, (positions, H, K)."""
    seen = []
    handle = module_at(model, SITE).out_proj.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].detach().flatten(0, 1).unflatten(-1, (HEADS, WIDTH)))
    )
    for batch in batches:
        model(*batch)
    handle.remove()
    return torch.cat(seen)


def places(found, own):
    """(positions, positions): whether the one row is the other."""
    return (found[:, None] - own[None]).abs().amax(-1) < 1e-5


def test_each_closed_head_gives_what_it_gives_somewhere_else_and_the_others_stay(model, text):
    own = at_the_site(model, text)
    with resampled(model, closing(model, 0, 2), text, forward, seed=1):
        found = at_the_site(model, text)
    torch.testing.assert_close(found[:, 1], own[:, 1])
    first, last = (places(found[:, head], own[:, head]) for head in (0, 2))
    assert first.any(1).all()
    assert last.any(1).all()
    assert len(first.double().argmax(1).unique()) > len(own) / 3  # sampled for every position
    assert not torch.equal(first, last)  # and for every head


def test_the_same_seed_gives_the_same_and_afterwards_the_model_is_as_it_was(model, text):
    before, outputs = model(*text[0]), []
    for seed in (1, 1, 2):
        with resampled(model, closing(model, 0), text, forward, seed=seed):
            outputs.append(model(*text[0]))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(model(*text[0]), before)


def test_padding_is_never_sampled(model, batch):
    real = batch[1] != 0
    own = at_the_site(model, [batch])[real.flatten(), 1]
    with resampled(model, closing(model, 1), [batch], forward, positions=lambda *_: real):
        assert places(at_the_site(model, [batch])[:, 1], own).any(1).all()


def test_an_empty_text_is_refused(model):
    with pytest.raises(ValueError, match="no positions"), resampled(model, closing(model, 0), [], forward):
        pass
