"""The plan of compare.py: which points from which flags, each with the hash of the run that fit.py makes of
its command line."""

from collections import Counter
from dataclasses import replace

import pytest
import yaml

from headgates.configs import schema
from headgates.configs.cli import read
from headgates.configs.compare import CompareConfig
from headgates.configs.methods import METHODS
from headgates.configs.schema import FitConfig
from headgates.pruning.comparison import PROTOCOL, Comparison, points
from headgates.pruning.point import Point, Size
from headgates.pruning.protocol import make_runs
from headgates.records.folder import RunFolder


def planned(*words: object, heads=(9, 4)) -> list[Point]:
    sizes = [Size(count) for count in heads]
    return list(points(read(CompareConfig, ["runs/base", *map(str, words)]), sizes))


@pytest.fixture
def told(monkeypatch):
    """A method that is told a number of heads."""
    monkeypatch.setitem(METHODS, "first", replace(METHODS["l0"], name="first", controlled_by="heads"))
    monkeypatch.setattr(schema, "GATES", [*schema.GATES, "first"])
    config = read(
        CompareConfig, ["runs/base", "--methods", "importance,random", "--finetune", "0,3", "--seeds", "2"]
    )
    object.__setattr__(
        config, "methods", ["first", "importance", "random"]
    )  # --methods knows those of the first import
    return config


def test_without_training_only_what_is_drawn_has_seeds():
    found = planned("--methods", "importance,random,weight-norm", "--finetune", 0, "--seeds", 3)
    assert Counter((point.method, point.asked) for point in found) == {
        **{("importance", heads): 3 for heads in (9, 4)},
        **{("weight-norm", heads): 1 for heads in (9, 4)},
        **{("random", heads): 3 for heads in (9, 4)},
    }
    refitted = planned("--methods", "weight-norm:out", "--finetune", 0, "--seeds", 3)
    assert {point.seed for point in refitted} == {1, 2, 3}, "on a sample of its own"


def test_learned_methods_have_points_with_training_alone_and_no_closing(told):
    found = list(points(told, [Size(9), Size(4)]))
    assert [point.asked for point in found if point.method == "first"] == [9, 4, 9, 4]
    assert {point.epochs for point in found if point.method == "first"} == {3}
    assert len(found) == 2 * (2 * 3) + 2 * (2 + 2), "two seeds of three methods, and of two untrained"
    seeds = [point.seed for point in found]
    assert seeds == sorted(seeds), "a whole seed before the next"


def test_closings_and_epochs_multiply_and_lambdas_stand_for_themselves():
    words = [
        "--methods",
        "l0,importance,importance:out",
        "--finetune",
        "0,1,3",
        "--lambdas",
        "0.2,0.1",
        "--heads",
        9,
    ]
    found = planned(*words, heads=[9])
    assert [point.system for point in found if point.epochs == 0] == ["importance", "importance:out"]
    assert [point.system for point in found if point.epochs == 3] == [
        "importance:trained",
        "importance:out:trained",
        "l0",
        "l0",
    ]
    assert [(point.lam, point.asked) for point in found if point.learned] == [(0.1, None), (0.2, None)] * 2
    assert len(found) == 2 + 4 + 4


def test_the_words_of_a_point_are_what_fit_reads(unpriced):
    shared = read(FitConfig, unpriced)
    for point in planned(
        "--methods", "l0,importance,random", "--lambdas", "0.125", "--finetune", "0,5", "--seeds", 2
    ):
        config = read(FitConfig, [*unpriced, *point.words])
        assert config == point.config(shared)
        assert config.finetune.epochs == (point.epochs or shared.finetune.epochs)
        assert config.systems == ["base", *["base-continued"] * (point.epochs > 0), point.system]


# ---------------------------------------------------------------- on a base


@pytest.fixture
def compared(base):
    """compared(words...) is the comparison of a command on the base."""
    words = [str(base.path), "--methods", "importance", "--runs", str(base.path.parent)]
    return lambda *more: Comparison(read(CompareConfig, [*words, *map(str, more)]))


