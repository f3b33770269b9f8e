"""Lightning takes longer to import than most commands take for their work."""

from tests.worlds.imports import imported_by
from tests.worlds.made_runs import BASE

COMMANDS = """
import headgates.bridges.exported, headgates.explain.analyses, headgates.explain.sentence_model
import headgates.pruning.at_once, headgates.records.runtime, headgates.report.explore.server
from headgates.commands import analyze, explore, export, prune, sweep, translate

raise SystemExit(prune.main())
"""


def test_what_trains_nothing_imports_no_trainer(tiny, tmp_path):
    script = tmp_path / "prune.py"
    script.write_text(COMMANDS)
    found = imported_by(script, tiny / BASE, "--heads", "9", "--threads", "1")
    assert "headgates.pruning.make" in found
    assert not found & {"pytorch_lightning", "lightning_fabric", "torchmetrics", "transformers"}
