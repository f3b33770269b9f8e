"""Text that does not fit its settings: one clear error, and nothing left or lost in the folder of runs."""

import pytest

from headgates.data import DataError
from headgates.pruning.base import base_run


@pytest.mark.parametrize(
    "flags",
    [("--text.vocab-size", "7"), ("--text.max-length", "1")],
    ids=["tiny vocabulary", "all pairs too long"],
)
def test_text_that_does_not_fit_its_settings_leaves_no_half_written_run(lab_of, tmp_path, flags):
    lab = lab_of(*flags)
    with pytest.raises(DataError):
        base_run(lab)
    lab.close()
    assert not list((tmp_path / "runs").glob("*"))


def test_bad_text_leaves_the_other_files_of_its_folder_alone(lab_of, tmp_path):
    mine = tmp_path / "runs/mine/thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.write_text("years")
    lab = lab_of("--text.vocab-size", "7", "--name", "mine")
    with pytest.raises(DataError):
        base_run(lab)
    lab.close()
    assert [path.name for path in mine.parent.iterdir()] == ["thesis.tex"]
