"""examples/toy_run is a finished run that opens everywhere: small, in half precision, with nothing of the
machine that made it."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from headgates.analysis.significance import score
from headgates.commands import prune, translate
from headgates.configs.analyses import Analyses
from headgates.configs.recipe import Lambda, Recipe
from headgates.configs.yaml_file import load_yaml
from headgates.data import load_corpus
from headgates.explain.analysed_model import AnalysedModel
from headgates.explain.analyses import ANALYSES, analysis_settings, stored_result
from headgates.models.checkpoint import load_model
from headgates.records.folder import RunFolder, base_of, find_runs, recipe_of
from headgates.records.table import read_table
from tests.worlds.runs import well

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/toy_run"
MOST_BYTES = 900_000
PLACES = re.compile(r"""(?<![\w.~:/<*])/[a-z]+/\w""")  # an absolute path; not </b>, 1/2 or a URL


def gated(runs: Path) -> RunFolder:
    return next(run for run in find_runs(runs) if recipe_of(run.config()) is not None)


def state(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def runs(tmp_path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "runs"))


def test_the_example_is_small_and_holds_a_gated_run_and_its_base():
    assert sum(map(len, state(EXAMPLE).values())) < MOST_BYTES
    runs = find_runs(EXAMPLE)
    assert len(runs) == 2
    assert all(run.finished() for run in runs)
    assert base_of(gated(EXAMPLE)).path.parent == EXAMPLE
    assert [path.name for path in EXAMPLE.iterdir() if not (path / "config.yaml").is_file()] == []


def test_the_example_names_no_place_of_the_machine_that_made_it():
    text = {
        name: content.decode()
        for name, content in state(EXAMPLE).items()
        if Path(name).suffix not in (".pt", ".npz", ".model")
    }
    assert len(text) > 20
    assert {name: found[0] for name, content in text.items() if (found := PLACES.search(content))} == {}
    for run in find_runs(EXAMPLE):
        assert run.config()["runs"] == "examples/toy_run"


def test_weights_are_halves_in_the_file_and_float32_in_the_model():
    for run in find_runs(EXAMPLE):
        content = torch.load(run / "best.pt", weights_only=True)
        assert {tensor.dtype for tensor in content["model"].values()} == {torch.float16}
        model = load_model(run / "best.pt")
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert model.output.weight is model.target_embedding.weight


def test_a_third_to_two_thirds_of_the_heads_are_open_and_of_every_kind_some():
    row = gated(EXAMPLE).row_of("pruned")
    assert 0.3 < row.heads_open / row.heads_total < 0.7
    assert min(row.heads_by_kind.values()) > 0


def test_rows_are_the_scores_of_their_hypotheses():
    corpus = load_corpus("toy")
    for run in find_runs(EXAMPLE):
        rows = run.rows()
        assert rows[0].system == "base"
        for row in rows:
            lines = run.outputs(row.system)
            found = score(lines, corpus.test.targets[: len(lines)])
            expected = row.measures["bleu"].value, row.measures["chrf"].value
            assert (found["bleu"], found["chrf"]) == pytest.approx(expected), row.system


def test_the_gated_run_is_what_toy_example_yaml_says():
    config, said = gated(EXAMPLE).config(), load_yaml(ROOT / "configs/toy_example.yaml")
    recipe = recipe_of(config)
    assert recipe == Recipe("l0", Lambda(*said.pop("lambda")), epochs=said.pop("epochs")[0])
    assert {
        name: {key: config[name][key] for key in value} if isinstance(value, dict) else config[name]
        for name, value in said.items()
    } == said


def test_what_prune_and_analyze_left_is_of_these_weights(runs):
    base = base_of(gated(runs))
    analysed = AnalysedModel.open([str(base.path)], Analyses(siblings=True), lambda text: None)
    assert [run.folder.path for run in analysed.made_runs] == [gated(runs).path]
    asked = [name for name in ANALYSES if name != "contrast"]  # which is of a file that is named
    assert [
        name for name in asked if stored_result(analysed, name, analysis_settings(analysed, name)) is None
    ] == ["positions", "sentences", "causes"]  # two are made in seconds, and one by --causes alone
    assert len(read_table(base, "ablation/one.csv")) == 48


def test_a_copy_elsewhere_is_translated_from_and_pruned(runs, called, monkeypatch):
    monkeypatch.chdir(runs.parent)
    Path("in.txt").write_text("The old dog sees a cat.\n")
    code, out, error = called(translate)(gated(runs).path, "--input", "in.txt", "--quiet")
    assert (code, out) == (0, "Der alte Hund sieht eine Katze.\n"), error
    words = ["--by", "importance", "--heads", "24", "--test-sentences", "5", "--threads", "1"]
    well(called(prune)(base_of(gated(runs)).path, *words))
    assert len(find_runs(runs)) == 3
