"""The programs of --to onnx: they say what the model says, and onnxruntime alone can run them."""

import json
import os
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest
import torch

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install onnx")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; pip install onnxscript")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from headgates.bridges.exported import FORMATS, open_exported, read_export  # noqa: E402
from headgates.bridges.formats import ABOUT, export  # noqa: E402
from tests.worlds.imports import imported_by  # noqa: E402
from tests.worlds.small_model import LIBRARIES  # noqa: E402
from tests.worlds.translators import SOURCES, TARGETS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CASES = {  # the first layer of "empty layers" has no self-attention, the second no cross-attention
    "empty layers": {
        "closed": "empty layers",
        "joint": True,
        "embeddings": "tied",
        "encoder_layers": 1,
        **LIBRARIES["as BART"],
    },
    "ssru": {"decoder_mixer": "ssru", "encoder_layers": 1, "decoder_layers": 1},
}


@contextmanager
def overheard(path):
    """Write into a file what is written to the terminal, also by what is no Python, or bound its stream
    before."""
    terminal = [os.dup(stream) for stream in (1, 2)]
    with path.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        try:
            yield
        finally:
            for stream, own in zip((1, 2), terminal, strict=True):
                os.dup2(own, stream)
                os.close(own)


@pytest.fixture(scope="module")
def exported(make_translator, tmp_path_factory):
    """exported("ssru") -> the translator and its folder, written once; what was said is beside it."""

    @cache
    def find(name):
        translator, folder = make_translator(**CASES[name]), tmp_path_factory.mktemp("onnx") / "out"
        with overheard(folder.with_name("said")), warnings.catch_warnings(record=True) as caught:
            export(translator, "onnx", folder, lines=SOURCES, references=TARGETS, provenance={})
        folder.with_name("warned").write_text("".join(str(each.message) for each in caught))
        return translator, folder

    return find


@pytest.mark.parametrize("name", CASES)
def test_one_line_or_none_with_a_wide_beam_is_translated_as_by_the_model(exported, name):
    """Many lines, greedily and with a beam of 3, are what the parity check of `export` compares."""
    translator, folder = exported(name)
    found, expected = (
        each.translate_n_best(["a"], beam=5, length_penalty=0.6)
        for each in (FORMATS["onnx"].open(folder, threads=1), translator)
    )
    assert [one.text for one in found[0]] == [one.text for one in expected[0]]
    assert FORMATS["onnx"].open(folder).translate([]) == []


def test_exporters_do_not_flood_the_terminal(exported):
    _, folder = exported("empty layers")
    assert [folder.with_name(name).read_text() for name in ("said", "warned")] == ["", ""]
    assert set(read_export(folder)["files"]) == {"encoder.onnx", "decoder.onnx", "vocab.model"}


def test_onnx_graphs_translate_without_torch(exported):
    _, folder = exported("ssru")
    assert "torch" not in imported_by("translate.py", folder, text="the dog\n")


def test_inputs_and_outputs_have_names_and_dimensions_that_can_be_read(exported):
    graph = onnx.load(exported("empty layers")[1] / "decoder.onnx").graph
    shapes = {
        value.name: [each.dim_param or each.dim_value for each in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    names = "ids length bias cross_keys_0 cross_values_0 past_keys_1 past_values_1 logits keys_1 values_1"
    assert list(shapes) == names.split()
    assert shapes["cross_keys_0"] == ["sentences", 2, "sources", 11]
    assert shapes["values_1"] == ["sentences", "beams", 1, "positions + earlier", 11]


def test_a_table_that_embeds_and_projects_is_stored_once(exported):
    folder = exported("empty layers")[1]
    tensors = onnx.load(folder / "decoder.onnx").graph.initializer
    assert len([tensor.name for tensor in tensors if sorted(tensor.dims) == [22, 53]]) == 1


def test_no_file_names_a_folder_of_the_machine(exported):
    for path in exported("ssru")[1].iterdir():
        assert str(ROOT).encode() not in path.read_bytes(), path.name


def test_onnxruntime_alone_scores_whole_sentences(exported, batch):
    """By what the docstring of bridges/steps.py says, and nothing else of ours."""
    source, target_in = batch
    ids = target_in[:, None]
    translator, folder = exported("empty layers")
    with torch.no_grad():
        expected = translator.model(source, target_in)
    encoder, decoder = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder")
    )
    feed = dict(
        zip(
            [each.name for each in encoder.get_outputs()],
            encoder.run(None, {"source": source.numpy()}),
            strict=True,
        )
    )
    empty = torch.empty(3, 1, 1, 0, 11)
    feed |= dict.fromkeys(("past_keys_1", "past_values_1"), empty.numpy())
    feed |= {"ids": ids.numpy(), "length": torch.tensor(0).numpy()}
    (found,) = decoder.run(["logits"], feed)
    torch.testing.assert_close(torch.from_numpy(found)[:, 0], expected, atol=1e-5, rtol=1e-5)


def test_a_missing_or_broken_graph_is_one_line(exported, tmp_path):
    for path in exported("ssru")[1].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = read_export(tmp_path) | {"sha256": {}}  # so that the graph itself is opened
    (tmp_path / ABOUT).write_text(json.dumps(about))
    (tmp_path / "decoder.onnx").write_bytes((tmp_path / "decoder.onnx").read_bytes()[:997])
    with pytest.raises(ValueError, match=r"decoder\.onnx is not a whole ONNX graph \(.*\); export the run"):
        open_exported(tmp_path)
    (tmp_path / "decoder.onnx").unlink()
    with pytest.raises(ValueError, match=r"decoder\.onnx is not a whole ONNX graph \(.*\); export the run"):
        open_exported(tmp_path)
