"""A wish that a smaller model misses, and a model that forgot how to end, are said and not offered."""

import re
from dataclasses import replace

import pytest

from headgates.commands import prune
from headgates.configs.recipe import Recipe, Speed, Units
from headgates.pruning import make
from headgates.pruning.endless import endless_share
from headgates.records.folder import RunFolder
from headgates.records.row import ResultRow
from tests.worlds.made_runs import BASE, opened
from tests.worlds.runs import well


def test_outputs_count_that_fill_the_length_limit_where_the_bases_do_not(tiny_runs):
    source = opened(RunFolder(tiny_runs / BASE))
    lines = source.lines("test", 4)[0]
    pieces = source.translator.source_vocab.encode(lines)
    word = "Haus "  # one piece or more
    full = [word * (2 * len(each) + 10) for each in pieces]
    assert endless_share(source.predictor, lines, full, lines) == 1.0
    assert endless_share(source.predictor, lines, [*full[:3], lines[3]], [full[0], *lines[1:]]) == 0.5
    assert endless_share(source.predictor, lines, lines, lines) == 0.0


@pytest.mark.parametrize(("reached", "missed"), [(1.13, "1.13 of 1.5 times the speed"), (1.43, "")])
def test_a_speed_that_is_not_reached_is_missed_but_for_noise(reached, missed):
    recipe, speed = Recipe("plan", Speed(1.5)), {"measured": {"median": reached}}
    row = ResultRow("pruned", 4, 16, {}, {}, recipe=recipe, speed=speed)
    assert row.missed == missed
    assert replace(row, recipe=Recipe("plan", Units(4))).missed == ""


def test_a_model_that_does_not_end_is_marked_and_its_training_is_offered(tiny, called, monkeypatch):
    monkeypatch.setattr(make, "endless_share", lambda *_: 0.75)
    out = " ".join(
        well(called(prune)(tiny / BASE, "--by", "random", "--heads", "9", "--threads", "1")).split()
    )
    assert "missed (75% of its outputs run to the length limit); it lacks training" in out
    after = out.partition("next:")[2]
    assert re.search(r"prune\S* \S*none-s1 --by=random --heads=9 .*--epochs=3 --seed=1 ", after)
    assert "random-9-s1" not in after


def test_a_model_of_fewer_heads_leads_to_one_for_a_speed(tiny, called, as_if_learned):
    out = well(called(prune)(tiny / BASE, "--by", "random", "--heads", "9", "--threads", "1"))
    after = " ".join(out.partition("next:")[2].split())
    wish = r"prune\S* \S*none-s1 --speedup 2 --epochs 3 --threads=1 looks for one that is twice as fast"
    assert re.search(wish, after)
    assert "missed" not in out
