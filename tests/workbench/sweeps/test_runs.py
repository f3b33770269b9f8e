"""What a sweep takes from the folder of a finished run."""

import pytest

from headgates.workbench.folder import RunFolder
from headgates.workbench.sweeps.runs import own_row

ROW = {
    "system": "l0",
    "heads_open": 3,
    "heads_total": 8,
    "heads_by_kind": {"cross": 3},
    "bleu": 21.5,
    "bleu_ci95": [20.5, 22.5],
    "chrf": 41.5,
}


def test_the_row_is_that_of_the_runs_own_system(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_json("result.json", {"system": "l0", "rows": [ROW | {"system": "base", "bleu": 30.5}, ROW]})
    assert own_row(folder) == ROW


@pytest.mark.parametrize(
    "result",
    [
        {"system": "l0"},
        {"system": "l0", "rows": []},
        {"system": "l0", "rows": [ROW | {"system": "base"}]},
        {"system": "l0", "rows": [ROW, ROW]},
        {"system": "l0", "rows": [{"system": "l0"}]},
        {"rows": 3},
    ],
    ids=str,
)
def test_a_result_of_another_shape_is_one_line(tmp_path, result):
    folder = RunFolder(tmp_path / "run")
    folder.write_json("result.json", result)
    with pytest.raises(ValueError, match=r"result\.json.*--fresh") as error:
        own_row(folder)
    assert "\n" not in str(error.value)
