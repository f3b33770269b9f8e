"""The tables of the pages are those that benchmarks/records.py makes from the files in results/."""

import pytest

from benchmarks.records import PAGES, ROOT, filled_page


@pytest.mark.parametrize("page", PAGES)
def test_a_page_s_tables_are_those_of_their_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert filled_page(text) == text, "run python -m benchmarks.records"


def test_a_changed_digit_is_made_right_and_the_prose_is_left_alone() -> None:
    page = "before 99.9\n<!-- table curve -->\n| 99.9 |\n<!-- end -->\nafter 99.9\n"
    assert filled_page(page).count("99.9") == 2
    assert filled_page(filled_page(page)) == filled_page(page)


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(ValueError, match="no table 'absent'"):
        filled_page("<!-- table absent -->\n<!-- end -->\n")
