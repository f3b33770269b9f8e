"""What a sweep shows, on a terminal and in a log file."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from headgates.workbench.sweeps.live import Show, clock
from headgates.workbench.sweeps.state import Record, SweepState

RESULT = {"heads_open": 13, "heads_total": 31, "bleu": 27.345, "bleu_ci95": [26.01, 28.98]}


def state(*records):
    return SweepState(Path("runs/sweep-own"), 1, records)


def record(number, status, **more):
    return Record(number, {"lambda": 0.0123456, "seed": number, "systems": "base"}, status, **more)


RECORDS = [
    record(1, "done", run="toy-l0", seconds=125.0, result=RESULT),
    record(2, "running"),
    record(3, "failed", error="no [space] left", seconds=7.0),
    record(4, "skipped", same_as=1),
    record(5, "waiting"),
]


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=150, height=40, color_system=None)


def test_in_a_log_file_every_start_and_end_is_one_line(capsys):
    with Show(state(*RECORDS), ["lambda", "seed"], Console(file=io.StringIO(), width=140)) as show:
        show.started(RECORDS[1])
        show.look({2: ("epoch 1 of 3", 11.0)})
        show.ended(RECORDS[0])
        show.ended(RECORDS[2])
    assert capsys.readouterr().out.splitlines() == [
        "trial 2 of 5 (lambda 0.01235, seed 2): started (runs/sweep-own/logs/002.log)",
        "trial 1 of 5 (lambda 0.01235, seed 1): done in 2:05: 13/31 heads, BLEU 27.34 (26.0 to 29.0) (toy-l0)",
        "trial 3 of 5 (lambda 0.01235, seed 3): failed after 0:07: no [space] left (log: runs/sweep-own/logs/003.log)",
    ]


def test_the_table_shows_every_trial_with_its_state_and_numbers(terminal):
    show = Show(state(*RECORDS), ["lambda", "seed"], terminal)
    show.look({2: ("gates: epoch 1 of 3 [bold]", 11.0)})
    show.summary()
    text = terminal.file.getvalue()
    assert "runs/sweep-own: 1 waiting, 1 running, 1 done, 1 failed, 1 skipped" in text
    rows = {
        cells[0]: cells
        for line in text.splitlines()
        if (cells := [cell.strip() for cell in line.strip("│ ").split("│")])[0].isdigit()
    }
    assert rows["1"] == ["1", "0.01235", "1", "done", "toy-l0", "13/31", "27.34 (26.0 to 29.0)", "2:05"]
    assert rows["2"][3:] == ["running", "gates: epoch 1 of 3 [bold]", "", "", "0:11"]
    assert rows["3"][3:5] == ["failed", "no [space] left"]
    assert rows["4"][3:5] == ["skipped", "the same as trial 1"]
    assert rows["5"][3] == "waiting"


def test_on_a_terminal_the_table_is_live_and_a_failure_stays_above_it(terminal):
    with Show(state(*RECORDS), ["lambda", "seed"], terminal) as show:
        show.started(RECORDS[1])
        show.ended(RECORDS[2])
        show.look({2: ("epoch 1 of 3", 11.0)})
        show.live.refresh()
    text = terminal.file.getvalue()
    assert "trial 3 of 5 (lambda 0.01235, seed 3): failed after 0:07: no [space] left" in text
    assert "epoch 1 of 3" in text
    assert "started (" not in text


def test_of_more_trials_than_the_terminal_has_lines_the_running_ones_are_seen():
    console = Console(file=io.StringIO(), force_terminal=True, width=150, height=12, color_system=None)
    many = [record(n, "done", result=RESULT) for n in range(1, 30)] + [
        record(n, "waiting") for n in range(32, 60)
    ]
    show = Show(state(*many, record(30, "failed"), record(31, "running")), ["seed"], console)
    console.print(show.table_that_fits())
    first = [line.strip("│ ").split(" ")[0] for line in console.file.getvalue().splitlines()]
    assert [int(cell) for cell in first if cell.isdigit()] == [30, 31, 32, 33, 34]


def test_a_clock_has_hours_where_it_needs_them():
    assert [clock(seconds) for seconds in (7.4, 125, 3723, 0)] == ["0:07", "2:05", "1:02:03", ""]
