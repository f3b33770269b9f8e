"""open_source: the one way to a trained model. The model is untrained; what it says does not matter here."""

import pytest
import torch
import yaml

from headgates.configs.recipe import Lambda, Recipe
from headgates.configs.source import SourceOptions
from headgates.gates import HeadMap, attach, find_sites
from headgates.models.checkpoint import save_model
from headgates.models.translator import Translator
from headgates.records import foreign_source
from headgates.records.folder import RunFolder
from headgates.records.source import open_source
from tests.worlds.runs import write_run
from tests.worlds.translators import SEARCH, SOURCES, TARGETS

RECIPE = Recipe("l0", Lambda(0.01), epochs=3)


@pytest.fixture
def translator(make_translator) -> Translator:
    return make_translator(d_model=24, heads=3)


@pytest.fixture
def run(translator, tmp_path) -> RunFolder:
    """A finished run with the systems base and l0 (whose heads are half closed)."""
    return write_run(tmp_path / "toy-en-de-l0-s1", translator, closed(translator.model))


def closed(model) -> HeadMap:
    return HeadMap({site: [1.0, 0.0, 0.0] if site.layer else [0.0, 1.0, 1.0] for site in find_sites(model)})


def test_a_loaded_base_translates_as_the_model_did(run, translator):
    loaded = open_source(run.path, "base").translator
    assert loaded.translate_n_best(SOURCES) == translator.translate_n_best(SOURCES)


def test_a_run_s_own_system_is_the_one_its_result_names_with_its_heads_closed(run, translator):
    base = open_source(run.path, "base").translator
    attach(base.model, gate="mask", xi=closed(translator.model))
    own, named, ours = (
        each.score(SOURCES, TARGETS)
        for each in (open_source(run.path).translator, open_source(run.path, "l0").translator, base)
    )
    assert own == named == ours != translator.score(SOURCES, TARGETS)


def test_a_loaded_system_has_no_dropout_and_learns_no_mask(run):
    translator = open_source(run.path).translator
    assert translator.search == SEARCH
    assert not any(module.training for module in translator.model.modules())
    assert not any(parameter.requires_grad for parameter in translator.model.head_gates.parameters())


@pytest.mark.parametrize("name", ["best.pt", "vocab.tgt.model"])
def test_a_changed_weight_or_vocabulary_is_found_when_the_run_is_opened(run, translator, name):
    content = (run / name).read_bytes()
    (run / name).write_bytes(content.replace(b"e", b"a"))  # as many pieces, some of other letters
    if name == "best.pt":
        with torch.no_grad():
            translator.model.output.weight[5, 3] += 1e-3  # the file is whole, and of the same architecture
        save_model(run / name, translator.model)
    with pytest.raises(ValueError, match=rf"{name} has changed since it was written: .*; copy it again"):
        open_source(run.path, "base")


def test_an_unknown_system_names_the_nearest(run):
    with pytest.raises(ValueError, match=r"has no system 'bse' \(did you mean 'base'\?\); it has base, l0"):
        open_source(run.path, "bse")


def test_a_run_without_its_weights_says_so(run):
    (run / "best.pt").unlink()
    with pytest.raises(ValueError, match="no checkpoint at"):
        open_source(run.path)


# ---------------------------------------------------------------- which run, and what comes with it


@pytest.fixture
def base(run) -> RunFolder:
    """The finished base that `run` has its gates on."""
    folder = RunFolder(run.path.with_name("toy-en-de-none-s1"))
    folder.write_text("config.yaml", yaml.safe_dump({"seed": 1, "run_hash": "b"}))
    for name in ("vocab.src.model", "vocab.tgt.model", "best.pt"):
        (folder / name).write_bytes((run / name).read_bytes())
    folder.add_system("base", folder / "best.pt", None)
    folder.write_json("result.json", {"system": "base", "finished": True})
    run.write_text(
        "config.yaml",
        yaml.safe_dump(
            run.config() | {"base": folder.path.name, "base_hash": "b", "recipe": RECIPE.to_json()}
        ),
    )
    return folder


