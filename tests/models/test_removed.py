"""A model without its closed heads searches, is saved and comes back as the masked model would: caches have
each layer's own heads."""

import warnings

import pytest
import torch

from headgates.gates import HeadMap, HeadSite, find_sites, heads_left
from headgates.models.ablated_search import ablated_translations
from headgates.models.checkpoint import architecture, build, load_model, save_model
from headgates.models.search import best_hypotheses
from tests.worlds.searched_model import BEAM, GREEDY, best_ids, masked, random_model, translator_of, without
from tests.worlds.unpruned_model import head_masks

HEADS = 3  # of the small model, which has 2 + 2 layers
SITES = [HeadSite.at(kind, layer, HEADS) for kind in ("enc-self", "dec-self", "cross") for layer in range(2)]
UNEVEN = HeadMap(
    dict(
        zip(
            SITES,
            torch.tensor(
                [[1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.bool
            ),
            strict=True,
        )
    )
)
ALL = UNEVEN.map(torch.ones_like)


@pytest.mark.parametrize("closed", [UNEVEN, ALL], ids=["uneven", "all"])
@pytest.mark.parametrize("changes", [{}, {"norm": "post"}, {"positions": "learned", "max_positions": 13}])
def test_greedy_and_beam_search_find_what_they_find_under_the_mask(make_model, source, closed, changes):
    model = random_model(make_model, **changes)
    smaller = without(model, closed)
    masked(model, closed)
    expected, found = (best_hypotheses(each, source, BEAM) for each in (model, smaller))
    for best, other in zip(expected, found, strict=True):
        assert [one.ids for one in other] == [one.ids for one in best]
        assert [one.log_prob for one in other] == pytest.approx([one.log_prob for one in best], abs=1e-3)
    assert best_ids(smaller, source, GREEDY) == best_ids(model, source, GREEDY)


def test_ablations_of_a_model_without_some_heads_are_those_of_the_unpruned_one(make_model, lines):
    model = random_model(make_model)
    smaller = translator_of(without(model, UNEVEN))
    every = HeadMap({site: [True] * site.heads for site in find_sites(smaller.model) if site.heads})
    further, both = [*head_masks(smaller), every], []
    for closed in further:
        rows = {site: row.clone() for site, row in UNEVEN.items()}
        for site, row in closed.items():
            own = rows[next(each for each in SITES if each.name == site.name)]
            own[~own] = row
        both.append(HeadMap(rows))
    found = ablated_translations(smaller, lines, further)
    expected = ablated_translations(translator_of(model), lines, both)
    for i in range(len(both)):
        assert found.hypotheses(i) == expected.hypotheses(i)
    assert 0.1 < found.changed_share < 1


def test_attention_weights_of_a_layer_without_heads_are_there_and_empty(make_model, batch):
    weights: dict = {}
    without(make_model(), UNEVEN)(*batch, weights)
    assert {name: tuple(seen.shape) for name, seen in weights.items()} == {
        "encoder.0.enc-self": (3, 2, 7, 7),
        "encoder.1.enc-self": (3, 3, 7, 7),
        "decoder.0.dec-self": (3, 0, 5, 5),
        "decoder.1.dec-self": (3, 1, 5, 5),
        "decoder.0.cross": (3, 2, 5, 7),
        "decoder.1.cross": (3, 0, 5, 7),
    }


@pytest.mark.parametrize("closed", [UNEVEN, ALL], ids=["uneven", "all"])
def test_it_comes_back_from_its_file_without_a_flag_and_without_a_warning(
    make_model, batch, tmp_path, closed
):
    smaller = without(make_model(), closed)
    save_model(tmp_path / "best.pt", smaller)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_model(tmp_path / "best.pt")
    assert torch.equal(loaded(*batch), smaller(*batch))
    assert (
        loaded.heads
        == smaller.heads
        == {site.name: int((~row).sum()) for site, row in closed.items() if row.any()}
    )
    assert heads_left(loaded) == ~closed
    assert "heads_left" not in architecture(make_model())
    for name, parameter in loaded.named_parameters():
        assert parameter.requires_grad == (parameter.numel() > 0) == smaller.get_parameter(name).requires_grad


def test_an_architecture_whose_heads_do_not_add_up_is_refused(make_model):
    description = architecture(without(make_model(), UNEVEN))
    description["heads_left"]["decoder.0.cross"] = [True, True, True]
    with pytest.raises(ValueError, match=r"decoder\.0\.cross has 2 heads, but 3 of 3 are said to be left"):
        build(description)