def test_the_hash_is_that_of_the_run_that_is_made_and_of_the_continued_base(compared, stages):
    comparison = compared("--heads", 4, "--finetune", "0,2")
    plain, trained = comparison.plan
    comparison.make_here(plain)
    assert stages == []
    run = next(RunFolder(path) for path in comparison.base.path.parent.glob("*-heads-4-s1"))
    assert run.run_hash() == plain.run_hash
    assert plain.needs == ()
    shared = replace(comparison.shared, runs=comparison.config.runs, unique=True)
    run = make_runs(trained.config(shared))
    assert run.run_hash() == trained.run_hash
    continued = next(RunFolder(path) for path in comparison.base.path.parent.glob("*-continued-s1"))
    assert (continued.run_hash(),) == trained.needs
    assert stages == ["importance:trained"], "the continued base of the first run is found"


def test_all_runs_share_what_the_base_was_made_with_unless_a_file_says_otherwise(compared, base, tmp_path):
    own, recorded = compared("--heads", 4).shared, base.config()
    assert (own.search.beam, own.finetune.lr, own.gates.lambda_warmup) == (2, 0.003, 2)
    assert (own.data, own.text.max_tokens) == (recorded["data"], recorded["text"]["max_tokens"])
    (tmp_path / "fit.yaml").write_text("finetune: {lr: 0.5}\nkinds: [cross]\n")
    changed = compared("--heads", 4, "--fit", tmp_path / "fit.yaml")
    assert (changed.shared.finetune.lr, changed.shared.finetune.warmup_steps, changed.shared.kinds) == (
        0.5,
        3,
        ["cross"],
    )
    assert compared().sizes == [Size(16), Size(10), Size(5), Size(3)], "of 21"
    assert compared("--kinds", "enc-self").shared.kinds == ["enc-self"]


def test_scores_are_computed_once_and_kept_with_the_base(compared, base, monkeypatch):
    comparison = compared("--heads", "9,4", "--finetune", 0)
    comparison.keep_scores(comparison.plan)
    assert list((base / "scores").glob("importance*.json"))
    monkeypatch.setattr("headgates.pruning.scores.compute_scores", lambda *_: pytest.fail("computed again"))
    for planned in comparison.plan:
        comparison.make_here(planned)


def test_other_settings_in_the_folder_are_refused_and_more_points_are_not(compared, tmp_path):
    folder = RunFolder(tmp_path / "compare-here")
    first = compared("--heads", 4)
    first.check_folder(folder)
    folder.write_text(PROTOCOL, first.protocol)
    compared("--heads", "9,4", "--seeds", 3, "--methods", "importance,random").check_folder(folder)
    (tmp_path / "fit.yaml").write_text("finetune: {lr: 0.5}\nsearch: {beam: 7}\n")
    other = (
        r"holds a comparison with other settings \(finetune.lr, search.beam\); give this one a --name "
        r"of its own"
    )
    with pytest.raises(ValueError, match=other):
        compared("--heads", 4, "--fit", tmp_path / "fit.yaml").check_folder(folder)
    content = yaml.safe_load(first.protocol) | {"base_hash": "another"}
    folder.write_text(PROTOCOL, yaml.safe_dump(content))
    with pytest.raises(ValueError, match=r"other settings \(base_hash\)"):
        first.check_folder(folder)


def test_what_cannot_start_is_refused(compared, base, tmp_path):
    with pytest.raises(ValueError, match="cannot keep 22 of 21 heads"):
        compared("--heads", "22,3")
    (gated,) = base.path.parent.glob("*-l0-*")
    with pytest.raises(ValueError, match="closes heads already; a comparison starts from its base"):
        Comparison(read(CompareConfig, [str(gated), "--methods", "importance"]))
    with pytest.raises(ValueError, match="--src is for models of other libraries"):
        compared("--src", "en")
    base.write_json("result.json", base.read_json("result.json") | {"finished": False})
    with pytest.raises(ValueError, match="is not finished"):
        compared("--heads", 4)
