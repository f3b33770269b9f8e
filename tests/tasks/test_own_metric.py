"""A metric of the user's own: its numbers, and what is said of a function that is none."""

import sys
from statistics import fmean

import pytest

from headgates.analysis.significance import compare, resample_counts, score, score_changed
from headgates.tasks import task_of
from headgates.tasks.own_metric import check_metrics, own_metric
from tests.worlds import own_metrics
from tests.worlds.own_metrics import points

SOURCES = ["a b c", "d e", "f", "g h i j", "a b c"]
REFERENCES = ["x y z", "x y", "x", "w x y z", "x y z"]
OUTPUTS = ["x y", "", "x", "z y q w", "x y"]
HERE = "tests.worlds.own_metrics"


def scored(outputs):
    return score(outputs, REFERENCES, [own_metric(f"{HERE}:shared_words")], SOURCES)


def test_the_score_is_no_mean_over_lines_with_their_sources():
    expected = fmean(points(*line) for line in zip(SOURCES, OUTPUTS, REFERENCES, strict=True))
    assert scored(OUTPUTS).main == pytest.approx(expected)
    changed = [*OUTPUTS[:3], "w x y z", "x"]
    again = score_changed(scored(OUTPUTS), OUTPUTS, dict(enumerate(changed)), REFERENCES, SOURCES)
    assert again.main == scored(changed).main != expected


def test_an_interval_is_not_that_of_paired_resamples_of_the_lines():
    counts, other = resample_counts(5, 400), ["x", "x", "", "w", "x y z"]
    found = compare(scored(OUTPUTS), scored(other), counts)
    (name,) = scored(OUTPUTS).values
    ours, theirs = ([*map(points, SOURCES, outputs, REFERENCES)] for outputs in (OUTPUTS, other))
    loop = sorted(
        sum(n * (a - b) for n, a, b in zip(row, ours, theirs, strict=True)) / 5 for row in counts.tolist()
    )
    assert found[f"{name}_difference"] == pytest.approx(fmean(ours) - fmean(theirs))
    assert found[f"{name}_difference_ci95"] == pytest.approx([loop[10], loop[-11]])


def test_a_slow_function_gets_a_line_twice():
    metric = own_metric(f"{HERE}:shared_words")
    own_metrics.SEEN.clear()
    for outputs in (OUTPUTS, OUTPUTS, [*OUTPUTS[:4], "z"]):
        score(outputs, REFERENCES, [metric], SOURCES)
    assert len(own_metrics.SEEN) == 5 == len(set(own_metrics.SEEN))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "it raised ZeroDivisionError: division by zero on 2 lines"),
        ("one_number", "got 0.5"),
        ("too_few", "got 1 for 2 lines"),
        ("words", "got ['good', 'good']"),
        ("nothing", "got None"),
        ("not_a_number", "got nan for the output ''"),
        ("enormous", "got 1e+308 for the output"),
        ("leaves", "it raised SystemExit: 3 on 2 lines"),
    ],
)
def test_a_function_that_fails_gets_a_traceback_or_runs_on(name, said):
    with pytest.raises(ValueError, match="to return a finite number for each line") as error:
        check_metrics([own_metric(f"{HERE}:{name}")], SOURCES, REFERENCES)
    assert str(error.value).startswith(f"--metrics {HERE}:{name}: expected f(sources, outputs, references)")
    assert said in str(error.value)


def test_what_is_no_function_is_taken_for_one(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import os\nos.environ['no such variable']\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for path, said in {
        "comet": "expected module:function",
        f"{HERE}:no_such": "is not there",
        "no_such_module:comet": "is not there",
        f"{HERE}:NO_FUNCTION": "got 3",
        "broken_module:f": "broken_module cannot be imported: KeyError",
    }.items():
        with pytest.raises(ValueError, match="--metrics") as error:
            own_metric(path)
        assert said in str(error.value)


def test_opening_a_run_of_others_runs_the_code_that_its_settings_name(tmp_path, monkeypatch):
    (tmp_path / "their_metric.py").write_text("raise SystemExit('this ran')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    own = task_of({"task": "translation", "tgt": "de", "metrics": ["their_metric:f"]}).metrics
    assert [metric.name for metric in own] == ["bleu", "chrf"]
