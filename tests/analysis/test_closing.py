"""`close_to`: the lowest scores close, down to exactly the number asked for."""

import pytest
import torch

from headgates.analysis.closing import close_to
from headgates.gates import HeadMap, HeadSite, find_sites, remove
from headgates.gates.blocks import lowest_in_blocks
from tests.worlds.families import BY_NAME

ENC, DEC = HeadSite.at("enc-self", 0, 3), HeadSite.at("dec-self", 0, 4)
SCORES = HeadMap({ENC: [0.1, 0.9, 0.2], DEC: [0.5, 0.3, 0.8, 0.05]})


def test_a_budget_by_kind_closes_the_lowest_of_each_kind_and_leaves_the_others():
    closed = close_to(SCORES, {"dec-self": 1})
    assert closed.to_json() == {
        "encoder.0.enc-self": [False] * 3,
        "decoder.0.dec-self": [True, True, False, True],
    }


def test_a_floor_keeps_heads_of_each_site():
    assert close_to(SCORES, 0, at_least=1).to_json() == {
        "encoder.0.enc-self": [True, False, True],
        "decoder.0.dec-self": [True, True, False, True],
    }


@pytest.mark.parametrize("keep", [0, 3, 4, 8, 11, 12])
def test_of_neurons_the_lowest_blocks_of_all_sites_close(keep):
    generator = torch.Generator().manual_seed(keep)
    rows = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (7, 5)]
    scores = HeadMap({HeadSite.at("enc-ffn", i, len(row)): row for i, row in enumerate(rows)})
    closed = close_to(scores, keep, multiple=4).values()
    expected = lowest_in_blocks(rows, 12 - keep, [4, 4])  # tests/gates/test_blocks.py
    assert list(map(torch.Tensor.tolist, closed)) == list(map(torch.Tensor.tolist, expected))


def test_heads_of_one_key_head_close_together():
    model = BY_NAME["Llama"].model()  # two heads to a key head
    model.model.layers = model.model.layers[:1]
    (site,) = find_sites(model)
    closed = close_to(HeadMap({site: [0.0, 9.0, 1.0, 2.0, 0.0, 5.0]}), 4, model=model)
    assert closed.flat().tolist() == [False, False, True, True, False, False]
    remove(model, closed)
    assert model(input_ids=torch.ones(1, 3, dtype=torch.long)).logits.isfinite().all()


def test_neurons_are_not_grouped_by_the_key_heads_of_heads():
    model = BY_NAME["Llama"].model()  # two heads to a key head
    scores = {site: torch.arange(float(site.heads)) for site in find_sites(model, "all")}
    both, (neurons, *_) = HeadMap(scores), find_sites(model, "ffn")
    keep = {"dec-self": both.select(["dec-self"]).heads_total, "dec-ffn": 7}
    assert (
        close_to(both, keep, model=model).select(["dec-ffn"]).count()
        == sum(site.heads for site in scores if site.kind == "dec-ffn") - 7
    )
    alone = close_to(HeadMap({neurons: scores[neurons]}), 7, model=model)
    assert alone.flat().tolist() == [number < neurons.heads - 7 for number in range(neurons.heads)]
    with pytest.raises(ValueError, match="2 heads share a key head and go together, neurons go alone; give"):
        close_to(both, 7, model=model)


@pytest.mark.parametrize(
    ("keep", "message"),
    [(8, "cannot keep 8 of 7 heads; expected 0 to 7"), ({"cross": 1}, "no heads of kind 'cross'")],
)
def test_what_cannot_be_kept_is_refused(keep, message):
    with pytest.raises(ValueError, match=message):
        close_to(SCORES, keep)


def test_a_multiple_of_nothing_and_scores_of_nan_in_blocks_are_refused():
    with pytest.raises(ValueError, match="multiple: expected at least 1, got 0"):
        close_to(SCORES, 3, multiple=0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        close_to(HeadMap({ENC: [0.1, float("nan"), 0.2]}), 1, multiple=2)
