"""ONNX graphs: encoder.onnx and decoder.onnx, run by onnxruntime on the CPU; what they take and give is in
steps.py.

torch and onnxruntime look at the same memory through numpy, so nothing is copied on the way in or out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from headgates.bridges.steps import Program, step_translator, trace, without_warnings
from headgates.data.text import reworded
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

ERRORS_ONLY = 3  # onnxruntime's severity: what it warns of, its users cannot change


def write(translator: Translator, folder: Path) -> None:
    """encoder.onnx and decoder.onnx of a model without gates, checked by onnx.checker. Above 2 GB the weights
    are in files beside them."""
    import onnx

    for name, program in trace(translator.model).items():
        path = folder / f"{name}.onnx"
        graph(program).save(path)
        onnx.checker.check_model(path, full_check=True)


def graph(program: Program) -> Any:
    """The torch.onnx.ONNXProgram of a traced program."""
    with without_warnings():
        found = torch.onnx.export(
            program.traced,
            dynamo=True,
            dynamic_shapes=program.dimensions,  # only for the names in the graph: the sizes are in the trace
            input_names=program.inputs,
            output_names=program.outputs,
            verbose=False,
        )
    assert found is not None  # it is, with dynamo=True
    for node in found.model.graph.all_nodes():
        node.metadata_props.clear()  # they name files of the machine that exported
    return found


def open(folder: Path, shape: Transformer) -> Translator:
    """The translator of such a folder. Raises ValueError at a file that is missing or broken."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = ERRORS_ONLY
    encoder, decoder = load(folder / "encoder.onnx", options), load(folder / "decoder.onnx", options)

    def decode(
        ids: Tensor, length: int, bias: Tensor, cross: Sequence[Tensor], past: Sequence[Tensor]
    ) -> list[Tensor]:
        return run(decoder, [ids, torch.tensor(length), bias, *cross, *past])

    return step_translator(folder, shape, lambda source: run(encoder, [source]), decode)


def load(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    with reworded(f"{path} is not a whole ONNX graph", "export the run again"):
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, inputs: Sequence[Tensor]) -> list[Tensor]:
    """All outputs of a graph, in order; its inputs in order too."""
    feed = {each.name: tensor.numpy() for each, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(array) for array in session.run(None, feed)]