def test_a_dense_source_is_the_base_of_a_run_with_gates(run, base):
    for given in (run, base):
        source = open_source(given.path, unpruned=True)
        assert (source.folder.path, source.system) == (base.path, "base")
    assert open_source(run.path).folder.path == run.path


def test_a_run_that_has_not_ended_opens_unless_it_must_have(run):
    run.write_json("result.json", {"system": "l0"})
    assert open_source(run.path).system == "l0"
    with pytest.raises(ValueError, match="is not finished"):
        open_source(run.path, finished=True)


def test_the_weights_tell_models_apart_and_not_their_folders(run, base):
    assert open_source(run.path, "base").weights == open_source(base.path).weights
    assert len(open_source(base.path).weights) == 12
    assert open_source(run.path, "l0").weights != open_source(base.path).weights


@pytest.fixture
def foreign(run, monkeypatch) -> str:
    """A SOURCE of another library."""
    monkeypatch.setitem(foreign_source.SOURCES, "other", "tests.records.foreign_reader:read")
    return f"other:{run.path}"


def test_a_model_of_another_library_becomes_one_run_for_each_text_and_way_to_read_it(foreign, tmp_path):
    texts = [
        SourceOptions(runs=str(tmp_path / "made"), data=data, src="en", tgt="de")
        for data in (None, "toy", "multi30k")
    ]
    asked = [*((foreign, text) for text in texts), (f"{foreign},tgt=deu_Latn", texts[1])]
    first = [open_source(source, options=options).folder for source, options in asked]
    again = [open_source(source, options=options).folder for source, options in asked]
    assert [folder.path for folder in first] == [folder.path for folder in again]
    assert len({folder.path for folder in first}) == len(asked) == len(list((tmp_path / "made").iterdir()))
    weights = [file.stat().st_ino for folder in first for file in folder.path.glob("weights-*.pt")]
    assert (len(weights), len(set(weights))) == (len(asked), 1)  # one file on the disk
    assert [folder.config()["data"] for folder in first] == [None, "toy", "multi30k", "toy"]
    assert first[-1].read_json("result.json")["origin"].endswith(",tgt=deu_Latn")


def test_a_model_of_another_library_says_what_it_said(foreign, run, tmp_path):
    opened = open_source(
        foreign, options=SourceOptions(runs=str(tmp_path / "made"), data="toy", src="en", tgt="de")
    )
    scores, expected = (
        each.translator.score(SOURCES, TARGETS) for each in (opened, open_source(run.path, "base"))
    )
    assert [len(row) for row in scores] == [len(row) for row in expected]
    for row, other in zip(scores, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5)  # in batches of another size
    assert opened.corpus.name == "toy"
    textless = open_source(foreign, options=SourceOptions(runs=str(tmp_path / "made")))
    with pytest.raises(ValueError, match="no text: give --data"):
        _ = textless.corpus


def test_a_reader_that_fails_leaves_no_folder(foreign, run, tmp_path, monkeypatch):
    (run / "best.pt").write_bytes(b"broken")
    with pytest.raises(ValueError, match="not a whole checkpoint"):
        open_source(foreign, options=SourceOptions(runs=str(tmp_path / "made")))
    assert not list((tmp_path / "made").glob("*"))
    assert not list((tmp_path / "made").glob(".*"))


def test_a_run_has_its_own_text(run):
    with pytest.raises(ValueError, match="--data is for models of other libraries"):
        open_source(run.path, options=SourceOptions(data="toy"))


def test_a_task_that_this_version_lacks_is_refused(run):
    run.write_text("config.yaml", yaml.safe_dump({**run.config(), "task": "chess"}))
    with pytest.raises(ValueError, match="task: expected one of translation, classify, got 'chess'"):
        open_source(run.path)
