"""Lightning takes longer to import than most commands take for their work."""

from tests.worlds.imports import imported_by
from tests.worlds.made_runs import BASE

COMMANDS = """
import headgates.bridges.exported, headgates.explain.analyses, headgates.explain.sentence_model
import headgates.pruning.at_once, headgates.records.runtime, headgates.report.explore.server
from headgates.commands import analyze, explore, export, prune, sweep, translate

raise SystemExit(prune.main())
"""

TRAINING = """
import sys
import headgates.lightning_modules.stage
import torchmetrics

assert not {"transformers", "scipy"} & {*sys.modules}
from torchmetrics import MeanMetric, Metric
from pytorch_lightning.core.module import Metric as theirs

assert issubclass(MeanMetric, Metric) and Metric is theirs
raise SystemExit
"""


def test_what_trains_imports_torchmetrics_whole_only_when_asked(tmp_path):
    """Its own imports take two seconds of every process."""
    (tmp_path / "train.py").write_text(TRAINING)
    assert "transformers" in imported_by(tmp_path / "train.py"), "torchmetrics is whole"


def test_what_trains_nothing_imports_no_trainer(tiny, tmp_path):
    script = tmp_path / "prune.py"
    script.write_text(COMMANDS)
    found = imported_by(script, tiny / BASE, "--heads", "9", "--threads", "1")
    assert "headgates.pruning.make" in found
    assert not found & {"pytorch_lightning", "lightning_fabric", "torchmetrics.metric", "transformers"}
