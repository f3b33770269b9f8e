"""What stands for a model's time where its sentences end one by one, and that models are timed alike."""

from contextlib import nullcontext

import pytest

from headgates.data.shortlist import Shortlist
from headgates.pruning import runtime_cost
from headgates.pruning.runtime_cost import RuntimeCost, TimedBatch, TimedText

BATCH = TimedBatch([[n] * (9 - n) for n in range(1, 9)], [10, 10, 6, 4, 4, 2, 2, 2])


def test_as_many_sentences_as_the_steps_make_are_decoded_to_the_longest_and_of_all_lengths():
    assert len(BATCH.decoded) * BATCH.longest == sum(BATCH.written)
    assert [len(each) for each in BATCH.decoded] == [8, 6, 4, 2]
    assert TimedBatch([[1]], [1]).longest == 2, "the shortest search"


def test_all_sentences_are_read_and_what_they_start_with_is_counted_once():
    searches = TimedText([BATCH], beam=1).searches
    assert searches["added"] == [(BATCH.sources, 2), (BATCH.decoded, 10)]
    assert searches["taken"] == [(BATCH.decoded, 2)]


def test_the_time_of_a_pass_is_what_is_added_less_what_is_taken(monkeypatch):
    found = {"this added": [5.0], "this taken": [1.0]}
    monkeypatch.setattr(runtime_cost, "alternate", lambda blocks, **_: {name: found[name] for name in blocks})
    cost = RuntimeCost.__new__(RuntimeCost)
    cost.text, cost.threads = TimedText([BATCH], beam=1, repeats=2), 1
    assert cost.seconds({"this": None}) == {"this": pytest.approx(2.0)}


def test_decoding_computes_as_many_rows_as_the_whole_batch_has_candidates(translator):
    cost = RuntimeCost.__new__(RuntimeCost)
    model, cost.copied = translator.model, translator
    sources = [[n, n + 1] for n in range(4, 12)]
    cost.text = TimedText([TimedBatch(sources, [10, 10, 6, 4, 4, 2, 2, 2])], beam=1)
    shortlist = Shortlist.of([[i, i + 20] for i in range(model.source_vocab - 20)] + [[4]] * 20)
    timed = translator.with_shortlist(cost.timed_list(shortlist))
    (batch,), listed = cost.text.batches, translator.with_shortlist(shortlist)
    before, whole = len(listed.candidates(batch.decoded)), len(listed.candidates(sources))
    assert before < whole == len(timed.candidates(batch.decoded))


def test_what_a_free_search_takes_beside_its_steps_stays_in_a_model_of_half_the_steps(
    translator, monkeypatch
):
    took = {"whole added": 12.0, "whole taken": 2.0, "this added": 6.0, "this taken": 1.0, "free": 12.0}
    monkeypatch.setattr(runtime_cost, "exported_once", lambda *how: nullcontext(lambda: None))
    monkeypatch.setattr(
        runtime_cost, "alternate", lambda blocks, **_: {name: [took[name]] for name in blocks}
    )
    cost = RuntimeCost(translator, TimedText([BATCH], beam=1), "torch")
    assert cost.whole == pytest.approx(1000 * 12 / 8)
    assert cost(translator.model) == pytest.approx(1000 * (2 + 5) / 8)


def test_both_models_are_opened_anew_as_often_exported_once_and_the_base_is_a_copy(
    translator, make_translator, monkeypatch
):
    opened, written = [], []

    def exported_once(each, *how):
        written.append(each.model)
        return nullcontext(lambda: opened.append(each.model))

    monkeypatch.setattr(runtime_cost, "exported_once", exported_once)
    monkeypatch.setattr(runtime_cost, "alternate", lambda blocks, **_: {name: [1.0] for name in blocks})
    monkeypatch.setattr(
        RuntimeCost, "seconds", lambda self, runs, free=False: dict.fromkeys([*runs, *["free"] * free], 2.0)
    )
    cost, smaller = (
        RuntimeCost(translator, TimedText([BATCH], beam=1), "torch"),
        make_translator(seed=1).model,
    )
    opened.clear()
    assert cost(smaller) == cost.whole
    whole = cost.copied.model
    assert opened == [smaller, whole, whole, smaller] * (runtime_cost.OPENINGS // 2)
    assert written == [whole, smaller]
    assert whole is not translator.model  # whose heads close while others are timed
