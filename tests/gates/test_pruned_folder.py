"""Pruned folders: what is wrong with one is said in one line, no code of a folder is run, and nothing
half-written is left."""

import json
import shutil
import sys

import pytest
import torch

from headgates.gates import HeadMap, attach, detach, find_sites, load_pruned, remove, save_pruned
from tests.gates.families import BY_NAME
from tests.gates.family_checks import uneven

transformers = pytest.importorskip("transformers", reason="pruned folders need the extra hf")
FAMILY = BY_NAME["BERT"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model = FAMILY.model()
    remove(model, uneven(model))
    return save_pruned(model, tmp_path_factory.mktemp("pruned") / "model")


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "model")


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_field_is_the_original_numbers_of_the_heads_that_are_left(written):
    config = json.loads((written / "config.json").read_text())
    assert config["headgates"] == {"heads": {"encoder.0.enc-self": [1, 2], "encoder.1.enc-self": [0]}}
    assert config["architectures"] == ["BertForMaskedLM"]
    assert {path.suffix for path in written.iterdir()} == {".json", ".safetensors"}


def test_saving_leaves_the_model_as_it_was(tmp_path):
    model = FAMILY.model()
    config = model.config
    save_pruned(model, tmp_path / "whole")
    assert model.config is config
    assert not hasattr(config, "headgates")
    assert [site.heads for site in find_sites(load_pruned(tmp_path / "whole"))] == [3, 3]


def test_options_go_to_transformers(folder):
    assert load_pruned(folder, dtype=torch.bfloat16).dtype == torch.bfloat16


WRONG = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
    "no field": (
        lambda folder: (folder / "config.json").write_text("{}"),
        "no field 'headgates'.*load it with from_pretrained",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "has no weights in safetensors",
    ),
    "torn weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"12345678{"),
        "cannot be read as those of a BertForMaskedLM",
    ),
    "an adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "has an adapter"),
    "no class": (
        lambda folder: change(folder, architectures=["os"]),
        "must name one model class of transformers .*'os'",
    ),
    "a function": (lambda folder: change(folder, architectures=["pipeline"]), "must name one model class"),
    "two classes": (
        lambda folder: change(folder, architectures=["BertModel", "BertModel"]),
        "must name one model class",
    ),
    "another class": (
        lambda folder: change(folder, architectures=["BertForSequenceClassification"]),
        "not those of its config: .*missing",
    ),
    "no lists": (
        lambda folder: change(folder, headgates={"heads": {"encoder.0.enc-self": 2}}),
        "must be like",
    ),
    "no order": (
        lambda folder: change(folder, headgates={"heads": {"encoder.0.enc-self": [2, 1]}}),
        "must be like",
    ),
    "unknown site": (
        lambda folder: change(folder, headgates={"heads": {"encoder.7.enc-self": [1]}}),
        "no attention encoder.7.enc-self",
    ),
    "too high": (
        lambda folder: change(folder, headgates={"heads": {"encoder.0.enc-self": [3]}}),
        "has 3 heads, 0 to 2; head 3",
    ),
    "other heads": (
        lambda folder: change(folder, headgates={"heads": {"encoder.0.enc-self": [1]}}),
        "cannot be read as those of",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_folder_is_one_clear_line(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ValueError, match=message) as error:
        load_pruned(folder)
    assert "\n" not in str(error.value)


def test_no_code_of_a_folder_is_run(folder):
    (folder / "modeling_evil.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"
    )
    change(
        folder, auto_map={"AutoModelForMaskedLM": "modeling_evil.Evil"}, attn_implementation="someone/kernel"
    )
    model = load_pruned(folder)
    assert type(model) is transformers.BertForMaskedLM
    assert model.config._attn_implementation in ("eager", "sdpa")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("missing", ["transformers", "tokenizers", "safetensors"])
def test_a_missing_library_names_the_extra(folder, missing, monkeypatch):
    model = FAMILY.model()
    monkeypatch.setitem(sys.modules, missing, None)
    for call in (lambda: load_pruned(folder), lambda: save_pruned(model, folder.parent / "new")):
        with pytest.raises(ImportError, match=r"pip install 'headgates\[hf\]'") as error:
            call()
        assert error.value.__cause__ is None
    assert not (folder.parent / "new").exists()


def test_a_folder_with_something_in_it_is_not_written_over(folder):
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(FileExistsError, match="is there already and not an empty folder; choose another"):
        save_pruned(FAMILY.model(), folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_what_fails_leaves_no_folder(tmp_path, monkeypatch):
    model = FAMILY.model()

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="No space"):
        save_pruned(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_model_with_gates_is_refused(tmp_path):
    model = FAMILY.model()
    attach(model)
    with pytest.raises(ValueError, match="already has gates"):
        save_pruned(model, tmp_path / "model")
    detach(model)


def test_transformers_builds_no_layer_of_its_own_from_per_layer_config():
    """Were it to, save_pruned should write that field too."""
    config = FAMILY.model().config
    config.per_layer_config = {0: {"num_attention_heads": 2}}
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        transformers.BertForMaskedLM(config)


def test_an_empty_map_closes_nothing(folder):
    model = load_pruned(folder)
    assert remove(model, HeadMap({})).parameters == 0
