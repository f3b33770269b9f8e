"""The planted truth is one: the heads that are said to be needed are, no decoy stands in for any, and an
answer is judged by that."""

import re
import sys
from argparse import Namespace
from itertools import product

import pytest
import torch

from benchmarks.benchmark import Answer, run
from benchmarks.planted import (
    LEFT_OUT_SCORES,
    WORLDS,
    choose_by_score,
    measured_choice,
    selector_table,
    selectors,
    world_rows,
)
from benchmarks.planted_world import BACKED_UP, DECOYS, planted_world
from headgates.analysis.closing import close_to
from headgates.gates import HeadMap


@pytest.fixture(scope="module")
def world():
    made = planted_world(1)
    made.model.requires_grad_(False)
    return made


def only(world, *heads: int) -> HeadMap:
    """True, closed, but for these heads."""
    like = next(iter(world.carriers.values()))
    closed = torch.ones(like.heads_total, dtype=torch.bool)
    closed[list(heads)] = False
    return like.like(closed)


def heads_of(head_map: HeadMap) -> list[int]:
    return head_map.flat().nonzero().flatten().tolist()


@pytest.mark.parametrize("relations", [3, 4, 6])
def test_one_head_of_each_relation_solves_the_task_whichever_of_a_backed_up_one(relations):
    world = planted_world(1, relations=relations)
    choices = list(product(*map(heads_of, world.carriers.values())))
    assert len(choices) == 2 ** len(BACKED_UP)
    for heads in choices:
        closed = only(world, *heads)
        assert closed.count() == 24 - relations
        assert world.solved(closed)
        assert world.found(closed)


@pytest.mark.parametrize("relations", [3, 4, 6])
def test_without_a_relations_heads_no_set_of_decoys_solves_the_task(relations):
    world = planted_world(1, relations=relations)
    able = heads_of(world.decoys["partial"]) + heads_of(world.decoys["harmful"])
    assert len(able) == 5
    for carriers in world.carriers.values():
        for shut in product([False, True], repeat=len(able)):
            gone = carriers.flat().clone()
            gone[[head for head, closed in zip(able, shut, strict=True) if closed]] = True
            assert not world.solved(carriers.like(gone))


def test_the_task_is_solved_with_all_heads_beside_each_kind_of_decoys():
    for kinds in WORLDS.values():
        world = planted_world(3, kinds)
        assert world.solved(only(world, *range(24)))
        assert list(world.decoys) == [kind for kind in DECOYS if kind in kinds]
        carriers = sum(heads.count() for heads in world.carriers.values())
        assert carriers == 4 + len(BACKED_UP) * ("backup" in kinds)


def test_two_heads_of_one_relation_are_not_the_heads_that_are_needed(world):
    places = {relation: heads_of(heads) for relation, heads in world.carriers.items()}
    twice = only(world, *places["before"], *places["same"], places["echo"][0])
    assert twice.count() == 20
    assert not world.found(twice)
    assert not world.found(only(world, *range(24)))


def test_seeds_plant_elsewhere_and_equal_seeds_alike():
    truths = [planted_world(seed, ()).carriers for seed in (5, 5, 6)]
    assert truths[0] == truths[1]
    assert truths[0] != truths[2]


def test_a_score_of_the_users_own_is_measured_by_the_truth(world, monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from headgates.gates import HeadMap, find_sites\n"
        "def alike(model, batches):\n"
        "    return HeadMap({site: torch.zeros(site.heads) for site in find_sites(model)})\n"
        "def wrong(model, batches):\n"
        "    return [0.0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert measured_choice(world, choose_by_score("mine:alike", world, 1))["kept"] > 4
    with pytest.raises(ValueError, match=r"mine:wrong gave a list; expected a HeadMap .* encoder.0.enc-self"):
        choose_by_score("mine:wrong", world, 1)
    with pytest.raises(ValueError, match="'mine:absent' is not there"):
        choose_by_score("mine:absent", world, 1)
    truth = sum(heads.flat().double() for heads in world.carriers.values())
    order = world.decoys["backup"].like(truth - world.decoys["backup"].flat() / 2)
    assert measured_choice(world, lambda keep: close_to(order, keep)) == {"found": True, "kept": 4}


@pytest.mark.parametrize(
    ("given", "says"), [("model", "got mine:own(model)"), ("model, batches, source", "source are of a run")]
)
def test_a_score_that_cannot_be_called_is_one_line_before_anything_is_measured(
    monkeypatch, tmp_path, given, says
):
    (tmp_path / "mine.py").write_text(f"def own({given}): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(ValueError, match=re.escape(says)):
        selectors("mine:own")


def test_a_line_is_recorded_only_when_asked(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for words, lines in ([], 0), (["--record"], 1), (["--record", "results/tried.jsonl"], 2):
        monkeypatch.setattr(sys, "argv", ["tried.py", "--threads", "1", *words])
        assert run("tried", "how many?", "", [], lambda options: Answer({}, ["a"], [[1]])) == 0
        assert sum(len(file.read_text().splitlines()) for file in tmp_path.rglob("*.jsonl")) == lines


def test_swaps_on_the_exact_loss_find_the_heads_beside_backups_where_the_exact_effects_do_not(world):
    """`backup` is one of the decoys here: an order alone keeps two heads of one relation."""
    exact, swapped = (selectors(None)[name](name, world, 1)(world.needed) for name in ("loss", "loss-swap"))
    assert not world.found(exact)
    assert world.found(swapped)
    assert list(selectors("loss-swap")) == ["loss-swap"]
    with pytest.raises(ValueError, match="--score los: expected module:name, or one of importance"):
        selectors("los")


def test_on_new_plantings_swaps_by_the_loss_find_the_heads_and_single_effects_keep_one_too_many():
    for seed in (41, 42):
        planted = planted_world(seed, relations=3)
        planted.model.requires_grad_(False)
        exact, swapped = (selectors(None)[name](name, planted, seed) for name in ("loss", "loss-swap"))
        assert planted.found(swapped(3))
        assert not planted.found(exact(3))
        assert measured_choice(planted, exact)["kept"] in (4, 5), "both heads of a backup stay"


def test_every_score_is_asked_but_those_that_need_a_run():
    assert LEFT_OUT_SCORES == ["ablation"]
    assert {"importance", "obs-swap", "facilitation", "l0", "subset"} < selectors(None).keys()
    own = "headgates.analysis.scores.weight_norm:weight_norm"
    asked = Namespace(score=own, seeds=1, relations=4, decoys=[*WORLDS])
    rows = list(world_rows(asked))
    assert [row["decoys"] for row in rows] == list(WORLDS)
    (other,) = world_rows(Namespace(**{**vars(asked), "relations": 6, "decoys": ["all"]}))
    header, ((name, *cells),) = selector_table([other, *rows])
    assert header == ["selector", *WORLDS, "all, 6 needed", "heads too many until solved"]
    assert name == own
    assert all(cell in ("0/1", "1/1") for cell in cells[:-1])
    extra = sorted([rows[-1]["kept"] - 4, other["kept"] - 6])
    assert 0 <= extra[0] <= extra[1] <= 20
    assert cells[-1] == f"{sum(extra) / 2:g} ({extra[0]} to {extra[1]})"


def test_a_task_of_two_or_seven_relations_is_refused():
    for relations in (2, 7):
        with pytest.raises(ValueError, match=f"expected 3 to 6 relations, got {relations}"):
            planted_world(1, relations=relations)
