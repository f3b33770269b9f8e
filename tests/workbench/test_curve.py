"""Curves against heads zeroed by hand, interrupted and repeated; what is chosen from them; which heads close,
under which file names."""

import json
from dataclasses import replace

import pytest
import torch

from headgates.analysis.scores.importance import importance
from headgates.analysis.scores.weight_norm import weight_norm
from headgates.analysis.significance import score
from headgates.configs.prune import PruneConfig
from headgates.configs.scores import SCORES
from headgates.gates import HeadMap, HeadSite, find_sites
from headgates.workbench import curve as curves
from headgates.workbench.curve import MaskScorer, choose_step, curve, curve_name, figure_name
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.scores import ranked
from headgates.workbench.table import read_table

PLAIN = PruneConfig("run")
CONFIG = replace(PLAIN, step=0.25)
ALL = CONFIG.kinds
HEADS = 15  # 1 encoder and 2 decoder layers of 3 heads a site
SPLIT = ["bleu", "bleu_low", "bleu_high", "bleu_difference", "bleu_difference_low", "bleu_difference_high"]
SPLIT += ["bleu_p_value", "bleu_p_sacrebleu", "chrf", "chrf_low", "chrf_high"]


@pytest.fixture
def dense(make_dense) -> DenseModel:
    """The untrained model of make_dense."""
    return make_dense()


def draw(
    dense: DenseModel,
    order: str = "weight-norm",
    config: PruneConfig = CONFIG,
    kinds=None,
    scorer: MaskScorer | None = None,
):
    """(name, rows) of a curve, without a word."""
    return curve(
        order, dense, config, kinds=kinds or ALL, scorer=scorer or MaskScorer(dense), report=lambda text: None
    )


def without(dense: DenseModel, closed: HeadMap, lines: list[str]) -> list[str]:
    """Translations with these heads' columns of W_O at zero: the slow way, without gates."""
    model = dense.translator.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for site, attention in find_sites(model).items():
            if site in closed:
                attention.out_proj.weight.unflatten(1, (site.heads, -1))[:, closed[site]] = 0
    hypotheses = dense.translator.translate(lines)
    model.load_state_dict(before)
    return hypotheses


# ---------------------------------------------------------------- the numbers


def test_a_row_is_the_bleu_and_chrf_of_the_model_with_the_lowest_heads_zeroed(dense):
    _, rows = draw(dense)
    scores = HeadMap.load(dense.folder / "scores/weight-norm.json")
    for row in rows:
        closed = scores.lowest(row["heads_closed"])
        for split, (sources, references) in (("valid", dense.valid), ("test", dense.test)):
            found = score(without(dense, closed, sources), references)
            assert row[f"{split}_bleu"] == pytest.approx(found["bleu"], abs=1e-9)
            assert row[f"{split}_chrf"] == pytest.approx(found["chrf"], abs=1e-9)
    assert len({round(row["test_bleu"], 6) for row in rows}) > 2  # the model feels it


def test_rows_go_from_no_head_to_all_heads_with_every_column(dense):
    _, rows = draw(dense)
    assert [row["heads_closed"] for row in rows] == [0, 4, 8, 12, 15]
    first, last = rows[0], rows[-1]
    assert list(first) == [
        *(
            "seed",
            "closed_share",
            "heads_closed",
            "heads_open",
            "heads_total",
            "enc-self",
            "dec-self",
            "cross",
        ),
        *(f"{split}_{name}" for split in ("valid", "test") for name in SPLIT),
    ]
    assert (first["closed_share"], first["heads_open"], first["heads_total"]) == (0, HEADS, HEADS)
    assert (first["test_bleu_difference"], first["test_bleu_p_value"]) == (0, 1)
    assert (last["closed_share"], last["heads_open"], last["enc-self"], last["dec-self"], last["cross"]) == (
        1,
        0,
        0,
        0,
        0,
    )
    for row in rows:
        assert (
            row["heads_open"]
            == row["enc-self"] + row["dec-self"] + row["cross"]
            == HEADS - row["heads_closed"]
        )
        assert row["valid_bleu_low"] <= row["valid_bleu"] <= row["valid_bleu_high"]
        assert row["test_bleu_difference"] == pytest.approx(row["test_bleu"] - first["test_bleu"])


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
    scores = importance(model, dense.train_batches(), loss=dense.source.task.loss)
    closed = scores.map(lambda row: torch.zeros(len(row), dtype=torch.bool))
    for count in (6, 12, 15):
        again = importance(
            model, dense.train_batches(), loss=dense.source.task.loss, closed=closed
        ).l2_per_layer()
        flat = closed.flat()
        flat[again.closing_order(count, closed=closed)] = True
        closed = closed.like(flat)
        order = HeadMap.load(dense.folder / f"curves/{name}-order.json")
        assert order.map(lambda row, count=count: (row >= 0) & (row < count)) == closed
    assert [row["heads_closed"] for row in rows] == [0, 6, 12, 15]


