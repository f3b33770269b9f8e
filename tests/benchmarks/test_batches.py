"""The curves of a smaller model over batches and beams. No timing is a test."""

from argparse import Namespace
from pathlib import Path

from benchmarks import batches

EXAMPLE = Path(__file__).parents[2] / "examples/toy_run"
SPEED = {
    "measured": {"median": 1.25, "lowest": 1.1, "highest": 1.5},
    "milliseconds": [8.0, 10.0],
    "tokens": 1.03,
}


def test_every_batch_and_beam_of_each_runtime_is_a_row_and_the_smaller_model_is_the_first(monkeypatch):
    timed = []

    def compared(this, whole, runtime, threads, text):
        sizes = [sum(each.numel() for each in run.model.parameters()) for run in (this, whole)]
        listed = this.shortlist is not None
        timed.append((sizes[0] < sizes[1], listed, runtime, threads, text.batch, text.beam, len(text.ids)))
        return [text.ids, text.ids], SPEED

    monkeypatch.setattr(batches, "compared", compared)
    monkeypatch.setattr(batches, "runtimes_of", lambda model: ["torch", "ct2", "int8"])
    asked = dict(
        runs=[str(next(EXAMPLE.glob("*-l0-*")))], runtimes=["torch", "int8"], batches=[1, 8], beams=[5]
    )
    found = batches.answer(Namespace(**asked, lists=[0, 4], lines=7, threads=1, text=None))
    each = [(best, name, size) for best in (0, 4) for name in ("torch", "int8") for size in (1, 8)]
    assert timed == [(True, best > 0, name, 1, size, 5, 7) for best, name, size in each]
    assert [row[1:5] for row in found.rows] == [[best, name, 5, size] for best, name, size in each]
    assert found.rows[0][5:9] == ["1.25 (1.10 to 1.50)", "8.00", "10.00", "1.03"]
    assert found.header[9:] == ["bleu", "chrf"]
    assert [row["batch"] for row in found.numbers["measured"]] == [1, 8] * 4
