"""ONNX graphs: they say what the model says, for any number of lines and beams, and onnxruntime alone can run
them."""

import json
from pathlib import Path

import pytest
import torch

onnx = pytest.importorskip("onnx", reason="onnx is not installed; pip install onnx")
pytest.importorskip("onnxscript", reason="onnxscript is not installed; pip install onnxscript")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; pip install onnxruntime")

from headgates.bridges.formats import ABOUT, open_exported, read_about  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CASES = ["uneven", "empty layers", "all", "ssru"]


@pytest.mark.parametrize("name", CASES)
def test_one_line_or_many_with_any_beam_are_translated_as_by_the_model(exported, pairs, name):
    case = exported("onnx", name)
    opened = open_exported(case.folder, threads=1)
    for lines in (pairs[0], pairs[0][:1], ["a"], []):
        for beam in (1, 5):
            expected = case.translator.translate_n_best(lines, beam=beam, length_penalty=0.6)
            found = opened.translate_n_best(lines, beam=beam, length_penalty=0.6)
            assert [[one.text for one in best] for best in found] == [
                [one.text for one in best] for best in expected
            ]


def test_inputs_and_outputs_have_names_and_dimensions_that_can_be_read(exported):
    """The first layer has no self-attention, the second no cross-attention."""
    graph = onnx.load(exported("onnx", "empty layers").folder / "decoder.onnx").graph
    shapes = {
        value.name: [each.dim_param or each.dim_value for each in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "ids": ["sentences", "beams", "positions"],
        "length": [],
        "bias": ["sentences", 1, 1, "sources"],
        "cross_keys_0": ["sentences", 2, "sources", 11],
        "cross_values_0": ["sentences", 2, "sources", 11],
        "past_keys_1": ["sentences", "beams", 1, "earlier", 11],
        "past_values_1": ["sentences", "beams", 1, "earlier", 11],
        "logits": ["sentences", "beams", "positions", 53],
        "keys_1": ["sentences", "beams", 1, "positions + earlier", 11],
        "values_1": ["sentences", "beams", 1, "positions + earlier", 11],
    }


def test_a_table_that_embeds_and_projects_is_stored_once(exported):
    tensors = onnx.load(exported("onnx", "uneven").folder / "decoder.onnx").graph.initializer
    assert len([tensor.name for tensor in tensors if sorted(tensor.dims) == [22, 41]]) == 1


def test_no_file_names_a_folder_of_the_machine(exported):
    assert [
        path.name
        for path in exported("onnx", "uneven").folder.iterdir()
        if str(ROOT).encode() in path.read_bytes()
    ] == []


def test_onnxruntime_alone_scores_whole_sentences_with_it(exported, batch, alone):
    case = exported("onnx", "empty layers")
    source, target_in = batch
    code = f"""
import numpy, onnxruntime
encoder, decoder = (onnxruntime.InferenceSession(name + ".onnx") for name in ("encoder", "decoder"))
outputs = [each.name for each in encoder.get_outputs()]
feed = dict(zip(outputs, encoder.run(None, {{"source": numpy.array({source.tolist()})}})))
feed |= {{name: numpy.empty((3, 1, 1, 0, 11), numpy.float32) for name in ("past_keys_1", "past_values_1")}}
feed |= {{"ids": numpy.array({target_in.tolist()})[:, None], "length": numpy.array(0)}}
numpy.savez("out.npz", logits=decoder.run(["logits"], feed)[0])
"""
    with torch.no_grad():
        expected = case.translator.model(source, target_in)
    torch.testing.assert_close(
        torch.from_numpy(alone(case.folder, code)["logits"])[:, 0], expected, atol=1e-5, rtol=1e-5
    )


def test_a_missing_or_broken_graph_is_one_line(exported, tmp_path):
    for path in exported("onnx", "all").folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = read_about(tmp_path) | {"sha256": {}}  # so that the graph itself is opened
    (tmp_path / ABOUT).write_text(json.dumps(about))
    (tmp_path / "decoder.onnx").write_bytes((tmp_path / "decoder.onnx").read_bytes()[:997])
    with pytest.raises(
        ValueError, match=r"decoder\.onnx is not a whole ONNX graph \(.*\); export the run again"
    ):
        open_exported(tmp_path)
    (tmp_path / "decoder.onnx").unlink()
    with pytest.raises(ValueError, match=r"decoder\.onnx is missing; export the run again"):
        open_exported(tmp_path)
