"""Ablations of a model whose special tokens have other ids are those of the model with ours."""

import pytest
import torch

from headgates.gates import HeadMap, find_sites
from headgates.models.ablated_search import ablated_translations
from tests.renumbered import LINES, OTHERWISE, twins


@pytest.mark.parametrize("specials", OTHERWISE.values(), ids=OTHERWISE)
def test_ablations_are_the_same(specials):
    ours, theirs = twins(specials)
    generator = torch.Generator().manual_seed(5)
    masks = [
        HeadMap({site: torch.rand(site.heads, generator=generator) < 0.3 for site in find_sites(ours.model)})
        for _ in range(13)
    ]
    expected, found = (ablated_translations(translator, LINES, masks) for translator in (ours, theirs))
    assert (found.drafts, found.changed) == (expected.drafts, expected.changed)
    assert found.decoded == expected.decoded > 0
    assert any(expected.changed)
