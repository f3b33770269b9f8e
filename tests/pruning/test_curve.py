"""Curves against heads zeroed by hand, interrupted and repeated; what is chosen from them; which heads close,
under which file names."""

import json
from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.importance import raw_importance
from headgates.analysis.significance import score
from headgates.configs.prune import PruneConfig
from headgates.gates import HeadMap
from headgates.pruning.curve import MaskScorer, choose_step, curve, curve_name, figure_name
from headgates.pruning.unpruned_model import UnprunedModel
from headgates.records.table import read_table
from tests.worlds.unpruned_model import outputs

PLAIN = PruneConfig("run")
CONFIG = replace(PLAIN, step=0.25)
ALL = CONFIG.kinds
HEADS = 15  # 1 encoder and 2 decoder layers of 3 heads a site


@pytest.fixture
def dense(make_dense) -> UnprunedModel:
    """The untrained model of make_dense."""
    return make_dense()


def draw(
    dense: UnprunedModel,
    order: str = "weight-norm",
    config: PruneConfig = CONFIG,
    kinds=None,
    scorer: MaskScorer | None = None,
):
    """(name, rows) of a curve, without a word."""
    return curve(order, dense, config, kinds=kinds or ALL, scorer=scorer or MaskScorer(dense))


# ---------------------------------------------------------------- the numbers


@pytest.mark.parametrize("made", ["make_dense", "labeller"])
def test_a_row_is_the_score_of_the_model_with_the_lowest_heads_zeroed(made, request):
    dense = request.getfixturevalue(made)()
    name, rows = draw(dense)
    assert read_table(dense.folder, f"curves/{name}.csv") == rows
    assert [row["heads_closed"] for row in rows] == [0, 4, 8, 12, 15]
    scores, main = HeadMap.load(dense.folder / "scores/weight-norm.json"), dense.task.metrics[0].name
    for row in rows:
        closed = scores.lowest(row["heads_closed"])
        for split in ("valid", "test"):
            lines, references = getattr(dense, split)
            found = score(outputs(dense, closed, lines), references, dense.task.metrics)
            for metric in found.metrics:
                assert row[f"{split}_{metric.name}"] == pytest.approx(found[metric.name], abs=1e-9)
        assert row["heads_open"] == HEADS - row["heads_closed"] == sum(row[kind] for kind in ALL)
        assert row["closed_share"] == row["heads_closed"] / row["heads_total"]
        assert row[f"valid_{main}_low"] <= row[f"valid_{main}"] <= row[f"valid_{main}_high"]
        lost = row[f"test_{main}"] - rows[0][f"test_{main}"]
        assert row[f"test_{main}_difference"] == pytest.approx(lost)
    assert rows[0][f"test_{main}_p_value"] == 1
    assert len({round(row[f"test_{main}"], 6) for row in rows}) > 2  # the model feels it


def test_the_curve_of_one_kind_closes_that_kind_alone_and_counts_its_share(dense):
    name, rows = draw(dense, kinds=["cross"])
    assert name == "weight-norm-step0.25-cross"
    assert [row["cross"] for row in rows] == [6, 4, 3, 1, 0]
    assert [row["heads_closed"] for row in rows] == [0, 2, 3, 5, 6]
    assert {(row["enc-self"], row["dec-self"]) for row in rows} == {(3, 6)}
    assert rows[-1]["closed_share"] == 1
    assert rows[-1]["heads_open"] == 9


def test_a_curve_ends_where_every_layer_has_the_heads_it_keeps(dense):
    _, rows = draw(dense, config=replace(CONFIG, at_least=2))
    assert [row["heads_closed"] for row in rows] == [0, 4, 5]
    order = HeadMap.load(dense.folder / "curves/weight-norm-step0.25-atleast2-order.json")
    assert all(int((row < 0).sum()) == 2 for row in order.values())


def test_random_has_a_curve_for_every_seed(dense):
    config = replace(CONFIG, random_seeds=2, seed=7, step=0.5)
    name, rows = draw(dense, "random", config)
    assert [(row["seed"], row["heads_closed"]) for row in rows] == [
        (seed, count) for seed in (7, 8) for count in (0, 8, 15)
    ]
    assert rows[0]["test_bleu"] == rows[3]["test_bleu"]
    seven, eight = (HeadMap.load(dense.folder / f"curves/{name}-order-seed{seed}.json") for seed in (7, 8))
    assert seven != eight
    assert (dense.folder / "scores/random-seed8.json").is_file()


