"""What a speed report measures: settings, and which sentences each has."""

from dataclasses import replace

import pytest

from headgates.configs.export import ExportConfig
from headgates.report.speed.report import Plan, report_cells, thirds
from headgates.report.speed.systems import evenly

CONFIG = ExportConfig(source="", report="speed", batch_sizes=[16, 32], beams=[1, 2], repeats=2)


def test_thirds_hold_every_sentence_that_is_not_empty_by_its_length():
    parts = thirds([5, 0, 1, 9, 3, 3, 0, 7])
    assert parts == {"short": [2, 4], "middle": [5, 0], "long": [7, 3]}


def test_too_few_sentences_for_thirds_are_an_error():
    with pytest.raises(ValueError, match="at least 3 test sentences that are not empty, got 2"):
        thirds([4, 0, 4])


def test_sentences_are_spread_over_their_part_and_repeat_where_there_are_few():
    assert evenly(list(range(100)), 4) == [0, 25, 50, 75]
    assert evenly([7, 8, 9], 6) == [7, 7, 8, 8, 9, 9]


def test_every_setting_has_some_tens_of_sentences_in_whole_batches():
    plan = Plan([1, 4, 16, 64], [], [1, 5], 5)
    planned = report_cells(plan, [f"sentence {i}" for i in range(300)], thirds(range(1, 301)))
    assert len(planned) == 24
    assert {each.batch: len(each.sentences) for each in planned} == {1: 16, 4: 32, 16: 32, 64: 64}
    assert {len(batch) for each in planned for batch in each.batches} == {1, 4, 16, 64}
    assert len({(each.beam, each.length, each.batch) for each in planned}) == 24


def test_quick_is_one_length_two_batch_sizes_and_two_rounds():
    plan = Plan.from_config(replace(CONFIG, quick=True, repeats=7))
    assert (plan.batch_sizes, plan.beams, plan.repeats) == ([1, 16], [1, 2], 2)
    assert list(plan.sentences_by_length(range(1, 301))) == ["middle"]


def test_a_length_that_is_given_is_the_sentences_nearest_to_it():
    plan = Plan.from_config(replace(CONFIG, lengths=[200, 10]))
    parts = plan.sentences_by_length([0, *range(1, 301)])
    assert list(parts) == ["10 pieces", "200 pieces"]
    assert parts["10 pieces"] == list(range(1, 65))
    assert parts["200 pieces"] == list(range(168, 232))
