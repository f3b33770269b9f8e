"""The tables of results/README.md whose rows are points of comparisons, or steps of a curve, are those of the
files in results/."""

import re

from tests.worlds.recorded import MAIN, RESULTS, STUDENT_CURVE, compared_points, read
from tests.worlds.recorded_text import ORDERS, REFITS, encoder_points, trained_points


def test_the_table_without_training_has_the_points_of_the_comparison():
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
        if line.count("|") == 11 and re.match(r"\| [a-z-]+ \| [\d.]+ \|", line)
    ]
    points, closings = compared_points(f"compare-{MAIN}"), ("", *(f"-{refit}" for refit in REFITS))
    assert lines == [
        [
            order,
            *(
                f"{points[order + closing, heads]['bleu']:.2f}"
                for heads in (36, 18, 9)
                for closing in closings
            ),
        ]
        for order in ORDERS
    ]


def test_the_table_of_the_encoder_alone_has_the_points_of_the_comparison():
    points, text = encoder_points(), (RESULTS / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\| [a-z0-9-]+ \| -[\d.]+ \(", line)]
    for name, *cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        form = "{difference:+.2f} ({difference_low:+.2f} to {difference_high:+.2f})"
        rows = [points[name, heads] for heads in (12, 5, 2)]
        assert cells == [cell for row in rows for cell in (form.format(**row), f"{row['chrf']:.2f}")]
    assert len(lines) == 2


def test_the_tables_with_training_have_the_points_of_their_comparisons():
    after_stream, after_values, text = (
        trained_points(),
        trained_points("values"),
        (RESULTS / "README.md").read_text(encoding="utf-8"),
    )
    lines = [line for line in text.splitlines() if re.match(r"\| [a-z0-9-]+ \| [\d.]+ \([\d.]+ to", line)]
    assert len(lines) == 6
    for number, (name, *cells) in enumerate(
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines
    ):
        points = after_stream if number < 3 else after_values
        rows = [points[name, heads] for heads in (36, 18, 9)]
        assert cells == [
            cell
            for row in rows
            for cell in ("{value:.2f} ({lowest:.2f} to {highest:.2f})".format(**row), f"{row['chrf']:.2f}")
        ]


def test_the_student_s_table_has_the_rows_of_its_curve():
    lines = [
        line
        for line in (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"\| \d+ of \d+ \|", line)
    ]
    expected = []
    for row in read(f"{STUDENT_CURVE}.csv")[1:]:
        lost, low, high = (
            f"{float(row[f'test_bleu_difference{end}']):+.2f}" for end in ("", "_low", "_high")
        )
        cells = [
            f"{row['heads_closed']} of 48",
            f"{float(row['test_bleu']):.2f}",
            f"{lost} ({low} to {high})",
        ]
        expected.append(f"| {' | '.join([*cells, format(float(row['test_bleu_p_value']), '.3f')])} |")
    assert lines == expected