def test_recomputed_scores_are_those_of_the_model_that_the_step_before_left(dense):
    config = replace(CONFIG, recompute=True, step=0.4)
    name, rows = draw(dense, "importance", config)
    model = dense.translator.model
    scores = raw_importance(model, dense.train_batches(), loss=dense.task.loss)
    closed = scores.map(lambda row: torch.zeros(len(row), dtype=torch.bool))
    for count in (6, 12, 15):
        again = raw_importance(model, dense.train_batches(), loss=dense.task.loss, closed=closed)
        again = again.l2_per_layer()
        flat = closed.flat()
        flat[again.closing_order(count, closed=closed)] = True
        closed = closed.like(flat)
        order = HeadMap.load(dense.folder / f"curves/{name}-order.json")
        assert order.map(lambda row, count=count: (row >= 0) & (row < count)) == closed
    assert [row["heads_closed"] for row in rows] == [0, 6, 12, 15]


# ---------------------------------------------------------------- the files


def test_the_folder_holds_settings_the_step_chosen_and_the_order(dense):
    name, rows = draw(dense)
    about = dense.folder.read_json(f"curves/{name}.json")
    assert (about["finished"], about["command"]) == (True, "python prune.py")
    assert about["chosen"] == choose_step(rows)
    key = about["cache_key"]
    assert (key["order"], key["step"], key["valid"]["sentences"]) == ("weight-norm", 0.25, 19)
    order = HeadMap.load(dense.folder / f"curves/{name}-order.json").flat()
    scores = HeadMap.load(dense.folder / "scores/weight-norm.json").flat()
    assert sorted(order.tolist()) == list(range(HEADS))
    assert scores[order.argsort()].tolist() == sorted(scores.tolist())


def interrupted(dense: UnprunedModel, order: str, config: PruneConfig, after: int) -> None:
    """Stop a curve in the middle of the translation of its step number `after`."""
    scorer = MaskScorer(dense)
    row, seen = scorer.row, []

    def stops(closed: HeadMap, seed: int | None):
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(closed)
        return row(closed, seed)

    scorer.row = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        draw(dense, order, config, scorer=scorer)


@pytest.mark.parametrize(
    ("order", "changes", "after"),
    [
        ("random", {"random_seeds": 2, "step": 0.5}, 4),
        ("importance", {"recompute": True}, 2),
    ],
)
def test_an_interrupted_curve_goes_on_where_it_stopped_and_ends_as_one_that_was_not(
    dense, order, changes, after
):
    config = replace(CONFIG, **changes)
    interrupted(dense, order, config, after)
    files = {path.name: path.read_bytes() for path in (dense.folder / "curves").iterdir()}
    (about,) = [
        json.loads(text) for name, text in files.items() if name.endswith(".json") and "order" not in name
    ]
    assert about["finished"] is False
    scorer, done = MaskScorer(dense), []
    row = scorer.row
    scorer.row = lambda closed, seed: done.append(closed) or row(closed, seed)  # type: ignore[method-assign]
    name, rows = draw(dense, order, config, scorer=scorer)
    assert len(done) == len(rows) - after
    continued = {path.name: path.read_bytes() for path in (dense.folder / "curves").iterdir()}
    assert draw(dense, order, replace(config, fresh=True)) == (name, rows)
    assert {path.name: path.read_bytes() for path in (dense.folder / "curves").iterdir()} == continued


def test_a_finished_curve_is_read_and_nothing_is_translated(dense, monkeypatch):
    expected = draw(dense)
    monkeypatch.setattr(dense.translator, "translate", None)
    assert draw(dense) == expected


@pytest.mark.parametrize("what", ["test", "weights", "search"])
def test_a_curve_of_another_text_model_or_search_is_not_gone_on_with(dense, what):
    name, rows = draw(dense)
    if what == "test":
        dense.test = (dense.test[0][1:], dense.test[1][1:])
    elif what == "weights":
        next(dense.translator.model.parameters()).data.add_(0.1)
    else:
        dense.translator.search = replace(dense.translator.search, length_penalty=0.3)
    with pytest.raises(
        ValueError, match=rf"{name}\.json was made with other {what} than this command; --fresh makes it anew"
    ):
        draw(dense)
    assert len(draw(dense, config=replace(CONFIG, fresh=True))[1]) == len(rows)


