"""A real model whose head is known by others: the library finds it, by what it looks at and by what is lost
without it."""

from typing import Any

import pytest
import torch

from benchmarks import atom_mapping
from benchmarks.atom_mapping import (
    KNOWN,
    MASKED,
    RELATION,
    batches,
    reactions,
    right_atoms,
    unshared,
    vocabulary,
)
from headgates.analysis.scores.exact_effects import exact_effects, loss_rises
from headgates.analysis.without_heads import closing
from headgates.gates import HeadSite

LAYER, HEAD = KNOWN


@pytest.fixture(scope="module")
def known() -> Any:
    """The model, the ids of its tokens, and sixteen reactions."""
    place = atom_mapping.folder()
    if place is None:
        pytest.skip("needs the model of rxnmapper: pip install --no-deps rxnmapper==0.4.3")
    return atom_mapping.load(place), vocabulary(place), reactions(16)


def test_a_made_reaction_maps_an_atom_to_another_element():
    for each in reactions(200):
        arrow = each.words.index(">>")
        product = {token for token in range(arrow + 1, len(each.words)) if each.words[token][0].isalpha()}
        assert {*each.came_from} == product  # every atom of the product was an atom
        for token, place in each.came_from.items():
            assert each.words[token] == each.words[place]
            assert place < arrow < token
        assert len({*each.came_from.values()}) == len(product)


def test_the_head_known_for_atom_mapping_is_not_first_by_effect_and_role(known):
    model, ids, made = known
    right = right_atoms(model, made, ids).accuracies()[f"{RELATION} dependent->head"]
    effects = exact_effects(model, [*batches(made, ids, masked=MASKED)])
    (share,), (effect,) = right.values(), effects.values()  # one layer, twelve runs: one site
    assert share.argmax() == effect.argmax() == HEAD
    assert share[HEAD] > 0.8 > 0.1 > share.sum() - share[HEAD]
    assert effect[HEAD] > 2 * effect[torch.arange(8) != HEAD].max()


def test_a_head_of_one_run_is_mixed_up_with_those_of_other_runs(known):
    model, ids, made = known
    own = unshared(model)
    masked = [*batches(made, ids, masked=MASKED)]
    with torch.no_grad():
        assert torch.equal(own(**masked[0]).logits, model(**masked[0]).logits)
    right = right_atoms(own, made, ids).accuracies()[f"{RELATION} dependent->head"]
    first, read = (right[HeadSite.at("enc-self", layer, 8)] for layer in (0, LAYER))
    assert read.argmax() == HEAD
    assert read[HEAD] > 0.8
    assert first[HEAD] < 0.3  # the same weights, where nothing is known of an atom's surroundings yet
    late = [HeadSite.at("enc-self", layer, 8) for layer in range(5, 12)]
    effects = loss_rises(own, masked, [closing([(site, head) for site in late]) for head in range(8)])
    assert effects.argmax() == HEAD
    assert effects[HEAD] > 2 * effects[torch.arange(8) != HEAD].max()
