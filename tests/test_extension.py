"""The extension table of the house: a gate, a score, a task and a source are each added in the files that the
table names, and nowhere else, to a copy of the checkout; then they train, prune, evaluate and are shown by
the scripts as a user calls
them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("headgates", *sorted(path.name for path in (ROOT / "headgates").iterdir() if path.is_symlink()))
SCRIPTS = ("fit.py", "prune.py", "analyze.py", "translate.py")

NEW_FILES = {
    "gates/top_heads.py": '''
"""Gates that keep a given number of heads open over all sites: the largest scores, with a straight-through gradient."""

import torch
from torch import Tensor, nn

from .base import HeadGate


class TopHeads(HeadGate):
    def __init__(self, heads: int, target_heads: int, spread: float = 0.1):
        super().__init__(heads)
        self.target_heads = target_heads
        self.score = nn.Parameter(spread * torch.rand(heads))

    @classmethod
    def sample_peers(cls, gates):
        return [gate.test_value() + gate.score - gate.score.detach() for gate in gates]

    def test_value(self) -> Tensor:
        lowest = torch.cat([gate.score.detach() for gate in self.peers]).topk(self.target_heads).values.min()
        return (self.score.detach() >= lowest).float()
''',
    "analysis/scores/value_norm.py": '''
"""The norm of a head's values: a score of weights alone."""

from headgates.gates import HeadMap, find_sites


def value_norm(model, batches=()):
    sites = {site: each.v_proj.weight.detach().double().unflatten(0, (site.heads, -1)) for site, each in find_sites(model).items()}
    return HeadMap({site: weight.flatten(1).norm(dim=1) for site, weight in sites.items()})
''',
    "tasks/reversal.py": '''
"""Digits to the same digits backwards: unsmoothed cross-entropy, and the share of lines that are right."""

import random

import numpy as np
import torch.nn.functional as F

from headgates.data.text import ParallelText
from headgates.data.splits import Corpus
from headgates.analysis.metrics import Metric
from headgates.tasks.translation import Translation

RIGHT = Metric(
    "right",
    "% right",
    lambda outputs, references, sources: np.array([[a == b, 1] for a, b in zip(outputs, references, strict=True)], dtype=np.float64),
    lambda sums: 100 * sums[0] / sums[1],
    lambda sums: 100 * sums[:, 0] / sums[:, 1],
    lambda: "share of equal lines",
)


def text(count: int, seed: int) -> ParallelText:
    rng = random.Random(seed)
    lines = [" ".join(rng.choices("0123456789", k=rng.randint(2, 4))) for _ in range(count)]
    return ParallelText(lines, [line[::-1] for line in lines], {})


class Reversal(Translation):
    own_metrics = (RIGHT,)

    def load_text(self, settings):
        return Corpus(text(600, 1), text(50, 2), text(50, 3), "reversal", "digits, backwards")

    def loss(self, model, batch, *, smoothing=0.0):
        logits = model(batch.source, batch.target_in)
        return F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=0, reduction="sum")
''',
    "bridges/folder_source.py": '''
"""A model that lies in a plain folder: model.pt and vocab.model."""

from pathlib import Path

from headgates.configs.source import ForeignOptions
from headgates.models.checkpoint import load_model
from headgates.bridges.foreign import Converted, ForeignModel
from headgates.data.vocab import load_vocabs
from headgates.models.translator import Translator


def read(place: str, options: ForeignOptions) -> ForeignModel:
    folder = Path(place)
    files = [folder / "model.pt", folder / "vocab.model"]

    def convert() -> Converted:
        translator = Translator(load_model(files[0]), *load_vocabs(folder))
        return Converted(translator, {"vocab.model": files[1]}, settings={"data": "toy", "text": {"train_sentences": 200}})

    return ForeignModel(folder.name, files, convert)
