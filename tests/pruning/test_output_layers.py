"""What a shortlist of the output layer costs and loses, as a plan takes it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headgates.data.batch import Batch, pad
from headgates.data.shortlist import Shortlist
from headgates.pruning import output_layers
from headgates.pruning.output_layers import OutputLayers, list_costs, list_losses
from headgates.pruning.runtime_cost import TimedBatch, TimedText

SOURCES, TARGETS = [[5, 6, 7, 8], [9, 5], [11]], [[6, 9, 12], [7, 8, 10, 11, 13], [5]]


def lists_of(translator, count: int) -> Shortlist:
    """For source piece i the `count` target pieces from i on."""
    model = translator.model
    rows = [(np.arange(i, i + count) % model.target_vocab) for i in range(model.source_vocab)]
    return Shortlist.of(rows)


def batch_of(model) -> Batch:
    source = pad(SOURCES, model.source_specials, end=True)
    target = pad(TARGETS, model.target_specials, begin=True, end=True)
    tokens = sum(len(each) + 1 for each in TARGETS)
    return Batch(source, target[:, :-1], target[:, 1:], torch.arange(3), tokens, tokens)


def test_what_a_list_loses_is_what_the_best_listed_piece_is_less_probable_sentence_by_sentence(translator):
    model, short, long = translator.model, lists_of(translator, 2), lists_of(translator, 8)
    specials = model.target_specials
    listed = [translator.with_shortlist(each) for each in (short, long)]
    found, expected = list_losses(listed, [batch_of(model)]), [0.0, 0.0]
    never = {specials.padding, specials.beginning}
    for source, target in zip(SOURCES, TARGETS, strict=True):
        ids = torch.tensor([[specials.beginning, *target]])
        with torch.no_grad():
            log_p = model(torch.tensor([[*source, model.source_specials.end]]), ids)[0].log_softmax(-1)
        for place, each in enumerate((short, long)):
            own = {
                *each.candidates([*source, model.source_specials.end]).tolist(),
                specials.end,
                specials.unknown,
            }
            for row in log_p.tolist():
                best = max(p for piece, p in enumerate(row) if piece not in never)
                expected[place] += best - max(row[piece] for piece in own - never)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found[0] > found[1] > 0


def test_a_list_that_is_not_timed_costs_what_its_rows_cost_between_those_that_are(translator, monkeypatch):
    vocab, counts = translator.model.target_vocab, (1, 3, 6, 10, 20, 47)
    lists = {str(count): lists_of(translator, count) for count in counts}
    timed = []

    class Timer:
        """Whole, 8; with a list 1, and 1 more for each hundred rows."""

        text, whole = TimedText([TimedBatch(SOURCES, [4, 3, 2])], beam=1), 8.0

        def __call__(self, model, shortlist):
            timed.append(shortlist)
            return 1 + rows_of(shortlist) / 100

    def rows_of(shortlist: Shortlist) -> int:
        return len(translator.with_shortlist(shortlist).candidates(SOURCES))

    links = SimpleNamespace(source=SimpleNamespace(translator=translator), shortlist=lists.get)
    monkeypatch.setattr(
        output_layers,
        "list_losses",
        lambda listed, batches: [float(len(each.shortlist.ids)) for each in listed],
    )
    costs = list_costs(links, lists, Timer(), [], share=0.9)["lists"]
    assert [*costs] == [name for name in lists if rows_of(lists[name]) <= 0.9 * vocab]
    assert "47" not in costs
    assert len(timed) == 2 < len(costs)
    assert [each["time"] for each in costs.values()] == pytest.approx(
        [(1 + rows_of(lists[name]) / 100) / 8 for name in costs]
    )
    assert [each["loss"] for each in costs.values()] == [float(len(lists[name].ids)) for name in costs]
    layers = OutputLayers(translator, links, costs)
    assert [each.cost for each in layers.options(16.0)] == pytest.approx(
        [2 + rows_of(lists[name]) / 50 - 16 for name in costs]
    )
    assert [layers.translator(place).shortlist for place in range(len(costs))] == [
        lists[name] for name in costs
    ]
