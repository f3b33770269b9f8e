"""The page of a speed report from given numbers: what it says, what it holds and what its figure shows."""

from headgates.report import drawing
from headgates.report.speed.page import draw, findings, page, pooled


def given(speedups: dict[str, dict[tuple[int, int], tuple[float, float, float]]]) -> dict:
    """A report with these ratios (lowest, median, highest) for each system, beam and batch."""
    systems, rows = {}, []
    for name, cells in speedups.items():
        kind, _, engine = name.partition("-")
        against = None if kind == "dense" else "-".join(["dense", engine]).rstrip("-")
        memory = {"interpreter": 10 << 20, "imports": 200 << 20}
        words = f"{kind}, {engine or 'PyTorch'}"
        systems[name] = {
            "words": words,
            "against": against,
            "parameters": 1234,
            "file_bytes": 4 << 20,
            "memory": memory,
        }
        for (beam, batch), (lowest, median, highest) in cells.items():
            ratio = {"median": median, "lowest": lowest, "highest": highest, "values": []}
            is_dense = kind == "dense"
            rows.append(
                {
                    "system": name,
                    "beam": beam,
                    "length": "short",
                    "batch": batch,
                    "sentences": 16,
                    "seconds": [1.0, 2.0 / median],
                }
                | {
                    "sentences_per_second": ratio,
                    "latency_ms": ratio,
                    "peak_memory": 300 << 20,
                    "same_translations": 1.0,
                }
                | {"speedup": None if is_dense else ratio, "saved_share": None if is_dense else 0.2}
                | {
                    "share_of_ideal": ratio if kind == "removed" else None,
                    "speedup_over_masked": ratio if name == "removed" else None,
                }
            )
    made_by = {
        "command": "python export.py",
        "commit": "abc",
        "date": "today",
        "device": "a CPU",
        "threads": 2,
        "versions": {"torch": "2"},
    }
    head = {
        "run": "toy",
        "corpus": "toy",
        "heads": {"total": 48, "closed": 13},
        "lengths": {"short": [2, 5, 333]},
        "left_out": {},
    }
    made = {**made_by, **head, "settings": {"repeats": 3}, "systems": systems, "rows": rows}
    return {**made, "findings": findings(made)}


SLOW = (0.9, 0.95, 0.99)
EVEN = (0.98, 1.01, 1.04)
FAST = (1.05, 1.10, 1.20)
CELLS = [(1, 1), (1, 16), (5, 1), (5, 16)]
REPORT = given(
    {
        "dense": dict.fromkeys(CELLS, EVEN),
        "masked": dict.fromkeys(CELLS, SLOW),
        "removed": dict(zip(CELLS, (EVEN, FAST, SLOW, FAST), strict=True)),
        "dense-ct2": dict.fromkeys(CELLS, EVEN),
        "removed-ct2": dict.fromkeys(CELLS, FAST),
    }
)


def test_it_says_in_how_many_settings_pruning_helps_and_in_how_many_it_does_not():
    saved, torch_words, ct2_words, masked_words = findings(REPORT)
    assert saved == (
        "13 of 48 attention heads are removed. That saves 20.0% to 20.0% of the multiply-adds; a model whose time went with these would be "
        "1.25 to 1.25 times as fast."
    )
    assert torch_words == (
        "removed, PyTorch: faster than dense, PyTorch in 2 of 4 settings and slower in 1; in the other 1 the rounds do not agree. "
        "It runs at 0.95 to 1.10 times (median 1.06) the speed of dense, PyTorch."
    )
    assert ct2_words.startswith(
        "removed, ct2: faster than dense, ct2 in 4 of 4 settings and slower in 0; in the other 0 the rounds"
    )
    assert masked_words.startswith(
        "masked, PyTorch: faster than dense, PyTorch in 0 of 4 settings and slower in 4;"
    )
    assert masked_words.endswith(
        "Removed, with the same outputs, runs at 0.95 to 1.10 times (median 1.06) its speed."
    )


def test_a_ratio_that_reaches_one_is_neither_faster_nor_slower():
    nothing = given({"dense": {(1, 1): EVEN}, "masked": {(1, 1): EVEN}, "removed": {(1, 1): (1.0, 1.1, 1.2)}})
    assert (
        "in 0 of 1 settings and slower in 0; in the other 1 the rounds do not agree" in findings(nothing)[1]
    )


def test_the_page_has_a_line_for_every_setting_and_system():
    text = page(REPORT, "speed.png")
    assert (
        text.count("| removed, PyTorch |") == 1 + 2 + 4
    )  # systems, a table of speeds for each beam, every number
    assert "| 5 | short | 16 | 1.25 | 1.10 (1.05 to 1.20) | 1.10 | 1.10 (1.05 to 1.20) | 1.10 |" in text
    assert "| removed, PyTorch | 1,234 | 4.0 | 300.0 | 200.0 | 100.0 |" in text
    assert "the interpreter alone: 10.0 MiB" in text
    assert "![Sentences per second against the batch size](speed.png)" in text


def test_lengths_are_pooled_by_time():
    rows = [
        {"system": "dense", "beam": 1, "batch": 4, "sentences": 32, "seconds": seconds}
        for seconds in ([1.0, 2.0], [3.0, 2.0])
    ]
    assert pooled(rows, "dense", 1, 4)["values"] == [16.0, 16.0]


def test_the_figure_has_a_panel_for_each_beam_and_a_line_for_each_system(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(
        drawing, "Figure", lambda *a, kept=drawing.Figure, **k: figures.append(kept(*a, **k)) or figures[-1]
    )
    draw(REPORT, tmp_path / "speed")
    panels = figures[0].axes
    assert [axes.get_title(loc="left") for axes in panels] == ["greedy", "beam 5"]
    for axes in panels:
        assert [line.get_label() for line in axes.lines] == [
            each["words"] for each in REPORT["systems"].values()
        ]
        assert [list(line.get_xdata()) for line in axes.lines] == [[1, 16]] * 5
    first = {name: (tmp_path / name).read_bytes() for name in ("speed.png", "headgates.report.speed.svg")}
    draw(REPORT, tmp_path / "speed")
    assert {name: (tmp_path / name).read_bytes() for name in first} == first