def test_going_on_where_the_model_translates_otherwise_is_refused(dense):
    interrupted(dense, "weight-norm", CONFIG, 2)
    path = dense.folder / "curves/weight-norm-step0.25.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[lines[0].split(",").index("valid_bleu")] = "12.5"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match="translates differently from when"):
        draw(dense)


# ---------------------------------------------------------------- the choice


def step(closed: int, difference: float, p: float, *, seed: int | None = None, test: float = -1.0) -> dict:
    row = {
        "seed": seed,
        "heads_closed": closed,
        "heads_open": 10 - closed,
        "heads_total": 10,
        "closed_share": closed / 10,
    }
    row |= {"valid_bleu": 30 + difference, "valid_bleu_difference": difference, "valid_bleu_p_value": p}
    row |= {"test_bleu": 31 + test, "test_bleu_difference": test, "test_bleu_p_value": 0.2, "test_chrf": 50.0}
    return row | {"test_bleu_difference_low": test - 1, "test_bleu_difference_high": test + 1}


def test_the_most_heads_without_a_significant_loss_on_validation_are_chosen():
    rows = [
        step(0, 0, 1),
        step(2, -0.2, 0.3),
        step(4, -0.5, 0.005),
        step(5, -0.6, 0.01, test=-2.0),
        step(8, -3, 0.001),
    ]
    chosen = choose_step(rows)
    assert (
        chosen["heads_closed"],
        chosen["heads_open"],
        chosen["test_bleu"],
        chosen["test_bleu_difference"],
    ) == (5, 5, 29, -2)
    assert (chosen["test_bleu_difference_low"], chosen["test_bleu_difference_high"]) == (-3, -1)


def test_of_several_seeds_every_one_must_be_without_loss_and_the_mean_is_reported():
    one = [step(0, 0, 1, seed=1), step(2, -0.1, 0.5, seed=1, test=-2.0), step(4, -0.1, 0.5, seed=1)]
    two = [step(0, 0, 1, seed=2), step(2, -0.2, 0.5, seed=2, test=-1.0), step(4, -2, 0.001, seed=2)]
    chosen = choose_step([*one, *two])
    assert chosen["heads_closed"] == 2
    assert chosen["test_bleu_difference"] == -1.5
    assert (chosen["test_bleu_difference_low"], chosen["test_bleu_difference_high"]) == (-3, 0)


# ---------------------------------------------------------------- names of files


@pytest.mark.parametrize(
    ("order", "changes", "name"),
    [
        ("importance", {"sentences": 100, "recompute": True}, "importance-n100-recompute"),
        ("importance", {"normalise": "none"}, "importance-raw"),
        ("ablation", {"normalise": "l2", "beam": 5}, "ablation-l2-beam5"),
        ("obs", {"sentences": 100, "recompute": True}, "obs-n100"),
        ("ablation", {"valid_sentences": 7, "test_sentences": 11}, "ablation-v7-t11"),
        ("random", {"random_seeds": 3, "seed": 2, "step": 0.25}, "random-3seeds-from2-step0.25"),
        ("ablation", {"kinds": ["cross", "enc-self"]}, "ablation-enc-self+cross"),
    ],
)
def test_other_settings_are_in_the_name(order, changes, name):
    config = replace(PLAIN, by=["importance"], **changes)
    assert curve_name(order, config, config.kinds) == name
    assert curve_name(order, PLAIN, PLAIN.kinds) == order


def test_the_figure_of_several_curves_names_them_all():
    config = replace(PLAIN, by=["importance", "random"], beam=5)
    assert figure_name(config) == "importance-beam5+random-beam5"
    assert figure_name(replace(config, each_kind=True)) == "importance-beam5+random-beam5-by-kind"
    assert figure_name(replace(config, each_kind=True, kinds=["cross", "enc-self"])).endswith(
        "-by-kind-enc-self+cross"
    )
