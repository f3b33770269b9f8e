"""Many ablations as one job, against one masked greedy search after the other."""

import pytest
import torch

from headgates.data.shortlist import Shortlist
from headgates.gates import HeadMap, HeadSite, detach, find_sites
from headgates.models import ablated_search, decoder_state
from headgates.models import draft_check as drafts
from headgates.models.ablated_search import ablated_translations
from headgates.models.translator import Translator
from tests.worlds.searched_model import masked, random_model, translator_of
from tests.worlds.unpruned_model import head_masks


def random_masks(translator: Translator, count: int, share: float) -> list[HeadMap]:
    torch.manual_seed(5)
    sites = find_sites(translator.model)
    return [HeadMap({site: torch.rand(site.heads) < share for site in sites}) for _ in range(count)]


def one_by_one(
    translator: Translator, lines: list[str], masks: list[HeadMap], beam: int = 1
) -> list[list[str]]:
    found = []
    for closed in masks:
        masked(translator.model, closed)
        found.append(translator.translate(lines, beam=beam))
        detach(translator.model)
    return found


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 0),
        ({"norm": "post", "positions": "learned", "max_positions": 13}, 0),
        ({"decoder_mixer": "ssru", "encoder_layers": 1}, 0),
        ({}, 5),
    ],
)
def test_every_translation_is_that_of_a_masked_greedy_search(make_model, lines, settings, least):
    translator = translator_of(random_model(make_model, **settings), least)
    sites = find_sites(translator.model)
    nothing, everything = (
        HeadMap({site: torch.full((site.heads,), shut) for site in sites}) for shut in (False, True)
    )
    masks = [nothing, everything, *head_masks(translator)[::2], *random_masks(translator, 3, 0.4)]
    found = ablated_translations(translator, lines, masks)
    expected = one_by_one(translator, lines, masks)
    assert [found.hypotheses(i) for i in range(len(masks))] == expected
    assert found.drafts == translator.translate(lines, beam=1)
    assert found.changed[0] == {}
    assert 0.1 < found.changed_share < 0.9  # else little was tried
    assert sum(map(len, found.changed)) <= found.decoded < len(masks) * len(lines)


def test_a_shortlist_changes_nothing(make_model, lines):
    translator = translator_of(random_model(make_model), 0)
    masks = random_masks(translator, 2, 0.4)
    short = translator.with_shortlist(Shortlist.of([[4]] * translator.model.source_vocab, first=0))
    assert short.translate(lines, beam=1) != translator.translate(lines, beam=1)
    found, whole = (ablated_translations(each, lines, masks) for each in (short, translator))
    assert (found.drafts, found.changed) == (whole.drafts, whole.changed)


SMALL = {
    (drafts, "LOGIT_POSITIONS"): 3,
    (ablated_search, "ROW_TOKENS"): {"cpu": 1},
    (ablated_search, "SEARCH_TOKENS"): {"cpu": 13},
    (decoder_state, "ROOM"): 1,
}


@pytest.mark.parametrize("limits", [SMALL, {(drafts, "TIE_MARGIN"): 1e6}], ids=["small", "no trust"])
def test_the_limits_of_memory_and_of_trust_change_the_work_and_not_the_translations(
    make_model, lines, monkeypatch, limits
):
    translator = translator_of(random_model(make_model))
    masks = head_masks(translator)[::3] + random_masks(translator, 2, 0.5)
    expected = one_by_one(translator, lines, masks)
    for (module, name), value in limits.items():
        monkeypatch.setattr(module, name, value)
    found = ablated_translations(translator, lines, masks)
    assert [found.hypotheses(i) for i in range(len(masks))] == expected
    if (drafts, "TIE_MARGIN") in limits:  # all but the empty line are searched again
        assert found.decoded == len(masks) * (len(lines) - 1)


def test_two_tokens_as_good_as_each_other_are_decoded_again(make_model, lines, monkeypatch):
    translator = translator_of(random_model(make_model))
    words = [word for line in translator.translate(lines, beam=1) for word in line.split()]
    best, twin = max(set(words), key=words.count), 4
    weight = translator.model.output.weight
    with torch.no_grad():
        weight[twin] = weight[int(best)]
        for (
            layer
        ) in translator.model.decoder.layers:  # the last head adds nothing: closing it changes no logit
            layer.cross_attention.out_proj.weight[:, -layer.cross_attention.head_width :] = 0.0
    mask = head_masks(translator)[-1]
    found = ablated_translations(translator, lines, [mask])
    tied = sum({best, str(twin)} & set(line.split()) != set() for line in found.drafts)
    assert 0 < tied <= found.decoded < len(lines)
    assert found.changed == [{}]


def test_wider_beams_are_searched_mask_by_mask(make_model, lines):
    translator = translator_of(random_model(make_model))
    masks = random_masks(translator, 1, 0.4)
    found = ablated_translations(translator, lines[:5], masks, beam=3)
    assert [found.hypotheses(0)] == one_by_one(translator, lines[:5], masks, beam=3)


def test_the_model_is_left_without_gates_and_in_its_mode_also_after_an_error(make_model, lines):
    translator = translator_of(random_model(make_model))
    translator.model.train()
    strange = HeadMap({HeadSite.at("cross", 7, 3): torch.tensor([True, False, False])})
    with pytest.raises(ValueError, match=r"no decoder\.7\.cross of 3 heads"):
        ablated_translations(translator, lines, [strange])
    assert translator.model.training
    assert not hasattr(translator.model, "head_gates")
    before = {name: value.clone() for name, value in translator.model.state_dict().items()}
    ablated_translations(translator, lines, head_masks(translator)[:2])
    assert translator.model.training
    assert all(torch.equal(value, before[name]) for name, value in translator.model.state_dict().items())
