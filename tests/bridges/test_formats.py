"""Exported folders: written whole or not at all, opened by what they say of themselves. The format here is a
checkpoint, soon written."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from headgates.bridges import exported
from headgates.bridges.exported import FORMATS, is_exported, open_exported, read_export
from headgates.bridges.formats import ABOUT, export, without_gates
from headgates.gates import HeadMap, attach, find_sites
from headgates.models.translator import Translator
from tests.worlds.translators import as_checkpoint, scores_differ, write_checkpoint

PROVENANCE = {"run": "toy-en-de-l0-s1", "system": "l0", "seed": 1}


@pytest.fixture(autouse=True)
def checkpoint_format(monkeypatch):
    as_checkpoint(monkeypatch, "checkpoint")


@pytest.fixture
def translator(make_translator):
    return make_translator()


@pytest.fixture
def gated(make_translator) -> Translator:
    """Closed, fractional and open heads, on two kinds of attention."""
    translator = make_translator()
    sites = [site for site in find_sites(translator.model) if site.kind != "cross"]
    xi = HeadMap({site: [0.0, 0.37] if site.layer else [1.0, 0.0] for site in sites})
    attach(translator.model, gate="mask", kinds=["enc-self", "dec-self"], xi=xi).requires_grad_(False)
    translator.model.eval()
    return translator


@pytest.fixture
def export_here(tmp_path, pairs):
    """export_here(translator, folder="out", ...) -> what export.json says."""

    def run(translator, folder="out", format="checkpoint", **options):
        lines = {"lines": pairs[0][:2], "references": pairs[1][:2]}
        return export(translator, format, tmp_path / folder, **lines, provenance=PROVENANCE, **options)

    return run


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- the model without gates


def test_plain_takes_closed_heads_away_and_folds_the_others_in(gated, pairs):
    found = without_gates(gated)
    assert [site.heads for site in find_sites(found.model)] == [1, 1, 1, 1, 2, 2]
    assert scores_differ(gated, found, *pairs) < 1e-5
    assert found.translate(pairs[0]) == gated.translate(pairs[0])

    assert hasattr(gated.model, "head_gates")  # it is as it was
    assert not any(parameter.requires_grad for parameter in found.model.parameters())


# ---------------------------------------------------------------- what is written


def test_an_exported_folder_says_what_it_is_and_how_near_it_is(gated, export_here, tmp_path):
    about = export_here(gated)
    assert about == json.loads((tmp_path / "out" / ABOUT).read_text()) == read_export(tmp_path / "out")
    assert {"format": "checkpoint", **PROVENANCE}.items() <= about.items()
    assert about["search"]["beam"] == 3
    assert about["architecture"]["heads"]["encoder.0.enc-self"] == 1
    assert about["files"] == {
        path.name: path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name != ABOUT
    }
    assert set(about["files"]) == {"model.pt", "vocab.src.model", "vocab.tgt.model"}
    assert about["parity"]["log_prob_max_difference"] < 1e-4
    assert left(tmp_path) == ["out"]
    assert is_exported(tmp_path / "out")


def test_a_joint_vocabulary_is_copied_once(make_translator, export_here, tmp_path):
    assert set(export_here(make_translator(joint=True, embeddings="tied"))["files"]) == {
        "model.pt",
        "vocab.model",
    }
    opened = open_exported(tmp_path / "out")
    assert opened.source_vocab is opened.target_vocab


# ---------------------------------------------------------------- what fails leaves nothing


def broken(translator: Translator, folder: Path) -> None:
    """A writer with a fault: the first bias is lost."""
    with torch.no_grad():
        translator.model.encoder.layers[0].feed_forward.inner.bias.zero_()
    write_checkpoint(translator, folder)


def stopped(translator: Translator, folder: Path) -> None:
    (folder / "half").write_bytes(b"1")
    raise KeyboardInterrupt


def test_a_writer_that_changes_the_model_fails_and_leaves_no_folder(
    translator, export_here, tmp_path, monkeypatch
):
    as_checkpoint(monkeypatch, "broken", broken)
    with pytest.raises(ValueError, match="parity failed: in the reference of"):
        export_here(translator, "a/b/out", "broken")
    assert left(tmp_path) == []


def test_an_interrupt_leaves_no_folder(translator, export_here, tmp_path, monkeypatch):
    as_checkpoint(monkeypatch, "stopped", stopped)
    with pytest.raises(KeyboardInterrupt):
        export_here(translator, format="stopped")
    assert left(tmp_path) == []


def test_fresh_replaces_an_exported_folder_unless_the_new_one_fails(
    translator, make_translator, export_here, tmp_path, monkeypatch
):
    export_here(translator)
    (tmp_path / "out/old").write_text("")
    about = export_here(make_translator("uneven"), fresh=True)
    assert read_export(tmp_path / "out")["architecture"] == about["architecture"]
    assert (left(tmp_path), (tmp_path / "out/old").exists()) == (["out"], False)
    as_checkpoint(monkeypatch, "broken", broken)
    with pytest.raises(ValueError, match="parity failed"):
        export_here(translator, format="broken", fresh=True)
    assert (left(tmp_path), read_export(tmp_path / "out")) == (["out"], about)


def test_fresh_does_not_touch_a_folder_that_is_no_export(translator, export_here, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    with pytest.raises(
        ValueError, match=r"out is not an exported folder \(it holds no export.json\), so --fresh leaves it"
    ):
        export_here(translator, fresh=True)
    assert left(tmp_path / "out") == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_one_line(translator, export_here, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ValueError, match=r"cannot write in .*file \(Not a directory\); --out takes another folder"
    ):
        export_here(translator, "file/out")
    assert left(tmp_path) == ["file"]


# ---------------------------------------------------------------- what is opened


def test_a_folder_that_is_no_export_or_whose_export_json_lacks_something_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="is not an exported folder"):
        open_exported(tmp_path)
    assert not is_exported(tmp_path)
    (tmp_path / ABOUT).write_text('{"format": "onnx"}')
    with pytest.raises(ValueError, match="is missing; export the run again"):
        open_exported(tmp_path)


def test_a_file_that_has_changed_is_named(translator, export_here, tmp_path):
    export_here(translator)
    path = tmp_path / "out/vocab.tgt.model"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} has changed since it was written: .*; export the"):
        open_exported(tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"decoder_layers": 10**12}},
        {"model": {"d_model": "wide"}},
        {"model": {"heads": 0}},
        {"model": []},
        {"source_vocab": 10**9},
        {"target_vocab": "large"},
    ],
    ids=str,
)
def test_an_architecture_of_any_size_is_refused(translator, export_here, tmp_path, change):
    about = export_here(translator)
    for key, value in change.items():
        known = about["architecture"][key]
        about["architecture"][key] = known | value if isinstance(value, dict) else value
    (tmp_path / "out" / ABOUT).write_text(json.dumps(about))
    with pytest.raises(
        ValueError,
        match=r"the architecture in .*export\.json is not that of the files beside it .*; export",
    ):
        open_exported(tmp_path / "out")


def test_a_large_model_has_longer_to_open_than_a_small_one(translator, export_here, tmp_path, monkeypatch):
    export_here(translator)
    given = []
    monkeypatch.setattr(exported, "time_limit", lambda seconds, _: given.append(seconds) or nullcontext())
    open_exported(tmp_path / "out")
    monkeypatch.setattr(exported, "BYTES", 1)
    open_exported(tmp_path / "out")
    size = sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert given == [exported.FIRST_CALL, exported.FIRST_CALL + size]


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    translator, export_here, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ValueError, match=r"needs onnx, .*; onnxscript is not installed: python -m pip install onnxscript"
    ):
        export_here(translator, format="onnx")
    assert left(tmp_path) == []


def test_opening_needs_no_package_of_writing(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"this format needs onnxruntime; onnxruntime is not installed"):
        FORMATS["onnx"].open(Path("anywhere"))