# ---------------------------------------------------------------- the files


def test_the_folder_holds_rows_settings_order_and_scores(dense):
    name, rows = draw(dense)
    assert read_table(dense.folder, f"curves/{name}.csv") == rows
    about = dense.folder.read_json(f"curves/{name}.json")
    assert about["finished"] is True
    assert about["command"] == "python prune.py"
    assert about["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert about["chosen"] == choose_step(rows)
    assert (
        about["cache_key"]["order"],
        about["cache_key"]["step"],
        about["cache_key"]["valid"]["sentences"],
    ) == ("weight-norm", 0.25, 19)
    order = HeadMap.load(dense.folder / f"curves/{name}-order.json").flat()
    scores = HeadMap.load(dense.folder / "scores/weight-norm.json").flat()
    assert sorted(order.tolist()) == list(range(HEADS))
    assert scores[order.argsort()].tolist() == sorted(scores.tolist())
    assert not list(dense.folder.path.rglob("*.part"))


def interrupted(dense: DenseModel, order: str, config: PruneConfig, after: int) -> None:
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
        ("weight-norm", {}, 0),
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


def test_orders_of_one_command_share_what_they_translate_and_score(dense, monkeypatch):
    scorer, calls = MaskScorer(dense), []
    monkeypatch.setattr(
        "headgates.analysis.scores.weight_norm.weight_norm",
        lambda *given: calls.append(1) or weight_norm(*given),
    )
    for kind in ALL:
        draw(dense, kinds=[kind], scorer=scorer)
    draw(dense, "random", replace(CONFIG, step=1.0, random_seeds=3), scorer=scorer)
    assert len(calls) == 1
    closed_in_all = [key for key in scorer.scored_masks if sum(key) == HEADS]
    assert len(closed_in_all) == 1
    assert (
        len(scorer.scored_masks) == 1 + 3 * 4 - 1 + 1
    )  # none; four steps of each kind, of which enc-self has three; all


@pytest.mark.parametrize("what", ["test", "weights", "search", "significance_test"])
def test_a_curve_of_another_text_model_search_or_test_is_not_gone_on_with(dense, what, monkeypatch):
    name, rows = draw(dense)
    if what == "test":
        dense.test = (dense.test[0][1:], dense.test[1][1:])
    elif what == "significance_test":
        monkeypatch.setattr(curves, "TEST", "of one tail")
    elif what == "weights":
        next(dense.translator.model.parameters()).data.add_(0.1)
    else:
        dense.translator.search = replace(dense.translator.search, length_penalty=0.3)
    with pytest.raises(
        ValueError, match=rf"{name}\.json was made with other {what} than this command; --fresh makes it anew"
    ):
        draw(dense)
    _, new = draw(dense, config=replace(CONFIG, fresh=True))
    assert [row["heads_closed"] for row in new] == [row["heads_closed"] for row in rows]


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


def test_a_significant_gain_is_no_loss():
    assert choose_step([step(0, 0, 1), step(2, 1.5, 0.001), step(4, -1, 0.001)])["heads_closed"] == 2


def test_of_several_seeds_every_one_must_be_without_loss_and_the_mean_is_reported():
    one = [step(0, 0, 1, seed=1), step(2, -0.1, 0.5, seed=1, test=-2.0), step(4, -0.1, 0.5, seed=1)]
    two = [step(0, 0, 1, seed=2), step(2, -0.2, 0.5, seed=2, test=-1.0), step(4, -2, 0.001, seed=2)]
    chosen = choose_step([*one, *two])
    assert chosen["heads_closed"] == 2
    assert chosen["test_bleu_difference"] == -1.5
    assert (chosen["test_bleu_difference_low"], chosen["test_bleu_difference_high"]) == (-3, 0)


# ---------------------------------------------------------------- which heads close

ENC, DEC, CROSS = HeadSite.at("enc-self", 0, 5), HeadSite.at("dec-self", 0, 3), HeadSite.at("cross", 1, 3)
GIVEN = HeadMap({ENC: [5, 1, 9, 3, 7], DEC: [2, 8, 2], CROSS: [-1, 4, 11]})
OPEN = GIVEN.map(lambda row: torch.zeros(len(row), dtype=torch.bool))


def shut(places: list[int]) -> HeadMap:
    return OPEN.like(torch.tensor([place in places for place in range(11)]))


def test_the_lowest_are_closed_first_and_equal_scores_in_the_order_of_sites_and_heads():
    assert GIVEN.closing_order(5, closed=OPEN) == [8, 1, 5, 7, 3]
    assert GIVEN.closing_order(0, closed=OPEN) == []


def test_closed_heads_count_and_are_not_chosen_again():
    assert GIVEN.closing_order(5, closed=shut([8, 2])) == [1, 5, 7]
    assert GIVEN.closing_order(2, closed=shut([8, 2])) == []


def test_every_step_keeps_what_the_one_before_closed():
    everything = GIVEN.closing_order(11, closed=OPEN)
    assert sorted(everything) == list(range(11))
    for count in range(12):
        assert GIVEN.closing_order(count, closed=OPEN) == everything[:count]


def test_no_layer_falls_below_the_heads_that_stay_open():
    chosen = GIVEN.closing_order(11, closed=OPEN, at_least=2)
    assert [int((~shut(chosen))[site].sum()) for site in GIVEN] == [2, 2, 2]
    assert chosen == [8, 1, 5, 3, 0]
    assert GIVEN.closing_order(11, closed=shut(chosen), at_least=2) == []
    assert GIVEN.closing_order(11, closed=OPEN, at_least=5) == []


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        HeadMap({DEC: [1.0, float("nan"), 2.0]}).closing_order(1, closed=HeadMap({DEC: [False] * 3}))


def test_reverse_closes_last_what_gradient_closes_first():
    scores = HeadMap({ENC: [5, 1, 9, 3, 7], DEC: [2, 8, 6], CROSS: [13, 4, 11]})
    first = ranked("importance", scores).closing_order(11, closed=OPEN)
    assert ranked("reverse", scores).closing_order(11, closed=OPEN) == first[::-1]


# ---------------------------------------------------------------- names of files


def test_the_usual_settings_leave_the_plain_name():
    for order in SCORES:
        assert curve_name(order, PLAIN, PLAIN.kinds) == order
        assert figure_name(replace(PLAIN, by=[order])) == order


@pytest.mark.parametrize(
    ("order", "changes", "name"),
    [
        ("importance", {"abs": "token"}, "importance-token"),
        ("importance", {"sentences": 100, "recompute": True}, "importance-n100-recompute"),
        ("importance", {"normalise": "none"}, "importance-raw"),
        ("importance", {"normalise": "l2"}, "importance"),
        ("ablation", {"normalise": "l2", "beam": 5}, "ablation-l2-beam5"),
        ("ablation", {"abs": "token", "recompute": True}, "ablation"),
        ("obs", {"sentences": 100, "recompute": True}, "obs-n100"),
        ("ablation", {"valid_sentences": 7, "test_sentences": 11}, "ablation-v7-t11"),
        ("random", {"random_seeds": 3, "seed": 2, "step": 0.25}, "random-3seeds-from2-step0.25"),
        ("weight-norm", {"at_least": 1}, "weight-norm-atleast1"),
        ("importance", {"kinds": ["cross"]}, "importance-cross"),
        ("ablation", {"kinds": ["cross", "enc-self"]}, "ablation-enc-self+cross"),
    ],
)
def test_other_settings_are_in_the_name(order, changes, name):
    config = replace(PLAIN, by=["importance"], **changes)
    assert curve_name(order, config, config.kinds) == name


def test_the_figure_of_several_curves_names_them_all():
    config = replace(PLAIN, by=["importance", "random"], beam=5)
    assert figure_name(config) == "importance-beam5+random-beam5"
    assert figure_name(replace(config, each_kind=True)) == "importance-beam5+random-beam5-by-kind"
    assert figure_name(replace(config, each_kind=True, kinds=["cross", "enc-self"])).endswith(
        "-by-kind-enc-self+cross"
    )
