"""torch.export programs: encoder.pt2 and decoder.pt2, which torch alone loads and runs; what they take and
give is in steps.py.

decoder = torch.export.load("decoder.pt2").module()
logits, *past = decoder(ids, length, bias, cross, past)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headgates.bridges.exported import read_about, sized_vocabs
from headgates.bridges.step_search import Arrays, StepTranslator
from headgates.bridges.steps import past_sizes, trace, without_warnings
from headgates.data.vocab import Vocabulary
from headgates.models.checkpoint import build
from headgates.models.description import Description
from headgates.models.translator import Translator


def write(translator: Translator, folder: Path) -> None:
    """encoder.pt2 and decoder.pt2 of a model without gates."""
    for name, program in trace(translator.model).items():
        try:
            with without_warnings():
                torch.export.save(program.traced, folder / f"{name}.pt2")
        except RuntimeError as error:  # torch's writer has no other word for a disk that is full
            raise OSError(
                f"cannot write {name}.pt2 in {folder.parent}: {str(error).splitlines()[0]}"
            ) from error


def open(folder: Path, model: Description, threads: int) -> StepTranslator:
    """The translator of the folder that `write` has just written, for the parity check alone: loading a
    program can run code, so no folder is opened later."""
    encoder, decoder = load(folder / "encoder.pt2"), load(folder / "decoder.pt2")
    sizes = [
        size
        for layer in build(read_about(folder)["architecture"], "meta").decoder.layers
        for size in past_sizes(layer.self_attention).values()
    ]
    return program_translator(sized_vocabs(folder, model), model, sizes, encoder, decoder)


def program_translator(
    vocabs: tuple[Vocabulary, Vocabulary],
    model: Description,
    sizes: Sequence[tuple[int, int]],
    encoder: Any,
    decoder: Any,
) -> StepTranslator:
    """The translator of two programs in torch. sizes: of its past tensors."""

    def decode(ids: np.ndarray, length: int, bias: np.ndarray, cross: Arrays, past: Arrays) -> Arrays:
        new, mask, *both = map(torch.from_numpy, (ids, bias, *cross, *past))
        return arrays(decoder(new, torch.tensor(length), mask, both[: len(cross)], both[len(cross) :]))

    # not the encoder itself: as a part of a module it would be asked to go into evaluation mode, which
    # programs refuse
    return StepTranslator(
        vocabs, model, sizes, lambda source: arrays(encoder(torch.from_numpy(source))), decode
    )


def arrays(tensors: Sequence[Tensor]) -> Arrays:
    return [tensor.detach().numpy() for tensor in tensors]


def load(path: Path) -> torch.fx.GraphModule:
    with without_warnings():
        return torch.export.load(path).module()
