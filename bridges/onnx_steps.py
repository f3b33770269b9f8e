"""onnxruntime runs the graphs that onnx.py has written, on the CPU. Importing this needs no torch."""

from pathlib import Path

import numpy as np
import onnxruntime

from headgates.bridges.exported import sized_vocabs
from headgates.bridges.step_search import Arrays, StepTranslator
from headgates.data.shortlist import shortlist_in
from headgates.data.text import reworded
from headgates.models.description import Description

ERRORS_ONLY = 3  # onnxruntime's severity: what it warns of, its users cannot change


def open(folder: Path, model: Description, threads: int) -> StepTranslator:
    """The translator of such a folder. Raises ValueError at a file that is missing or broken."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    encoder, decoder = (
        open_session(folder / "encoder.onnx", options),
        open_session(folder / "decoder.onnx", options),
    )
    shapes = [each.shape for each in decoder.get_inputs() if each.name.startswith("past_")]

    def decode(ids: np.ndarray, length: int, bias: np.ndarray, cross: Arrays, past: Arrays) -> Arrays:
        return run_graph(decoder, [ids, np.array(length), bias, *cross, *past])

    sizes = [(heads, width) for _, _, heads, _, width in shapes]
    vocabs = sized_vocabs(folder, model)
    found = StepTranslator(vocabs, model, sizes, lambda source: run_graph(encoder, [source]), decode)
    found.shortlist = shortlist_in(folder)
    return found


def open_session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    with reworded(f"{path} is not a whole ONNX graph", "export the run again"):
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, inputs: Arrays) -> Arrays:
    """All outputs of a graph, in order; its inputs in order too."""
    names = [each.name for each in session.get_inputs()]
    with reworded("the ONNX graph cannot be run", "export the run again"):
        found: Arrays = session.run(None, dict(zip(names, inputs, strict=True)))
    return found
