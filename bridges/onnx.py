"""ONNX graphs: encoder.onnx and decoder.onnx; what they take and give is in steps.py, what runs them in
onnx_steps.py."""

from pathlib import Path
from typing import Any

import torch

from headgates.bridges.steps import Program, programs, without_warnings
from headgates.models.translator import Translator


def write(translator: Translator, folder: Path) -> None:
    """encoder.onnx and decoder.onnx of a model without gates, checked by onnx.checker. Above 2 GB the weights
    are in files beside them."""
    import onnx

    for name, program in programs(translator.model).items():
        path = folder / f"{name}.onnx"
        graph(program).save(path)
        onnx.checker.check_model(path, full_check=True)


def graph(program: Program) -> Any:
    """The torch.onnx.ONNXProgram of a program."""
    with without_warnings():
        found = torch.onnx.export(
            program.traced(),
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
