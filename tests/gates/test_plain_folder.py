"""Pruned folders of models that are none of Hugging Face's: what does not fit the folder is one line, shared
and empty weights are kept."""

import json
import sys

import pytest
import torch
from torch import nn

from headgates.gates import attach, find_sites, heads_left, load_pruned, remove, save_pruned
from tests.gates.families import BY_NAME
from tests.gates.family_checks import closing, uneven

pytest.importorskip("safetensors", reason="pruned folders need the extra hf")
FAMILY = BY_NAME["torch.nn.Transformer"]


@pytest.fixture
def folder(tmp_path):
    model = FAMILY.model()
    remove(model, uneven(model))
    return save_pruned(model, tmp_path / "model")


def test_the_folder_says_the_class_and_the_first_numbers_of_the_heads(folder):
    field = json.loads((folder / "config.json").read_text())["headgates"]
    assert field["class"] == "Transformer"
    assert field["heads"]["encoder.0.enc-self"] == [1, 2, 3, 4, 5]
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_neither_saving_nor_loading_needs_transformers(folder, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    model = load_pruned(folder, model=FAMILY.build())
    assert not model.training
    save_pruned(model, tmp_path / "again")


def test_shared_weights_stay_shared_and_a_layer_may_have_no_heads(tmp_path):
    family = BY_NAME["our own Transformer"]
    model, batch = family.model(), family.batch(2)
    remove(model, closing(model, lambda number, layer, head: layer == 1))
    path = save_pruned(model, tmp_path / "model")
    again = load_pruned(path, model=family.build())
    assert torch.equal(family.output(again, batch), family.output(model, batch))
    assert heads_left(again) == heads_left(model)
    assert {site.heads for site in find_sites(again)} == {0, 3}
    assert len(list(again.parameters())) == len(
        list(model.parameters())
    )  # the tied embedding is counted once


def gated() -> nn.Module:
    model = FAMILY.build()
    attach(model)
    return model


def cut() -> nn.Module:
    model = FAMILY.build()
    remove(model, uneven(model))
    return model


WRONG = {
    "no model": (
        lambda: None,
        r"give a new one, with all its heads, as load_pruned\(folder, model=Transformer\(\.\.\.\)\)",
    ),
    "another class": (
        BY_NAME["torch.nn.TransformerEncoder"].build,
        "of a Transformer, the model is a TransformerEncoder",
    ),
    "gates": (gated, "already has gates"),
    "lost heads": (cut, "has lost heads already; give a new one"),
    "fewer heads": (lambda: nn.Transformer(12, 3, 2, 2, 17), "has 3 heads, 0 to 2; head 5"),
    "another width": (
        lambda: nn.Transformer(24, 6, 2, 2, 17),
        "cannot be read as those of a Transformer: .*size mismatch",
    ),
    "more layers": (
        lambda: nn.Transformer(12, 6, 2, 3, 17),
        r"are not those of this Transformer: missing \['decoder.layers.2",
    ),
}


@pytest.mark.parametrize(("build", "message"), WRONG.values(), ids=WRONG)
def test_a_model_that_does_not_fit_is_one_clear_line(folder, build, message):
    with pytest.raises(ValueError, match=message) as error:
        load_pruned(folder, model=build())
    assert "\n" not in str(error.value)


def test_torn_weights_are_one_clear_line(folder):
    (folder / "model.safetensors").write_bytes(b"12345678{")
    with pytest.raises(ValueError, match="cannot be read as those of a Transformer"):
        load_pruned(folder, model=FAMILY.build())


def test_options_of_transformers_and_models_for_its_folders_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"\['dtype'\] are options of transformers"):
        load_pruned(folder, model=FAMILY.build(), dtype=torch.bfloat16)
    pytest.importorskip("transformers", reason="needs the extra hf")
    bert = save_pruned(BY_NAME["BERT"].model(), tmp_path / "bert")
    with pytest.raises(
        ValueError, match="holds a Hugging Face model, which transformers builds; leave model= out"
    ):
        load_pruned(bert, model=FAMILY.build())


def test_a_missing_library_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    for call in (
        lambda: load_pruned(folder, model=FAMILY.build()),
        lambda: save_pruned(FAMILY.build(), folder.parent / "new"),
    ):
        with pytest.raises(ImportError, match=r"pip install 'headgates\[hf\]'"):
            call()
    assert not (folder.parent / "new").exists()


def test_a_model_without_a_known_attention_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="no attention in Linear has a rule"):
        save_pruned(nn.Linear(2, 2), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
