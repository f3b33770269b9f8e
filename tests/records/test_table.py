"""Tables come back from their CSV as they went in."""

import pytest

from headgates.records.folder import RunFolder
from headgates.records.table import read_table, write_table

ROWS = [
    {
        "site": "decoder.0.cross",
        "head": 3,
        "bleu": 0.1 + 0.2,
        "p_value": 1e-17,
        "note": 'a, "b"\nc',
        "empty": None,
    },
    {"site": "decoder.1.cross", "head": 0, "bleu": -3.0, "p_value": 1.0, "note": "d", "empty": None},
]


def test_rows_come_back_to_the_last_digit_and_with_their_types(tmp_path):
    folder = RunFolder(tmp_path)
    write_table(folder, "ablation/x.csv", ROWS)
    back = read_table(folder, "ablation/x.csv")
    assert back == ROWS
    assert [type(value) for value in back[1].values()] == [str, int, float, float, str, type(None)]


def test_a_crash_while_writing_leaves_the_old_table(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    write_table(folder, "x.csv", ROWS)
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_table(folder, "x.csv", ROWS[:1])
    assert read_table(folder, "x.csv") == ROWS


@pytest.mark.parametrize("text", ["a,b\n1,2\n3\n", "a,b\n1,2\n3,4,5\n"])
def test_a_row_of_other_length_is_refused(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(
        ValueError, match=r"x\.csv is broken: expected 2 cells in row 2; --fresh makes it anew"
    ):
        read_table(RunFolder(tmp_path), "x.csv")


def test_a_column_that_a_file_of_others_lacks_is_named(tmp_path):
    write_table(RunFolder(tmp_path), "x.csv", ROWS)
    row = read_table(RunFolder(tmp_path), "x.csv")[0]
    assert (row["head"], row.get("absent")) == (3, None)
    with pytest.raises(ValueError, match=r"x\.csv has no column absent; --fresh makes it anew"):
        _ = row["absent"]


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*x\.csv"):
        read_table(RunFolder(tmp_path), "x.csv")
