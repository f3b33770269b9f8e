"""resampled: closed heads say what they say elsewhere in the text, head by head, the same for the same seed;
then all is as it was."""

import pytest
import torch

from headgates.gates import HeadMap, find_sites, resampled

HEADS, WIDTH = 3, 7
SITE = "decoder.0.cross"


def forward(model, batch):
    return model(*batch)


@pytest.fixture
def text():
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randint(4, 23, (5, s), generator=generator), torch.randint(4, 19, (5, 3), generator=generator))
        for s in (7, 4)
    ]


def closing(model, heads) -> HeadMap:
    return HeadMap(
        {
            site: torch.tensor([h in heads and site.name == SITE for h in range(site.heads)])
            for site in find_sites(model)
        }
    )


def at_the_site(model, batches):
    """What W_O of the site gets, (positions, H, K)."""
    (module,) = [module for site, module in find_sites(model).items() if site.name == SITE]
    seen = []

    def keep(_, inputs):
        seen.append(inputs[0].flatten(0, 1).unflatten(-1, (HEADS, WIDTH)))

    handle = module.out_proj.register_forward_pre_hook(keep)
    with torch.no_grad():
        for batch in batches:
            model(*batch)
    handle.remove()
    return torch.cat(seen)


def test_each_closed_head_says_what_it_says_somewhere_else_and_the_others_stay(model, text):
    own = at_the_site(model, text)
    with resampled(model, closing(model, [0, 2]), text, forward, seed=1):
        found = at_the_site(model, text)
    torch.testing.assert_close(found[:, 1], own[:, 1])
    places = {}
    for head in (0, 2):
        same = (found[:, None, head] - own[None, :, head]).abs().amax(
            -1
        ) < 1e-5  # (position, where it is from)
        assert same.any(1).all()
        places[head] = same.double().argmax(1)
        assert len(places[head].unique()) > len(own) / 3  # drawn for every position
    assert not torch.equal(places[0], places[2])  # and for every head


def test_the_same_seed_gives_the_same_and_another_does_not(model, text):
    outputs = []
    for seed in (1, 1, 2):
        with resampled(model, closing(model, [0]), text, forward, seed=seed):
            outputs.append(model(*text[0]))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_afterwards_the_model_is_as_it_was(model, text):
    before = model(*text[0])
    with resampled(model, closing(model, [0, 1, 2]), text, forward):
        assert not torch.equal(model(*text[0]), before)
    assert torch.equal(model(*text[0]), before)


def test_padding_is_never_drawn(model, batch):
    _, target_in = batch
    own = at_the_site(model, [batch])[(target_in != 0).flatten()]
    with resampled(model, closing(model, [1]), [batch], forward, positions=lambda *_: target_in != 0):
        found = at_the_site(model, [batch])
    assert ((found[:, None, 1] - own[None, :, 1]).abs().amax(-1) < 1e-5).any(1).all()


def test_an_empty_text_is_refused(model):
    with pytest.raises(ValueError, match="no positions"), resampled(model, closing(model, [0]), [], forward):
        pass