''',
}
NEW_LINES = {  # file: (the line that the table names, what stands before it)
    "gates/registry.py": [
        ("from .top_heads import TopHeads\n", "from .mask import HeadMask\n"),
        ('GATES["top"] = TopHeads\n', None),
    ],
    "configs/learned.py": [
        (
            """
@dataclass(frozen=True)
class TopHeadsOptions:
    spread: float = setting(0.1, "largest score at the start", above=0)


LEARNED["top"] = Learned("top", TopHeadsOptions, "the largest scores", by_price=False)
""",
            None,
        )
    ],
    "pruning/choosers.py": [
        (
            '    "value-norm": Score(f"{ROOM}.value_norm:value_norm"),\n',
            "SCORES: dict[str, Score] = {\n",
        )
    ],
    "tasks/__init__.py": [
        (
            '    "reversal": "headgates.tasks.reversal:Reversal",\n',
            'TASKS: dict[str, str] = {  # name -> "module:class"; configs/tasks.py has the names too\n',
        )
    ],
    "configs/tasks.py": [('TASK_NAMES += ("reversal",)\n', None)],
    "records/foreign_source.py": [
        ('    "folder": "headgates.bridges.folder_source:read",\n', "SOURCES: dict[str, str] = {\n")
    ],
}
TINY = ("--config", "configs/toy_tiny.yaml", "--threads", "1")


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> Path:
    """A copy of the checkout with the four additions."""
    root = tmp_path_factory.mktemp("extended")
    for room in ROOMS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, root / room, symlinks=True, ignore=ignore)
    for script in SCRIPTS:
        shutil.copy(ROOT / script, root)
    for name, content in NEW_FILES.items():
        assert not (root / name).exists()
        (root / name).write_text(content.lstrip(), encoding="utf-8")
    for name, additions in NEW_LINES.items():
        text = (root / name).read_text(encoding="utf-8")
        for line, after in additions:
            assert after is None or after in text
            text = text + line if after is None else text.replace(after, after + line, 1)
        (root / name).write_text(text, encoding="utf-8")
    return root


# Several commands in one process of the copy: importing takes longer than most of them.
CALLS = """
import importlib, json, sys
for words in json.loads(sys.argv[1]):
    sys.argv = words
    code = importlib.import_module(words[0].removesuffix(".py")).main()
    if code:
        raise SystemExit(code)
    print(end="\\x1e", flush=True)
"""


def call(root: Path, *commands: Sequence[object]) -> list[str]:
    """What each of some scripts prints; all must end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    words = json.dumps([[str(word) for word in command] for command in commands])
    streams = {"capture_output": True, "text": True, "encoding": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, words], cwd=root, env=environment, check=False, **streams
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, "modules are imported here, and in no other test of what is said"
    return done.stdout.split("\x1e")[: len(commands)]


FEW = ["--test-sentences", "9", "--threads", "1"]
BASE = "runs/toy-en-de-none-s1"


@pytest.fixture(scope="module")
def said(extended, tmp_path_factory) -> list[str]:
    """What each of all commands printed, one after the other in one process: fit with the new task, gates and
    score; prune by the gates as before, by another option of theirs, and by a score in the current folder;
    the new source, and the run that it was made of, translated; and the source pruned."""
    foreign, theirs = tmp_path_factory.mktemp("theirs"), ROOT / "examples/toy_run/toy-en-de-none-s1"
    shutil.copy(theirs / "best.pt", foreign / "model.pt")
    shutil.copy(theirs / "vocab.model", foreign)
    (extended / "lines.txt").write_text("the dog sleeps\n", encoding="utf-8")
    (extended / "my_module.py").write_text(
        "from headgates.analysis.scores.value_norm import value_norm\n\n\n"
        "def my_score(model, batches):\n    return value_norm(model).map(lambda row: -row)\n"
    )
    words = ["--task", "reversal", "--gate", "top", "--heads", "4", "--rivals", "value-norm", "--data", "toy"]
    options = ["--by", "top", "--heads", "4", "--epochs", "1", "--gates.settle", "0", "--threads", "1"]
    text = ["--data", "toy", "--src", "en", "--tgt", "de"]
    lines = ["--input", "lines.txt", "--beam", "2"]
    return call(
        extended,
        ["fit.py", *TINY, *words, "--gates.settle", "0", "--gates.spread", "0.2"],
        ["prune.py", BASE, *options, "--gates.spread", "0.2"],
        ["prune.py", BASE, *options, "--gates.spread", "0.3", "--name", "other"],
        ["prune.py", BASE, "--by", "my_module:my_score", "--heads", "2", "--threads", "1"],
        ["translate.py", f"folder:{foreign}", *lines],
        ["translate.py", theirs, *lines],
        ["prune.py", f"folder:{foreign}", "--by", "value-norm", "--heads", "24", *text, *FEW],
    )


@pytest.fixture(scope="module")
def runs(extended, said) -> Path:
    return extended / "runs"


def rows_of(run: Path) -> dict[str, dict]:
    return {row["system"]: row for row in json.loads((run / "result.json").read_text())["rows"]}


def test_a_new_gate_trains_closes_heads_and_is_compared_with_its_rivals(runs, said):
    (learned,) = runs.glob("*-top-4-e1-s1")
    rows = rows_of(learned)
    assert list(rows) == ["base", "base-continued", "pruned"]
    assert rows["pruned"]["heads_open"] == 4
    assert rows["pruned"]["parameters"] < rows["base"]["parameters"]
    (rival,) = runs.glob("*-value-norm-4-s1")
    assert rows_of(rival)["pruned"]["heads_open"] == 4
    assert "the largest scores" in said[0]
    assert "value-norm" in said[0]


def test_the_options_of_a_new_gate_are_part_of_what_a_run_is_found_by(runs):
    (learned,) = runs.glob("*-top-4-e1-s1")
    made = {path.parent.name for path in runs.glob("*/gates.json")}
    assert made == {learned.name, "other"}, "the first is found"


def test_a_new_task_is_measured_by_its_own_metric_in_files_and_tables(runs, said):
    base = runs.parent / BASE
    row = rows_of(base)["base"]
    assert {"right", "right_ci95", "right_signature"} <= row.keys()
    assert "bleu" not in row
    assert "% right" in said[0]
    assert "BLEU" not in said[0]
    assert "val/right" in (base / "metrics.csv").read_text().splitlines()[0]


def test_a_new_score_orders_heads_and_its_numbers_are_kept(runs):
    assert (runs.parent / BASE / "scores/value-norm.json").is_file()


def test_a_score_of_the_users_own_is_found_in_the_current_folder(runs):
    (run,) = runs.glob("*my_module.my_score*")
    assert rows_of(run)["pruned"]["heads_open"] == 2


def test_a_new_source_becomes_a_run_that_translates_and_is_pruned(runs, said):
    theirs, ours = said[4:6]
    assert theirs == ours != ""
    (run,) = runs.glob("*value-norm-24-s1")
    assert rows_of(run)["pruned"]["heads_open"] == 24
