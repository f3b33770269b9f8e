"""What stands for a model's time where its sentences end one by one, and that models are timed alike."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from headgates.configs.settings import SearchConfig
from headgates.data.shortlist import Shortlist
from headgates.pruning import runtime_cost
from headgates.pruning.runtime_cost import (
    RuntimeCost,
    TimedBatch,
    TimedLines,
    TimedText,
    compared,
    on_other_lines,
)

BATCH = TimedBatch([[n] * (9 - n) for n in range(1, 9)], [10, 10, 6, 4, 4, 2, 2, 2])


def test_as_many_sentences_as_the_steps_make_are_decoded_to_the_longest_and_of_all_lengths():
    assert len(BATCH.decoded) * BATCH.longest == sum(BATCH.written)
    assert [len(each) for each in BATCH.decoded] == [8, 6, 4, 2]
    assert TimedBatch([[1]], [1]).longest == 2, "the shortest search"


def test_all_sentences_are_read_and_what_they_start_with_is_counted_once():
    searches = TimedText([BATCH], beam=1).searches
    assert searches["added"] == [(BATCH.sources, 2), (BATCH.decoded, 10)]
    assert searches["taken"] == [(BATCH.decoded, 2)]


class Searched:
    """Tells what it is searched for."""

    search = SearchConfig()

    def __init__(self, name, seen):
        self.name, self.seen = name, seen

    def search_to(self, sources, beam, tokens):
        self.seen.append((self.name, len(sources), tokens))


def cost_of(text: TimedText) -> RuntimeCost:
    cost = RuntimeCost.__new__(RuntimeCost)
    cost.text, cost.threads = text, 1
    return cost


def test_the_time_of_a_round_is_what_all_batches_add_less_what_they_take(monkeypatch):
    took = {"added": [5.0, 7.0], "taken": [1.0, 1.5]}
    monkeypatch.setattr(
        runtime_cost,
        "alternate",
        lambda blocks, **_: {(name, number): took[name.split()[1]] for name, number in blocks},
    )
    seconds = cost_of(TimedText([BATCH, BATCH], beam=1, rounds=2)).seconds({"this": Searched("this", [])})
    # of each batch a start and a whole search are added, and a start is taken off
    assert seconds == {"this": [4 * 5.0 - 2 * 1.0, 4 * 7.0 - 2 * 1.5]}


def test_each_batch_is_searched_by_both_models_before_the_next_one(monkeypatch):
    seen = []
    runs = {name: Searched(name, seen) for name in ("whole", "this")}
    cost_of(TimedText([BATCH, BATCH], beam=1)).seconds(runs)
    timed = seen[2:]  # after a start of each
    assert [name for name, *_ in timed] == ["whole", "this"] * (len(timed) // 2)
    assert timed[::2] == [("whole", *each) for _, *each in timed[1::2]]


def test_lines_that_are_timed_once_are_searched_once_by_each_model(translator):
    ids = [[4, 5], [], [6]]
    for once, rounds in ((True, 1), (False, runtime_cost.FREE_OPENINGS)):
        outputs, speed = compared(translator, translator, "torch", 1, TimedLines(ids, 2, 1, once))
        assert len(speed["measured"]["values"]) == rounds
        assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("by_length", "luck"), [(0.0, 0.3), (0.7, 0.1)])
def test_the_interval_on_other_lines_holds_what_another_text_measures_nineteen_times_of_twenty(
    by_length, luck
):
    """Of two texts of twelve batches, the longest first; where shorter ones gain more, both texts have
    them."""
    generator, held = np.random.default_rng(1), []
    lengths, gains = np.linspace(8, 2, 12), 1.2 + by_length * np.linspace(0, 1, 12)
    for _ in range(400):
        under = lengths * generator.normal(1, 0.05, (2, 12))
        over = under * gains * generator.normal(1, luck, (2, 12))
        low, high = on_other_lines(over[0].tolist(), under[0].tolist())
        held.append(low <= over[1].sum() / under[1].sum() <= high)
    assert 0.92 < np.mean(held) < 0.98
    assert on_other_lines([3.0, 6.0], [2.0, 4.0]) == pytest.approx((1.5, 1.5))
    assert on_other_lines([3.0], [2.0]) is None


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


def test_bf16_is_the_own_search_of_a_rounded_copy_and_is_timed_for_who_names_it(translator):
    with runtime_cost.exported_once(translator, "bf16", 1) as opened:
        rounded = opened()
        assert {each.dtype for each in rounded.model.parameters()} == {torch.bfloat16}
        for own, copied in zip(translator.model.parameters(), rounded.model.parameters(), strict=True):
            assert own.dtype == torch.float32
            assert torch.equal(own.bfloat16(), copied)
    assert "bf16" not in runtime_cost.runtimes_of(translator.model)


def test_what_a_free_search_takes_beside_its_steps_stays_in_a_model_of_half_the_steps(
    translator, monkeypatch
):
    took = {"whole added": 6.0, "whole taken": 2.0, "this added": 3.0, "this taken": 1.0, "free": 12.0}
    run = Searched("", [])
    run.search_batch = run.search_to
    monkeypatch.setattr(runtime_cost, "exported_once", lambda *how: nullcontext(lambda: run))
    monkeypatch.setattr(
        runtime_cost, "alternate", lambda blocks, **_: {(name, n): [took[name]] for name, n in blocks}
    )
    cost = RuntimeCost(translator, TimedText([BATCH], beam=1), "torch")
    assert cost.whole == pytest.approx(1000 * 12 / 8)
    assert cost(translator.model) == pytest.approx(1000 * (2 + 5) / 8)


def test_what_no_smaller_model_saves_is_measured_until_it_is_known_though_openings_differ(
    translator, monkeypatch
):
    draw = torch.Generator().manual_seed(1)

    def seconds(self, runs, free=False):
        return {"whole": [1.0], "free": [1 / (1 - 0.03 - 0.02 * float(torch.randn((), generator=draw)))]}

    monkeypatch.setattr(runtime_cost, "exported_once", lambda *how: nullcontext(lambda: None))
    monkeypatch.setattr(RuntimeCost, "seconds", seconds)
    text = TimedText([BATCH], beam=1)
    found = [RuntimeCost(translator, text, "torch").rest for _ in range(20)]
    assert sum(found) / 20 == pytest.approx(0.03, abs=0.003)
    assert max(abs(each - 0.03) for each in found) < 0.012  # of two openings two in five are further off


def test_a_model_is_timed_until_its_share_of_the_whole_is_known(translator, monkeypatch):
    draw = torch.Generator().manual_seed(1)

    def seconds(self, runs, free=False):
        noise = 1 + 0.016 * float(torch.randn((), generator=draw))
        return {"whole": [1.0], "free": [1.0], "this": [0.29 * noise]}

    monkeypatch.setattr(runtime_cost, "exported_once", lambda *how: nullcontext(lambda: None))
    monkeypatch.setattr(RuntimeCost, "seconds", seconds)
    cost = RuntimeCost(translator, TimedText([BATCH], beam=1), "torch")
    found = [cost(translator.model) / cost.whole for _ in range(20)]
    assert max(abs(each / 0.29 - 1) for each in found) < 0.015  # of two openings one in five is further off


def test_both_models_are_opened_anew_as_often_exported_once_and_the_base_is_a_copy(
    translator, make_translator, monkeypatch
):
    opened, written = [], []

    def exported_once(each, *how):
        written.append(each.model)
        return nullcontext(lambda: opened.append(each.model))

    monkeypatch.setattr(runtime_cost, "exported_once", exported_once)
    monkeypatch.setattr(
        RuntimeCost,
        "seconds",
        lambda self, runs, free=False: {name: [2.0] for name in [*runs, *["free"] * free]},
    )
    cost, smaller = (
        RuntimeCost(translator, TimedText([BATCH], beam=1), "torch"),
        make_translator(seed=1).model,
    )
    opened.clear()
    assert cost(smaller) == cost.whole
    whole = cost.copied.model
    assert opened == [smaller, whole, whole, smaller] * (runtime_cost.ENOUGH // 2)
    assert written == [whole, smaller]
    assert whole is not translator.model  # whose heads close while others are timed
